// Checks of what several parts of the core are given. All throw InputError.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "errors.hpp"

namespace foresay {

inline void check_threads(uint32_t threads) {
    if (threads == 0 || threads > 256) throw InputError("threads is ", threads, "; expected 1 to 256");
}

inline void check_width(std::string_view name, size_t given, size_t wanted) {
    if (given != wanted) throw InputError(name, " has the width ", given, "; expected ", wanted);
}

/// A shape as a sentence shows it: [2, 3].
template <class Size>
std::string shape_of(const Size* sizes, size_t dimensions) {
    std::string out = "[";
    for (size_t i = 0; i < dimensions; ++i) out += sentence(i ? ", " : "", sizes[i]);
    return out + "]";
}
inline std::string shape_of(std::initializer_list<size_t> sizes) { return shape_of(sizes.begin(), sizes.size()); }

inline void check_size(const char* name, size_t size, size_t count) {
    if (size != count) throw InputError(name, " has ", size, " values; expected ", count);
}

/// Token ids, or what is from `least` on.
inline void check_tokens(std::span<const int32_t> tokens, int32_t least = 0) {
    for (size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] < least || tokens[i] == INT32_MAX)
            throw InputError("token ", tokens[i], " at index ", i, " is not a token id; expected ", least, " to 2147483646");
}

/// Offsets that divide `values` into parts, in order.
inline void check_parts(const char* what, std::span<const int32_t> offsets, size_t parts, size_t values) {
    bool rise = offsets.size() == parts + 1 && offsets.front() == 0 && static_cast<size_t>(offsets.back()) == values;
    for (size_t i = 0; rise && i < parts; ++i) rise = offsets[i] <= offsets[i + 1];
    if (!rise) throw InputError("the offsets of ", what, " do not rise from 0 to ", values, " in ", parts, " parts");
}

}  // namespace foresay
