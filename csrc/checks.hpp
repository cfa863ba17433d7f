// Checks of what several parts of the core are given. All throw InputError.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "errors.hpp"

namespace foresay {

inline void check_threads(uint32_t threads) {
    if (threads == 0 || threads > 256) throw InputError("threads is " + std::to_string(threads) + "; expected 1 to 256");
}

inline void check_size(const char* name, size_t size, size_t count) {
    if (size != count)
        throw InputError(std::string(name) + " has " + std::to_string(size) + " values; expected " + std::to_string(count));
}

/// Token ids, or what is from `least` on.
inline void check_tokens(std::span<const int32_t> tokens, int32_t least = 0) {
    for (size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] < least || tokens[i] == INT32_MAX)
            throw InputError("token " + std::to_string(tokens[i]) + " at index " + std::to_string(i) + " is not a token id; expected " +
                             std::to_string(least) + " to 2147483646");
}

/// Offsets that divide so many values into parts, in order.
inline void check_parts(const char* what, std::span<const int32_t> offsets, size_t parts, size_t values) {
    bool rise = offsets.size() == parts + 1 && offsets.front() == 0 && static_cast<size_t>(offsets.back()) == values;
    for (size_t i = 0; rise && i < parts; ++i) rise = offsets[i] <= offsets[i + 1];
    if (!rise)
        throw InputError(std::string("the offsets of ") + what + " do not rise from 0 to " + std::to_string(values) + " in " + std::to_string(parts) +
                         " parts");
}

}  // namespace foresay
