// Vectors of one level, for a file that is compiled for it and has defined
//   FORESAY_WIDTH  floats of a vector: 16, 8 or 4
//   FORESAY_FUSED  whether it multiplies and adds at once, with one rounding
//
// In an unnamed namespace and without the standard library, for the reason that csrc/cpu/level.cpp gives.
#pragma once

#include <cstddef>
#include <cstdint>

#if FORESAY_WIDTH > 4
#include <immintrin.h>
#elif FORESAY_FUSED
#include <arm_neon.h>
#endif

#include "inline.hpp"

namespace foresay {
namespace {

constexpr uint32_t kWidth = FORESAY_WIDTH;
typedef float Vec __attribute__((vector_size(4 * kWidth)));
typedef uint32_t Words __attribute__((vector_size(4 * kWidth)));
typedef int32_t Ints __attribute__((vector_size(4 * kWidth)));

template <class V, class T>
FORESAY_INLINE V load(const T* from) {
    V out;
    __builtin_memcpy(&out, from, sizeof(V));
    return out;
}
template <class V, class T>
FORESAY_INLINE void store(T* to, V value) { __builtin_memcpy(to, &value, sizeof(V)); }
FORESAY_INLINE Vec all(float value) { return value - Vec{}; }  // unlike a sum with 0, no operation
FORESAY_INLINE Words all(uint32_t value) { return value - Words{}; }

FORESAY_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
#if FORESAY_WIDTH == 16
    return _mm512_fmadd_ps(a, b, c);
#elif FORESAY_WIDTH == 8
    return _mm256_fmadd_ps(a, b, c);
#elif FORESAY_FUSED
    return reinterpret_cast<Vec>(vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
#else
    return a * b + c;
#endif
}
/// a times the number of that place among four, plus c. NEON takes it out of a vector that is there already.
template <int kPlace>
FORESAY_INLINE Vec multiply_add(Vec a, const float* four, Vec c) {
#if FORESAY_FUSED && FORESAY_WIDTH == 4
    return reinterpret_cast<Vec>(vfmaq_laneq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a), vld1q_f32(four), kPlace));
#else
    return multiply_add(a, all(four[kPlace]), c);
#endif
}
FORESAY_INLINE double multiply_add(double a, double b, double c) {
#if FORESAY_FUSED
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}
FORESAY_INLINE Vec highest(Vec a, Vec b) { return a > b ? a : b; }

/// The two bfloat16 of each word.
FORESAY_INLINE Vec low_of(Words words) { return reinterpret_cast<Vec>(words << 16); }
FORESAY_INLINE Vec high_of(Words words) { return reinterpret_cast<Vec>(words & 0xFFFF0000u); }

/// e^x for x <= 0; 0 where it would be below the smallest normal number. With k = x / ln 2 to the nearest whole number,
/// e^x = 2^k e^r and |r| <= ln 2 / 2; adding kRound leaves k in the low bits. The polynomial goes through e^r at
/// Chebyshev's points and is off by 1e-8.
FORESAY_INLINE Vec exponential(Vec x) {
    constexpr float kRound = 0x1.8p23f, kLog2E = 0x1.715476p0f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f, kLeast = -87.3f;
    const Vec shifted = multiply_add(x, all(kLog2E), all(kRound)), k = shifted - all(kRound);
    const Vec r = multiply_add(k, all(-kLn2Low), multiply_add(k, all(-kLn2High), x));
    Vec p = all(0.0013926213141530752f);
    p = multiply_add(p, r, all(0.008363203145563602f));
    p = multiply_add(p, r, all(0.041666556149721146f));
    p = multiply_add(p, r, all(0.16666576266288757f));
    p = multiply_add(p, r, all(0.5f));
    const Vec near_one = multiply_add(r * r, p, r) + all(1.0f);
    const Vec power = reinterpret_cast<Vec>(reinterpret_cast<Words>(near_one) + (reinterpret_cast<Words>(shifted) << 23));
    return x < all(kLeast) ? Vec{} : power;
}
FORESAY_INLINE float exponential(float x) { return exponential(all(x))[0]; }

/// x / (1 + e^-t), without a power of more than 1.
FORESAY_INLINE Vec gated(Vec x, Vec t) {
    const Words sign = reinterpret_cast<Words>(t) & 0x80000000u;
    const Vec power = exponential(reinterpret_cast<Vec>(reinterpret_cast<Words>(t) | 0x80000000u));
    return (sign != 0 ? x * power : x) / (all(1.0f) + power);
}

typedef uint16_t Halves __attribute__((vector_size(2 * kWidth)));
/// bfloat16 as floats.
FORESAY_INLINE Vec widened(Halves numbers) { return reinterpret_cast<Vec>(__builtin_convertvector(numbers, Words) << 16); }

}  // namespace
}  // namespace foresay
