// What functions over many rows share: checks of what they are given, and the threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "errors.hpp"
#include "parallel.hpp"

namespace foresay {

inline void check_size(const char* name, size_t size, size_t count) {
    if (size != count)
        throw InputError(std::string(name) + " has " + std::to_string(size) + " values; expected " + std::to_string(count));
}

inline void check_rows(const char* name, std::span<const int64_t> rows, size_t count) {
    for (const int64_t row : rows)
        if (row < 0 || static_cast<uint64_t>(row) >= count)
            throw InputError(std::string(name) + " has row " + std::to_string(row) + ", but there are " + std::to_string(count) + " rows");
}

inline void check_temperatures(std::span<const float> temperatures) {
    for (const float temperature : temperatures)
        if (!(temperature >= 0) || std::isinf(temperature))
            throw InputError("temperature " + std::to_string(temperature) + " is not valid; expected 0 or more, and finite");
}

/// Calls work(i) for i = 0 .. count - 1.
template <class Work>
void for_each(size_t count, uint32_t threads, Work&& work) {
    if (threads == 0 || threads > 256) throw InputError("threads is " + std::to_string(threads) + "; expected 1 to 256");
    std::atomic<bool> stop = false;
    std::atomic<size_t> next = 0;
    in_parallel(static_cast<uint32_t>(std::clamp<size_t>(count, 1, threads)), stop, [&](uint32_t) {
        for (size_t i; !stop && (i = next++) < count;) work(i);
    });
}

}  // namespace foresay
