// What functions over many rows share: logits, what became of each row, checks, and the threads.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "checks.hpp"
#include "cpu/levels.hpp"
#include "threads.hpp"

namespace foresay {

/// Logits in float32 or bfloat16. Valid during one call.
struct LogitRows {
    const float* logits = nullptr;  // [count, width], or null:
    const uint16_t* small = nullptr;  // the same in bfloat16
    size_t count = 0, width = 0;

    logprobs::Row row(size_t number) const noexcept {
        const size_t at = number * width;
        return {logits ? logits + at : nullptr, small ? small + at : nullptr, width};
    }
};

/// What became of a row of logits; RowStatus of src/foresay/sampling/processors.py says what each means.
struct RowStatus {
    enum Value : uint8_t { kGood, kNotReached, kNan, kInfinite, kEmpty };
};

inline void check_width(const LogitRows& rows) {
    if (rows.width == 0 || rows.width > INT32_MAX) throw InputError("a row has ", rows.width, " logits; expected 1 to 2147483647");
}

inline void check_rows(const char* name, std::span<const int64_t> rows, size_t count) {
    for (const int64_t row : rows)
        if (row < 0 || static_cast<uint64_t>(row) >= count) throw InputError(name, " has row ", row, ", but there are ", count, " rows");
}

inline void check_temperatures(std::span<const float> temperatures) {
    for (const float temperature : temperatures)
        if (!(temperature >= 0) || std::isinf(temperature))
            throw InputError("temperature ", temperature, " is not valid; expected 0 or more, and finite");
}

/// Calls work(i) for i = 0 .. count - 1.
template <class Work>
void for_each(size_t count, uint32_t threads, Work&& work) {
    check_threads(threads);
    in_parallel(threads, count, [&](size_t i, uint32_t) { work(i); });
}

}  // namespace foresay
