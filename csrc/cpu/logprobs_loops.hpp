// The loops of log probabilities, for one level; see csrc/cpu/level.cpp.
#pragma once

#include "cpu/bfloat.hpp"
#include "cpu/doubles.hpp"
#include "cpu/kernels.hpp"

namespace foresay::logprobs {
namespace {

/// The logits from `first` on: where they are, or in `space` as floats, filled up with -inf where the row ends earlier.
FORESAY_INLINE const float* block_of(const Row& row, size_t first, float* space) {
    const size_t there = row.width - first < kBlock ? row.width - first : kBlock;
    if (row.logits && there == kBlock) return row.logits + first;
    if (there == kBlock) {
        for (size_t i = 0; i < kBlock; ++i) space[i] = wide(row.small[first + i]);
        return space;
    }
    for (size_t i = 0; i < there; ++i) space[i] = row.logits ? row.logits[first + i] : wide(row.small[first + i]);
    for (size_t i = there; i < kBlock; ++i) space[i] = -__builtin_inff();
    return space;
}

/// Whether a comparison is true of all.
FORESAY_INLINE bool every(Ints truths) {
    typedef uint64_t Pair __attribute__((vector_size(16)));
    Pair both = load<Pair>(&truths);
#pragma GCC unroll 3
    for (size_t i = 4; i < kWidth; i += 4) both &= load<Pair>(reinterpret_cast<const char*>(&truths) + 4 * i);
    return (both[0] & both[1]) == UINT64_MAX;
}

size_t above(const Row& row, size_t first, float least, float* block) noexcept {
    for (; first < row.width; first += kBlock) {
        const float* const found = block_of(row, first, block);
        Ints below = load<Vec>(found) <= all(least);
#pragma GCC unroll 32
        for (size_t i = kWidth; i < kBlock; i += kWidth) below &= load<Vec>(found + i) <= all(least);
        if (every(below)) continue;
        if (found != block) __builtin_memcpy(block, found, kBlock * sizeof(float));
        return first;
    }
    return row.width;
}

// Both powers are 0 below the smallest normal number. No x is NaN here, and to keep what is not too low takes fewer instructions
// than to drop what is. Polynomials go through e^r at Chebyshev's points, and are computed in pairs.

/// e^x for x <= 0 with a relative error of 5e-7, more than `exponential` and in fewer instructions.
FORESAY_INLINE Vec rough_power(Vec x) {
    constexpr float kRound = 0x1.8p23f, kLog2E = 0x1.715476p0f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f, kLeast = -87.3f;
    const Vec shifted = multiply_add(x, all(kLog2E), all(kRound)), k = shifted - all(kRound);
    const Vec r = multiply_add(k, all(-kLn2Low), multiply_add(k, all(-kLn2High), x)), r2 = r * r;
    const Vec high = multiply_add(r, all(0.008357204496860504f), all(0.04183383658528328f));
    const Vec low = multiply_add(r, all(0.16666631400585175f), all(0.49999749660491943f));
    const Vec near_one = multiply_add(r2, multiply_add(r2, high, low), r + all(1.0f));
    const auto scaled = reinterpret_cast<Vec>(reinterpret_cast<Words>(near_one) + (reinterpret_cast<Words>(shifted) << 23));
    return x >= all(kLeast) ? scaled : Vec{};
}

double rough_sum(const Row& row, float top) noexcept {
    constexpr size_t kParts = 4;  // that are added to in turn, so that none waits for the one before
    float space[kBlock];
    double total = 0;
    for (size_t first = 0; first < row.width; first += kBlock) {
        const float* const block = block_of(row, first, space);
        Vec parts[kParts] = {};
        for (size_t i = 0; i < kBlock; i += kParts * kWidth)
#pragma GCC unroll 4
            for (size_t j = 0; j < kParts; ++j) parts[j] += rough_power(load<Vec>(block + i + j * kWidth) - all(top));
        const Vec sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        for (size_t i = 0; i < kWidth; ++i) total += double{sum[i]};
    }
    return total;
}

/// e^x for x <= 0 with a relative error of 2e-15, and one of 2e-16 times x, which matters little where e^x is small.
///
/// As `power`, but k times ln 2 is rounded once, and the polynomial has one degree less: fewer instructions.
FORESAY_INLINE Doubles power_of(Doubles x) {
    constexpr double kRound = 0x1.8p52, kLog2E = 0x1.71547652b82fep0, kLn2 = 0x1.62e42fefa39efp-1, kLeast = -708.39;
    const Doubles shifted = multiply_add(x, all(kLog2E), all(kRound)), k = shifted - all(kRound);
    const Doubles r = multiply_add(k, all(-kLn2), x), r2 = r * r, r4 = r2 * r2;
    const Doubles low = multiply_add(r2, multiply_add(r, all(0.1666666666664829), all(0.5)), r + all(1.0));
    const Doubles middle = multiply_add(r2, multiply_add(r, all(0.00019841208732536384), all(0.0013888888905881542)),
                                        multiply_add(r, all(0.008333333353729397), all(0.04166666666665136)));
    const Doubles high = multiply_add(r2, all(2.761380686153829e-07), multiply_add(r, all(2.762511557828763e-06), all(2.4801536388690766e-05)));
    const Doubles near_one = multiply_add(r4, multiply_add(r4, high, middle), low);
    const auto scaled = reinterpret_cast<Doubles>(reinterpret_cast<Longs>(near_one) + (reinterpret_cast<Longs>(shifted) << 52));
    return x >= all(kLeast) ? scaled : Doubles{};
}

double sum(const Row& row, float temperature, double top) noexcept {
    constexpr size_t kSums = 8, kEach = kWidth / 2, kParts = kSums / kEach;  // as many sums on every level
    float space[kBlock];
    double below[kBlock];
    Doubles totals[kParts] = {};
    for (size_t first = 0; first < row.width; first += kBlock) {
        const float* const block = block_of(row, first, space);
        if (temperature == 1)  // the division would change nothing
            for (size_t i = 0; i < kBlock; ++i) below[i] = double{block[i]} - top;
        else
            for (size_t i = 0; i < kBlock; ++i) below[i] = double{block[i] / temperature} - top;
        // A block by itself, so that the sums of few numbers are added up: less is rounded.
        Doubles parts[kParts] = {};
        for (size_t i = 0; i < kBlock; i += kSums)
#pragma GCC unroll 4
            for (size_t j = 0; j < kParts; ++j) parts[j] += power_of(load<Doubles>(below + i + j * kEach));
        for (size_t j = 0; j < kParts; ++j) totals[j] += parts[j];
    }
    double sums[kSums];
    for (size_t j = 0; j < kParts; ++j) store(sums + j * kEach, totals[j]);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

constexpr Kernel kKernel = {above, rough_sum, sum};

}  // namespace
}  // namespace foresay::logprobs
