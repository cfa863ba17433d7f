// Sums of doubles, and e^x of them, for one level; see csrc/cpu/level.cpp. Sums go over a fixed number of lanes, whatever the
// machine's vectors are, which are folded in a fixed order.
#pragma once

#include "cpu/vectors.hpp"

namespace foresay {
namespace {

typedef double Doubles __attribute__((vector_size(4 * kWidth)));
typedef uint64_t Longs __attribute__((vector_size(4 * kWidth)));

FORESAY_INLINE Doubles all(double value) { return value - Doubles{}; }
FORESAY_INLINE Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
#if FORESAY_WIDTH == 16
    return _mm512_fmadd_pd(a, b, c);
#elif FORESAY_WIDTH == 8
    return _mm256_fmadd_pd(a, b, c);
#elif FORESAY_FUSED
    return reinterpret_cast<Doubles>(vfmaq_f64(reinterpret_cast<float64x2_t>(c), reinterpret_cast<float64x2_t>(a), reinterpret_cast<float64x2_t>(b)));
#else
    return a * b + c;
#endif
}

constexpr size_t kLanes = 32;  // values that are looked at together; lane i of a sum has every kLanes-th value from i on

/// The sum of the lanes, in halves: a fixed order.
FORESAY_INLINE double folded(double* lanes) {
    for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

/// e^x for x <= 0; 0 where that is below about the smallest normal number. Without branches or tables, so that the loops
/// around it become vectors, which those around std::exp do not.
///
/// With k = x / ln 2 to the nearest whole number, e^x = 2^k e^r, and |r| <= ln 2 / 2. Adding kRound leaves k in the low
/// bits. ln 2 is in two parts, the first short enough that k times it is exact. The polynomial goes through e^r at
/// Chebyshev's points, so that it is off by 0.15 units in the last place at most; roundings are the rest of the error.
FORESAY_INLINE double power(double x) {
    constexpr double kRound = 0x1.8p52, kLog2E = 0x1.71547652b82fep0, kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
    constexpr double kLeast = -708.39;  // here 2^k e^r is still normal, as adding to the exponent's bits needs it to be
    const double shifted = multiply_add(x, kLog2E, kRound), k = shifted - kRound;
    const double r = multiply_add(k, -kLn2Low, multiply_add(k, -kLn2High, x));
    double p = 2.510038549551032e-08;
    p = multiply_add(p, r, 2.7620088445409746e-07);
    p = multiply_add(p, r, 2.7557268459997064e-06);
    p = multiply_add(p, r, 2.4801521295954376e-05);
    p = multiply_add(p, r, 0.00019841269863053618);
    p = multiply_add(p, r, 0.0013888888917213717);
    p = multiply_add(p, r, 0.008333333333330062);
    p = multiply_add(p, r, 0.04166666666662413);
    p = multiply_add(p, r, 0.16666666666666669);
    p = multiply_add(p, r, 0.5000000000000001);
    const double near_one = 1 + multiply_add(r * r, p, r);
    const double scaled = __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, near_one) + (__builtin_bit_cast(uint64_t, shifted) << 52));
    return x < kLeast ? 0 : scaled;
}

}  // namespace
}  // namespace foresay
