// The values of attention, mixed with the weights of the softmax, for one level; see csrc/cpu/attention_loops.hpp.
#pragma once

#include "cpu/attention_scores.hpp"

namespace foresay::attention {
namespace {

/// Adds weights times values, for tokens `first` up to `end`, one after the other, to some columns of some lanes. `values`
/// stands at token 0, `weights` at `first`; a row of `row` words holds one token, or two.
template <class Type, uint32_t kLanes, uint32_t kUnits>
FORESAY_INLINE void mix(const uint32_t* values, uint32_t row, uint32_t first, uint32_t end, const float* weights, float* mixed, uint32_t step) {
    constexpr uint32_t kVecs = kUnits * kParts;
    Vec sums[kLanes][kVecs];
#pragma GCC unroll 8
    for (uint32_t lane = 0; lane < kLanes; ++lane)
#pragma GCC unroll 16
        for (uint32_t i = 0; i < kVecs; ++i) sums[lane][i] = load<Vec>(mixed + lane * step + i * kWidth);
    const auto add = [&]<bool kSecond>(const uint32_t* from, const float* weight_of) __attribute__((always_inline)) {
        Vec columns[kVecs];
#pragma GCC unroll 16
        for (uint32_t i = 0; i < kVecs; ++i) columns[i] = Type::template column<kSecond>(from + i * kWidth);
#pragma GCC unroll 8
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            const Vec weight = all(weight_of[lane * kSegment]);
#pragma GCC unroll 16
            for (uint32_t i = 0; i < kVecs; ++i) sums[lane][i] = multiply_add(weight, columns[i], sums[lane][i]);
        }
    };
    const uint32_t* from = values + size_t{first / Type::kTokens} * row;
    if constexpr (Type::kTokens == 1) {
        for (uint32_t token = first; token < end; ++token, from += row, ++weights) add.template operator()<false>(from, weights);
    } else {
        if (first % 2 && first < end) add.template operator()<true>(from, weights), from += row, ++weights, ++first;
        for (; first + 1 < end; first += 2, from += row, weights += 2) {
            add.template operator()<false>(from, weights);
            add.template operator()<true>(from, weights + 1);
        }
        if (first < end) add.template operator()<false>(from, weights);
    }
#pragma GCC unroll 8
    for (uint32_t lane = 0; lane < kLanes; ++lane)
#pragma GCC unroll 16
        for (uint32_t i = 0; i < kVecs; ++i) store(mixed + lane * step + i * kWidth, sums[lane][i]);
}

template <class Type, uint32_t kUnits, uint32_t kMost = kMixLanes>
FORESAY_INLINE void mix_lanes(uint32_t lanes, const uint32_t* values, uint32_t row, uint32_t first, uint32_t end, const float* weights,
                              float* mixed, uint32_t step) {
    switch (lanes) {
#define FORESAY_CASE(n) \
    case n: if constexpr (n <= kMost) mix<Type, n, kUnits>(values, row, first, end, weights, mixed, step); break;
        FORESAY_CASE(1) FORESAY_CASE(2) FORESAY_CASE(3) FORESAY_CASE(4) FORESAY_CASE(5) FORESAY_CASE(6)
#undef FORESAY_CASE
    }
}

/// All columns of neighbouring lanes.
template <class Type>
void mix_columns(uint32_t lanes, const uint32_t* values, uint32_t columns, uint32_t first, uint32_t end, const float* weights, float* mixed,
                 uint32_t step) {
    constexpr uint32_t kUnits = kMixColumns / 16;
    uint32_t column = 0;
    for (; lanes <= kFewLanes && column + kFewColumns <= columns; column += kFewColumns)
        mix_lanes<Type, kFewColumns / 16, kFewLanes>(lanes, values + column, columns, first, end, weights, mixed + column, step);
    for (; column + kMixColumns <= columns; column += kMixColumns)
        mix_lanes<Type, kUnits>(lanes, values + column, columns, first, end, weights, mixed + column, step);
    for (; column < columns; column += 16) mix_lanes<Type, 1>(lanes, values + column, columns, first, end, weights, mixed + column, step);
}

#if FORESAY_TILES

constexpr uint32_t kMixBlock = 32;  // tokens that tiles mix together

/// Weights of whole blocks as sums of two bfloat16, which are off by 2^-16 of them at most: the upper half of a weight as it
/// is, and what is missing, rounded. The first ones of a segment stand before all of the second ones.
FORESAY_INLINE void halve(const float* weights, uint32_t first, uint32_t end, uint16_t* halves) {
    Words order;  // of each word of two vectors the upper half
    for (uint32_t i = 0; i < 16; ++i) order[i] = (4 * i + 1) | (4 * i + 3) << 16;
    const __m512i upper = reinterpret_cast<__m512i>(order);
    for (uint32_t at = first; at < end; at += kMixBlock) {
        Words high[2], low[2];
        for (uint32_t i = 0; i < 2; ++i) {
            const Vec weight = load<Vec>(weights + at + i * kWidth);
            high[i] = reinterpret_cast<Words>(weight) & 0xFFFF0000u;
            low[i] = reinterpret_cast<Words>(weight - reinterpret_cast<Vec>(high[i])) + 0x8000u;
        }
        store(halves + at, _mm512_permutex2var_epi16((__m512i)high[0], upper, (__m512i)high[1]));
        store(halves + kSegment + at, _mm512_permutex2var_epi16((__m512i)low[0], upper, (__m512i)low[1]));
    }
}

/// Adds `blocks` blocks of 32 tokens to up to 64 columns of those of `count` lanes whose bit is set. A block is 16 rows of
/// words, of which each column of tiles takes 16.
FORESAY_INLINE void mix_tiles(const uint32_t* values, uint32_t row, uint32_t columns, uint32_t blocks, const uint16_t* halves, float* mixed,
                              uint32_t step, uint32_t count, uint32_t taking) {
    alignas(64) float sums[kTileRows * 64];
    const auto each = [&](auto move) __attribute__((always_inline)) {
        for (uint32_t lane = 0; lane < count; ++lane)
            for (uint32_t i = 0; i < columns && taking >> lane & 1; i += kWidth) move(sums + lane * 64 + i, mixed + size_t{lane} * step + i);
    };
    each([](float* sum, float* from) __attribute__((always_inline)) { store(sum, load<Vec>(from)); });
    FORESAY_TILE_LOAD(0, sums, 256u);
    if (columns > 16) FORESAY_TILE_LOAD(1, sums + 16, 256u);
    if (columns > 32) FORESAY_TILE_LOAD(2, sums + 32, 256u);
    if (columns > 48) FORESAY_TILE_LOAD(3, sums + 48, 256u);
    for (uint32_t block = 0; block < blocks; ++block, values += size_t{kMixBlock / 2} * row, halves += kMixBlock) {
        FORESAY_TILE_LOAD(4, halves, 4 * kSegment);
        FORESAY_TILE_LOAD(6, halves + kSegment, 4 * kSegment);
#define FORESAY_ADD_BOTH(sum, shared)                       \
    if (columns > 16 * sum) {                               \
        FORESAY_TILE_LOAD(shared, values + 16 * sum, 4 * row); \
        FORESAY_TILE_ADD(sum, 4, shared);                   \
        FORESAY_TILE_ADD(sum, 6, shared);                   \
    }
        FORESAY_ADD_BOTH(0, 5) FORESAY_ADD_BOTH(1, 7) FORESAY_ADD_BOTH(2, 5) FORESAY_ADD_BOTH(3, 7)
#undef FORESAY_ADD_BOTH
    }
    FORESAY_TILE_STORE(0, sums, 256u);
    if (columns > 16) FORESAY_TILE_STORE(1, sums + 16, 256u);
    if (columns > 32) FORESAY_TILE_STORE(2, sums + 32, 256u);
    if (columns > 48) FORESAY_TILE_STORE(3, sums + 48, 256u);
    each([](float* sum, float* to) __attribute__((always_inline)) { store(to, load<Vec>(sum)); });
}

#endif

}  // namespace
}  // namespace foresay::attention
