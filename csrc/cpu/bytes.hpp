// Vectors of bytes of one level, for products of integers; see csrc/cpu/vectors.hpp.
//
// FORESAY_DOTS says how four products of bytes are added: 0 by other operations, 1 at once (NEON's dot product, VNNI).
#pragma once

#include "cpu/vectors.hpp"

namespace foresay {
namespace {

typedef uint8_t Bytes __attribute__((vector_size(4 * kWidth)));

/// Whether weights are multiplied as unsigned numbers, so that an offset is subtracted afterwards.
constexpr bool kUnsigned = kWidth > 4;
/// Whether those of 8 bits are, too.
constexpr bool kUnsignedBytes = kUnsigned && FORESAY_DOTS;
/// Whether four rows are multiplied side by side: add_block() is there.
constexpr bool kFours = FORESAY_WIDTH == 4 && FORESAY_DOTS;

#if FORESAY_WIDTH == 4 && FORESAY_FUSED

/// 16 numbers of a row.
struct Inputs {
    int8x16_t q;
    FORESAY_INLINE explicit Inputs(const int8_t* from) : q(vld1q_s8(from)) {}
};

/// sum + the products of each output's four weights and the four inputs of that place.
template <int kPlace>
FORESAY_INLINE Ints add_products(Ints sum, Bytes weights, const Inputs& x) {
    const auto w = reinterpret_cast<int8x16_t>(weights);
#if FORESAY_DOTS
    return reinterpret_cast<Ints>(vdotq_laneq_s32(reinterpret_cast<int32x4_t>(sum), w, x.q, kPlace));
#else
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x.q), kPlace));
    const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(four)), vmull_high_s8(w, four));  // 2 * 128 * 127 at most
    return reinterpret_cast<Ints>(vpadalq_s16(reinterpret_cast<int32x4_t>(sum), pairs));
#endif
}
template <int kPlace>
FORESAY_INLINE Ints add_byte_products(Ints sum, Bytes weights, const Inputs& x) { return add_products<kPlace>(sum, weights, x); }

#if FORESAY_DOTS
/// The same for four rows. In this order, which the compiler would not keep: each row's products wait for the one before.
template <int kPlace>
FORESAY_INLINE void add_products(Ints (&sums)[4], Bytes weights, const int8x16_t (&x)[4]) {
    asm volatile(
        "sdot %0.4s, %4.16b, %5.4b[%9]\n sdot %1.4s, %4.16b, %6.4b[%9]\n"
        "sdot %2.4s, %4.16b, %7.4b[%9]\n sdot %3.4s, %4.16b, %8.4b[%9]"
        : "+w"(sums[0]), "+w"(sums[1]), "+w"(sums[2]), "+w"(sums[3])
        : "w"(weights), "w"(x[0]), "w"(x[1]), "w"(x[2]), "w"(x[3]), "i"(kPlace));
}
/// Eight vectors of weights and the 32 inputs of four rows, which begin at `x`.
FORESAY_INLINE void add_block(Ints (&sums)[4], const Bytes* w, const int8_t* x) {
    const int8x16_t low[4] = {vld1q_s8(x), vld1q_s8(x + 32), vld1q_s8(x + 64), vld1q_s8(x + 96)};
    const int8x16_t high[4] = {vld1q_s8(x + 16), vld1q_s8(x + 48), vld1q_s8(x + 80), vld1q_s8(x + 112)};
    add_products<0>(sums, w[0], low), add_products<1>(sums, w[1], low), add_products<2>(sums, w[2], low), add_products<3>(sums, w[3], low);
    add_products<0>(sums, w[4], high), add_products<1>(sums, w[5], high), add_products<2>(sums, w[6], high), add_products<3>(sums, w[7], high);
}
#endif

// Converting integers takes as long as four products. Counting from 1.5 * 2^23, a sum is the lower bits of a float, and one
// subtraction makes it one: exactly, for sums below 2^22.
constexpr int32_t kFirst = 0x4B400000;
FORESAY_INLINE Ints start(int32_t) {
    alignas(16) static constexpr int32_t kFrom[4] = {kFirst, kFirst, kFirst, kFirst};
    Ints sum;
    asm volatile("ldr %q0, %1" : "=w"(sum) : "m"(kFrom));  // a copy of a register would take the place of a product
    return sum;
}
FORESAY_INLINE Vec as_floats(Ints sum) { return reinterpret_cast<Vec>(sum) - all(0x1.8p23f); }

#elif FORESAY_WIDTH == 4

struct Inputs {
    const int8_t* q;
    FORESAY_INLINE explicit Inputs(const int8_t* from) : q(from) {}
};
template <int kPlace>
FORESAY_INLINE Ints add_products(Ints sum, Bytes weights, const Inputs& x) {
    for (size_t out = 0; out < kWidth; ++out)
        for (size_t i = 0; i < 4; ++i) sum[out] += static_cast<int8_t>(weights[4 * out + i]) * x.q[4 * kPlace + i];
    return sum;
}
template <int kPlace>
FORESAY_INLINE Ints add_byte_products(Ints sum, Bytes weights, const Inputs& x) { return add_products<kPlace>(sum, weights, x); }
FORESAY_INLINE Ints start(int32_t from) { return from - Ints{}; }
FORESAY_INLINE Vec as_floats(Ints sum) { return __builtin_convertvector(sum, Vec); }

#else

struct Inputs {
    const int8_t* q;
    FORESAY_INLINE explicit Inputs(const int8_t* from) : q(from) {}
};
FORESAY_INLINE Ints four_of(const int8_t* from) {
    int32_t four;
    __builtin_memcpy(&four, from, sizeof four);
    return four - Ints{};
}

#if FORESAY_WIDTH == 16
#define FORESAY_PLAIN(x) reinterpret_cast<__m512i>(x)
#else
#define FORESAY_PLAIN(x) reinterpret_cast<__m256i>(x)
#endif

/// Weights from 0 to 63: a pair's products fit into 16 bits.
template <int kPlace>
FORESAY_INLINE Ints add_products(Ints sum, Bytes weights, const Inputs& x) {
    const Ints four = four_of(x.q + 4 * kPlace);
#if FORESAY_WIDTH == 16 && FORESAY_DOTS
    return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(FORESAY_PLAIN(sum), FORESAY_PLAIN(weights), FORESAY_PLAIN(four)));
#elif FORESAY_WIDTH == 16
    const __m512i pairs = _mm512_maddubs_epi16(FORESAY_PLAIN(weights), FORESAY_PLAIN(four));
    return sum + reinterpret_cast<Ints>(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#else
    const __m256i pairs = _mm256_maddubs_epi16(FORESAY_PLAIN(weights), FORESAY_PLAIN(four));
    return sum + reinterpret_cast<Ints>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}
/// Weights of 8 bits: unsigned where all four products are added at once; else a weight's sign is given to its input, so
/// that a pair's products fit: 2 * 128 * 127.
template <int kPlace>
FORESAY_INLINE Ints add_byte_products(Ints sum, Bytes weights, const Inputs& x) {
#if FORESAY_WIDTH == 16 && FORESAY_DOTS
    return add_products<kPlace>(sum, weights, x);
#elif FORESAY_WIDTH == 16
    const __m512i w = FORESAY_PLAIN(weights), four = FORESAY_PLAIN(four_of(x.q + 4 * kPlace));
    const __m512i turned = _mm512_mask_sub_epi8(four, _mm512_movepi8_mask(w), _mm512_setzero_si512(), four);
    return sum + reinterpret_cast<Ints>(_mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_abs_epi8(w), turned), _mm512_set1_epi16(1)));
#else
    const __m256i w = FORESAY_PLAIN(weights), four = FORESAY_PLAIN(four_of(x.q + 4 * kPlace));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(four, w));
    return sum + reinterpret_cast<Ints>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}
#undef FORESAY_PLAIN
FORESAY_INLINE Ints start(int32_t from) { return from - Ints{}; }
FORESAY_INLINE Vec as_floats(Ints sum) { return __builtin_convertvector(sum, Vec); }

#endif

#if FORESAY_WIDTH != 4 || !FORESAY_DOTS
FORESAY_INLINE void add_block(Ints (&)[4], const Bytes*, const int8_t*) {}  // never called
#endif

/// kWidth numbers of half precision.
FORESAY_INLINE Vec load_halves(const uint8_t* from) {
#if FORESAY_WIDTH == 16
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif FORESAY_WIDTH == 8
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif FORESAY_FUSED
    return reinterpret_cast<Vec>(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))));
#else
    const Words words = __builtin_convertvector(load<Halves>(from), Words);
    const Vec number = reinterpret_cast<Vec>((words & 0x7fff) << 13) * 0x1p112f;
    return reinterpret_cast<Vec>(reinterpret_cast<Words>(number) | (words & 0x8000) << 16);
#endif
}
/// kWidth bytes, signed or not, as floats.
template <class Byte>
FORESAY_INLINE Vec load_bytes(const uint8_t* from) {
    typedef Byte Small __attribute__((vector_size(kWidth)));
    return __builtin_convertvector(__builtin_convertvector(load<Small>(from), Ints), Vec);
}

}  // namespace
}  // namespace foresay
