#include "sampling/masks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace foresay {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity(), kInfinite = std::numeric_limits<float>::infinity();

constexpr std::array kBits = [] {
    std::array<uint32_t, 32> bits{};
    for (uint32_t i = 0; i < bits.size(); ++i) bits[i] = uint32_t{1} << i;
    return bits;
}();

/// The logits of one word's tokens. Without branches and shifts, so that the compiler makes it vectors.
void forbid_word(float* logits, uint32_t word) {
    for (size_t i = 0; i < kBits.size(); ++i) {
        const bool never = ((word & kBits[i]) == 0) & (logits[i] < kInfinite);
        logits[i] = never ? kNever : logits[i];
    }
}

void forbid_row(float* logits, size_t width, const int32_t* mask, size_t words) {
    for (size_t first = 0; first < width; first += 32) {
        const auto word = first / 32 < words ? static_cast<uint32_t>(mask[first / 32]) : uint32_t{0};
        if (word == UINT32_MAX) continue;
        if (first + 32 <= width) forbid_word(logits + first, word);
        else
            for (size_t i = 0; first + i < width; ++i)
                if ((word & kBits[i]) == 0 && logits[first + i] < kInfinite) logits[first + i] = kNever;
    }
}

}  // namespace

void forbid(const Matrix<float>& logits, std::span<const int64_t> rows, const Matrix<const int32_t>& masks, uint32_t threads) {
    check_size("masks", masks.count, rows.size());
    check_rows("rows", rows, logits.count);
    std::vector<int64_t> sorted(rows.begin(), rows.end());
    std::sort(sorted.begin(), sorted.end());
    if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
        throw InputError("rows has row ", *twice, " twice; expected each row once");
    for_each(rows.size(), threads, [&](size_t i) {
        forbid_row(logits.row(static_cast<size_t>(rows[i])), logits.width, masks.row(i), masks.width);
    });
}

}  // namespace foresay
