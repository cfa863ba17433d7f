// The loops of a choice, for one level; see csrc/cpu/level.cpp.
#pragma once

#include "cpu/noise_kernel.hpp"
#include "cpu/vectors.hpp"

namespace foresay::noise {
namespace {

constexpr float kMaxGumbel = 36.74f;  // no noise is larger

#if FORESAY_WIDTH > 4

#if FORESAY_WIDTH == 16
typedef __m512i Packed;
#else
typedef __m256i Packed;
#endif
typedef uint64_t Wide __attribute__((vector_size(sizeof(Packed))));

/// Of the low halves.
FORESAY_INLINE Wide product(Wide a, Wide b) {
#if FORESAY_WIDTH == 16
    return reinterpret_cast<Wide>(_mm512_maskz_mul_epu32(0xFF, reinterpret_cast<Packed>(a), reinterpret_cast<Packed>(b)));  // GCC 12 warns of the other
#else
    return reinterpret_cast<Wide>(_mm256_mul_epu32(reinterpret_cast<Packed>(a), reinterpret_cast<Packed>(b)));
#endif
}

/// The first words of kLanes tokens, twice as fast as what GCC makes of the loop below: it does not find the instruction that
/// multiplies the low halves of 64-bit lanes, where the words can stay for all rounds (what is in the high halves does not
/// matter). The lanes hold the even tokens, then the odd ones, and are zipped at the end.
FORESAY_INLINE void first_words(const NoiseKey& key, uint32_t token, uint32_t* words) {
    constexpr uint32_t kLongs = sizeof(Wide) / sizeof(uint64_t);
    const Wide zero = {}, multiply0 = zero + kMultiply0, multiply1 = zero + kMultiply1;
    Wide even;
    for (uint32_t i = 0; i < kLongs; ++i) even[i] = token + 2 * i;
    for (size_t i = 0; i < kLanes; i += 2 * kLongs, even += 2 * kLongs) {
        Wide found[2];
        for (uint32_t odd = 0; odd < 2; ++odd) {
            uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
            Wide c0 = zero + key.position, c1 = even + odd, c2 = zero + key.stream, c3 = zero;
#pragma GCC unroll 10
            for (int round = 0; round < 10; ++round, k0 += kWeyl0, k1 += kWeyl1) {
                const Wide product0 = product(multiply0, c0), product1 = product(multiply1, c2);
                c0 = (product1 >> 32) ^ c1 ^ k0, c1 = product1;
                c2 = (product0 >> 32) ^ c3 ^ k1, c3 = product0;
            }
            found[odd] = c0;
        }
        store(words + i, (found[0] & UINT32_MAX) | found[1] << 32);
    }
}

#else

FORESAY_INLINE void first_words(const NoiseKey& key, uint32_t token, uint32_t* words) {
    for (uint32_t i = 0; i < kLanes; ++i) words[i] = philox(key, token + i).first;
}

#endif

/// No less than the Gumbel noise of any uniform whose first word this is, without a logarithm.
///
/// As -log(u) >= 1 - u, the noise is at most -log(1 - u). With h the first 31 bits of the word's complement, 1 - u is at
/// least h / 2^31. And log2((1 + f) 2^e) >= e + f, which is what the bits of a float say when they are read as an integer:
/// 2^23 (e + f + 127). So the noise is at most ln 2 (31 + 127 - bits / 2^23), 88 or more where h is 0.
///
/// The rounding of h (relative 2^-24), of bits, of the product and of the difference (each at most 158 ln 2 2^-24) and of
/// the constants come to less than 4e-5, and the logarithms of gumbel() to less than 1e-13: kSlack has room for them.
FORESAY_INLINE float most_gumbel(uint32_t first_word) {
    constexpr float kSlack = 1e-3f, kLn2 = 0.69314718f;
    const float rest = static_cast<float>(static_cast<int32_t>(~first_word >> 1));
    return (158 * kLn2 + kSlack) - kLn2 / (1 << 23) * static_cast<float>(__builtin_bit_cast(int32_t, rest));
}

/// The logits from `first` on, filled up with -inf in `space` where the row ends earlier.
FORESAY_INLINE const float* lanes_of(const Row& row, size_t first, float* space) {
    if (row.width - first >= kLanes) return row.logits + first;
    for (size_t i = 0; i < kLanes; ++i) space[i] = first + i < row.width ? row.logits[first + i] : -__builtin_inff();
    return space;
}

size_t above(const Row& row, size_t first, float least) noexcept {
    float space[kLanes];
    for (; first < row.width; first += kLanes) {
        const float* const lanes = lanes_of(row, first, space);
        int any = 0;
        for (size_t i = 0; i < kLanes; ++i) any |= !(lanes[i] <= least);
        if (any != 0) return first;
    }
    return row.width;
}

size_t above_with_noise(const Row& row, size_t first, float temperature, const NoiseKey& key, float floor, Lanes& lanes) noexcept {
    float space[kLanes];
    uint32_t words[kLanes];
    for (; first < row.width; first += kLanes) {
        const float* const logits = lanes_of(row, first, space);
        int any = 0;
        for (size_t i = 0; i < kLanes; ++i) {
            lanes.scaled[i] = logits[i] / temperature;
            any |= !(lanes.scaled[i] + kMaxGumbel < floor);
        }
        if (any == 0) continue;
        first_words(key, static_cast<uint32_t>(first), words);
        any = 0;
        for (size_t i = 0; i < kLanes; ++i) {
            lanes.most[i] = lanes.scaled[i] + most_gumbel(words[i]);
            any |= !(lanes.most[i] < floor);
        }
        if (any != 0) return first;
    }
    return row.width;
}

constexpr Kernel kKernel = {above, above_with_noise};

}  // namespace
}  // namespace foresay::noise
