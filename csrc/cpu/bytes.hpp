// Vectors of bytes of one level, for products of integers; see csrc/cpu/vectors.hpp.
//
// FORESAY_DOTS says how products of bytes are added: 0 by other operations, 1 four at once (NEON's dot product, VNNI), 2 also
// those of two rows and two outputs at once (i8mm).
#pragma once

#include "cpu/vectors.hpp"

namespace foresay {
namespace {

typedef uint8_t Bytes __attribute__((vector_size(4 * kWidth)));

/// Whether weights are multiplied as unsigned numbers, so that an offset is subtracted afterwards.
constexpr bool kUnsigned = kWidth > 4;
/// Whether those of 8 bits are, too.
constexpr bool kUnsignedBytes = kUnsigned && FORESAY_DOTS;
/// Whether four rows are multiplied side by side: add_four_rows() is there.
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

// Converting integers takes as long as four products. Counting from 1.5 * 2^23, a sum is the lower bits of a float, and one
// subtraction makes it one: exactly, for sums below 2^22.
constexpr int32_t kFirst = 0x4B400000;
alignas(16) constexpr int32_t kFrom[4] = {kFirst, kFirst, kFirst, kFirst};
FORESAY_INLINE Ints start(int32_t) {
    Ints sum;
    asm volatile("ldr %q0, %1" : "=w"(sum) : "m"(kFrom));  // a copy of a register would take the place of a product
    return sum;
}
FORESAY_INLINE Vec as_floats(Ints sum) { return reinterpret_cast<Vec>(sum) - all(0x1.8p23f); }

#if FORESAY_DOTS == 2
/// The block of four rows whose inputs begin at `x`: sums[r] += products * (scale * row_scales[r]), then += minimum * row_sums[r].
/// An instruction multiplies eight inputs of two rows with eight weights of two outputs each.
template <bool kMinimum>
FORESAY_INLINE void add_four_rows(Vec* sums, const Bytes* w, Vec scale, Vec minimum, const int8_t* x, const float* row_scales, const float* row_sums) {
    int32x4_t found[2][2];  // [rows 0 and 1, 2 and 3][outputs 0 and 1, 2 and 3]: row by row
    for (auto& rows : found)
        for (auto& outs : rows) outs = vdupq_n_s32(kFirst);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
        const auto first = reinterpret_cast<int32x4_t>(w[2 * i]), second = reinterpret_cast<int32x4_t>(w[2 * i + 1]);
        const int8x16_t outs[2] = {vreinterpretq_s8_s32(vzip1q_s32(first, second)), vreinterpretq_s8_s32(vzip2q_s32(first, second))};
#pragma GCC unroll 2
        for (size_t rows = 0; rows < 2; ++rows) {
            const int8_t* const from = x + 64 * rows + 8 * i;
            const int8x16_t both = vcombine_s8(vld1_s8(from), vld1_s8(from + 32));
            found[rows][0] = vmmlaq_s32(found[rows][0], both, outs[0]), found[rows][1] = vmmlaq_s32(found[rows][1], both, outs[1]);
        }
    }
#pragma GCC unroll 4
    for (size_t row = 0; row < 4; ++row) {
        const auto of01 = vreinterpretq_s64_s32(found[row / 2][0]), of23 = vreinterpretq_s64_s32(found[row / 2][1]);
        const Vec products = as_floats(reinterpret_cast<Ints>(row % 2 ? vzip2q_s64(of01, of23) : vzip1q_s64(of01, of23)));
        sums[row] = multiply_add(products, scale * all(row_scales[row]), sums[row]);
        if constexpr (kMinimum) sums[row] = multiply_add(minimum, all(row_sums[row]), sums[row]);
    }
}
#elif FORESAY_DOTS
/// The block of four rows whose inputs begin at `x`: sums[r] += products * (scale * row_scales[r]), then += minimum * row_sums[r].
/// One statement, since the compiler copies sums that a product waits for, and then takes a tenth longer. Integers are in v0 to
/// v3, inputs in v4 to v11.
template <bool kMinimum>
FORESAY_INLINE void add_four_rows(Vec* sums, const Bytes* w, Vec scale, Vec minimum, const int8_t* x, const float* row_scales, const float* row_sums) {
#define FORESAY_FOUR(weights, place, a, b, c, d)                                                                                             \
    "sdot v0.4s, %[" weights "].16b, v" a ".4b[" place "]\n sdot v1.4s, %[" weights "].16b, v" b ".4b[" place "]\n" \
    "sdot v2.4s, %[" weights "].16b, v" c ".4b[" place "]\n sdot v3.4s, %[" weights "].16b, v" d ".4b[" place "]\n"
#define FORESAY_LOW(weights, place) FORESAY_FOUR(weights, place, "4", "5", "6", "7")
#define FORESAY_HIGH(weights, place) FORESAY_FOUR(weights, place, "8", "9", "10", "11")
#define FORESAY_PRODUCTS                                                                                                                     \
    "ldr q0, [%[from]]\n ldr q1, [%[from]]\n ldr q2, [%[from]]\n ldr q3, [%[from]]\n"                                                       \
    "ldp q4, q8, [%[x]]\n ldp q5, q9, [%[x], #32]\n ldp q6, q10, [%[x], #64]\n ldp q7, q11, [%[x], #96]\n"                                  \
    FORESAY_LOW("w0", "0") FORESAY_LOW("w1", "1") FORESAY_LOW("w2", "2") FORESAY_LOW("w3", "3")                                              \
    FORESAY_HIGH("w4", "0") FORESAY_HIGH("w5", "1") FORESAY_HIGH("w6", "2") FORESAY_HIGH("w7", "3")                                          \
    "ldr q8, [%[row_scales]]\n"                                                                                                              \
    "fmul v4.4s, %[scale].4s, v8.s[0]\n fmul v5.4s, %[scale].4s, v8.s[1]\n fmul v6.4s, %[scale].4s, v8.s[2]\n fmul v7.4s, %[scale].4s, v8.s[3]\n" \
    "fsub v0.4s, v0.4s, %[first].4s\n fsub v1.4s, v1.4s, %[first].4s\n fsub v2.4s, v2.4s, %[first].4s\n fsub v3.4s, v3.4s, %[first].4s\n"   \
    "fmla %[s0].4s, v0.4s, v4.4s\n fmla %[s1].4s, v1.4s, v5.4s\n fmla %[s2].4s, v2.4s, v6.4s\n fmla %[s3].4s, v3.4s, v7.4s\n"
#define FORESAY_MINIMUMS                                                                                                                     \
    "ldr q9, [%[row_sums]]\n fmla %[s0].4s, %[minimum].4s, v9.s[0]\n fmla %[s1].4s, %[minimum].4s, v9.s[1]\n"                               \
    "fmla %[s2].4s, %[minimum].4s, v9.s[2]\n fmla %[s3].4s, %[minimum].4s, v9.s[3]\n"
#define FORESAY_SUMS [s0] "+&w"(sums[0]), [s1] "+&w"(sums[1]), [s2] "+&w"(sums[2]), [s3] "+&w"(sums[3])
#define FORESAY_GIVEN                                                                                                                        \
    [w0] "w"(w[0]), [w1] "w"(w[1]), [w2] "w"(w[2]), [w3] "w"(w[3]), [w4] "w"(w[4]), [w5] "w"(w[5]), [w6] "w"(w[6]), [w7] "w"(w[7]),          \
        [scale] "w"(scale), [first] "w"(all(0x1.8p23f)), [from] "r"(kFrom), [x] "r"(x), [row_scales] "r"(row_scales), "m"(kFrom),            \
        "m"(*reinterpret_cast<const int8_t(*)[4 * 32]>(x)), "m"(*reinterpret_cast<const float(*)[4]>(row_scales))
#define FORESAY_USED "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11"
    if constexpr (kMinimum)
        asm(FORESAY_PRODUCTS FORESAY_MINIMUMS
            : FORESAY_SUMS
            : FORESAY_GIVEN, [minimum] "w"(minimum), [row_sums] "r"(row_sums), "m"(*reinterpret_cast<const float(*)[4]>(row_sums))
            : FORESAY_USED);
    else asm(FORESAY_PRODUCTS : FORESAY_SUMS : FORESAY_GIVEN : FORESAY_USED);
#undef FORESAY_FOUR
#undef FORESAY_LOW
#undef FORESAY_HIGH
#undef FORESAY_PRODUCTS
#undef FORESAY_MINIMUMS
#undef FORESAY_SUMS
#undef FORESAY_GIVEN
#undef FORESAY_USED
}
#endif

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
template <bool>
FORESAY_INLINE void add_four_rows(Vec*, const Bytes*, Vec, Vec, const int8_t*, const float*, const float*) {}  // never called
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
/// The sum and the largest of the lanes.
FORESAY_INLINE int32_t sum_of(Ints lanes) {
#if FORESAY_WIDTH == 16
    return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(lanes));
#elif FORESAY_WIDTH == 4 && FORESAY_FUSED
    return vaddvq_s32(reinterpret_cast<int32x4_t>(lanes));
#else
    int32_t sum = 0;
    for (size_t i = 0; i < kWidth; ++i) sum += lanes[i];
    return sum;
#endif
}
FORESAY_INLINE int32_t largest_of(Ints lanes) {
#if FORESAY_WIDTH == 16
    return _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(lanes));
#elif FORESAY_WIDTH == 4 && FORESAY_FUSED
    return vmaxvq_s32(reinterpret_cast<int32x4_t>(lanes));
#else
    int32_t largest = lanes[0];
    for (size_t i = 1; i < kWidth; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
#endif
}
/// The lowest bytes of 16 integers. By name where a compiler would take them one by one.
FORESAY_INLINE void store_bytes(int8_t* to, const Ints (&from)[16 / kWidth]) {
#if FORESAY_WIDTH == 16
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(from[0])));
#elif FORESAY_WIDTH == 8
    const __m256i low = _mm256_and_si256(reinterpret_cast<__m256i>(from[0]), _mm256_set1_epi32(255));
    const __m256i high = _mm256_and_si256(reinterpret_cast<__m256i>(from[1]), _mm256_set1_epi32(255));
    const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(bytes));
#elif FORESAY_FUSED
    const auto pair = [&](size_t i) { return vcombine_s16(vmovn_s32(reinterpret_cast<int32x4_t>(from[i])), vmovn_s32(reinterpret_cast<int32x4_t>(from[i + 1]))); };
    vst1q_s8(to, vcombine_s8(vmovn_s16(pair(0)), vmovn_s16(pair(2))));
#else
    for (size_t i = 0; i < 16; ++i) to[i] = static_cast<int8_t>(from[i / kWidth][i % kWidth]);
#endif
}
/// kWidth bytes, signed or not, as floats. By name where a compiler would take them one by one.
template <class Byte>
FORESAY_INLINE Vec load_bytes(const uint8_t* from) {
    [[maybe_unused]] constexpr bool kSigned = static_cast<Byte>(-1) < 0;
#if FORESAY_WIDTH == 16
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif FORESAY_WIDTH == 8
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
    typedef Byte Small __attribute__((vector_size(kWidth)));
    return __builtin_convertvector(__builtin_convertvector(load<Small>(from), Ints), Vec);
#endif
}

}  // namespace
}  // namespace foresay
