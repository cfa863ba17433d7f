// The numbers of attention, its scores and the softmax over them, for one level; see csrc/cpu/attention_loops.hpp.
#pragma once

#include "cpu/attention_kernel.hpp"

#include "cpu/vectors.hpp"
#if FORESAY_TILES
#include "cpu/tiles.hpp"
#endif

namespace foresay::attention {
namespace {

constexpr uint32_t kParts = kKeyBlock / kWidth;

// How many lanes and blocks of keys, or columns, share registers.
constexpr uint32_t kScoreLanes = kWidth == 16 ? 6 : kWidth == 8 ? 4 : 5, kScoreBlocks = kWidth == 16 ? 4 : 1;
constexpr uint32_t kTileRows = 16;  // lanes, where there are tiles
constexpr uint32_t kMixLanes = kWidth == 16 ? 6 : kWidth == 8 ? 2 : 5, kMixColumns = kWidth == 16 ? 64 : kWidth == 8 ? 32 : 16;
constexpr uint32_t kFewLanes = kWidth == 4 ? 2 : 0, kFewColumns = 32;  // with at most this number of lanes there is room for more columns

FORESAY_INLINE uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
FORESAY_INLINE uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }

/// cap tanh(x / cap).
FORESAY_INLINE Vec capped(Vec x, float cap) {
    const Vec scaled = x / all(cap);
    const Words sign = reinterpret_cast<Words>(scaled) & 0x80000000u;
    const Vec size = reinterpret_cast<Vec>(reinterpret_cast<Words>(scaled) ^ sign);
    const Vec power = exponential(size * all(-2.0f));
    const Vec bent = (all(1.0f) - power) / (all(1.0f) + power) * all(cap);
    return reinterpret_cast<Vec>(reinterpret_cast<Words>(bent) | sign);
}

/// The 16 parts as one, in halves: a fixed order.
template <class Join>
FORESAY_INLINE float folded(const Vec (&parts)[kParts], Join join) {
    float lanes[kKeyBlock];
    for (uint32_t i = 0; i < kParts; ++i) store(lanes + i * kWidth, parts[i]);
    for (uint32_t half = kKeyBlock / 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; ++i) lanes[i] = join(lanes[i], lanes[i + half]);
    return lanes[0];
}

// ---- one type of number or the other -------------------------------------------------------------------------------

struct Float {
    typedef float Number;
    static constexpr bool kSmall = false, kTiles = false;
    static constexpr uint32_t kTokens = 1;  // whose values share a row of words
    /// A query as `add` needs it.
    FORESAY_INLINE static void pack(const Number* query, uint32_t dim, uint32_t, float* to) {
        for (uint32_t i = 0; i < dim; ++i) to[i] = query[i];
    }
    FORESAY_INLINE static Vec add(Vec sum, Words key, const float* query, uint32_t word) {
        return multiply_add(reinterpret_cast<Vec>(key), all(query[word]), sum);
    }
    template <bool>
    FORESAY_INLINE static Vec column(const uint32_t* values) { return load<Vec>(values); }
    FORESAY_INLINE static void write(Number* out, float value) { *out = value; }
};

struct Bfloat {
    typedef uint16_t Number;
    static constexpr bool kSmall = true, kTiles = FORESAY_TILES;
    static constexpr uint32_t kTokens = 2;
#if FORESAY_TILES
    FORESAY_INLINE static void pack(const Number* query, uint32_t dim, uint32_t words, float* to) {
        for (uint32_t i = dim / 2; i < words; ++i) to[i] = 0;
        __builtin_memcpy(to, query, dim * sizeof(Number));
    }
#else
    FORESAY_INLINE static void pack(const Number* query, uint32_t dim, uint32_t words, float* to) {
        for (uint32_t i = 0; i < 2 * words; ++i) {
            const uint32_t word = i < dim ? uint32_t{query[i]} << 16 : 0;
            __builtin_memcpy(&to[i], &word, sizeof(word));
        }
    }
    FORESAY_INLINE static Vec add(Vec sum, Words key, const float* query, uint32_t word) {
        return multiply_add<1>(high_of(key), query + 2 * word, multiply_add<0>(low_of(key), query + 2 * word, sum));
    }
#endif
    template <bool kSecond>
    FORESAY_INLINE static Vec column(const uint32_t* values) { return kSecond ? high_of(load<Words>(values)) : low_of(load<Words>(values)); }
    /// Rounded to the nearest, of two the even one.
    FORESAY_INLINE static void write(Number* out, float value) {
        uint32_t bits;
        __builtin_memcpy(&bits, &value, sizeof(bits));
        *out = value != value ? 0x7FC0 : static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
};

// ---- scores --------------------------------------------------------------------------------------------------------

/// The scores of some lanes with some blocks of keys.
template <class Type, uint32_t kLanes, uint32_t kBlocks>
FORESAY_INLINE void score(const uint32_t* keys, uint32_t key_words, const float* queries, uint32_t query_step, float* scores) {
    Vec sums[kLanes][kBlocks * kParts] = {};
    for (uint32_t word = 0; word < key_words; ++word) {
        Words key[kBlocks * kParts];
#pragma GCC unroll 8
        for (uint32_t block = 0; block < kBlocks; ++block)
#pragma GCC unroll 8
            for (uint32_t i = 0; i < kParts; ++i)
                key[block * kParts + i] = load<Words>(keys + (size_t{block} * key_words + word) * kKeyBlock + i * kWidth);
#pragma GCC unroll 8
        for (uint32_t lane = 0; lane < kLanes; ++lane)
#pragma GCC unroll 16
            for (uint32_t i = 0; i < kBlocks * kParts; ++i)
                sums[lane][i] = Type::add(sums[lane][i], key[i], queries + lane * query_step, word);
    }
#pragma GCC unroll 8
    for (uint32_t lane = 0; lane < kLanes; ++lane)
#pragma GCC unroll 16
        for (uint32_t i = 0; i < kBlocks * kParts; ++i) store(scores + lane * kSegment + i * kWidth, sums[lane][i]);
}

template <class Type, uint32_t kBlocks>
FORESAY_INLINE void score_lanes(uint32_t lanes, const uint32_t* keys, uint32_t key_words, const float* queries, uint32_t query_step,
                                float* scores) {
    switch (lanes) {
#define FORESAY_CASE(n) \
    case n: if constexpr (n <= kScoreLanes) score<Type, n, kBlocks>(keys, key_words, queries, query_step, scores); break;
        FORESAY_CASE(1) FORESAY_CASE(2) FORESAY_CASE(3) FORESAY_CASE(4) FORESAY_CASE(5) FORESAY_CASE(6)
#undef FORESAY_CASE
    }
}

#if FORESAY_TILES

// The rows of tiles are lanes: 4 and 6 hold queries or weights, 5 and 7 keys or values. A block of keys is a row of tiles as
// it stands in memory, and so is a block of values.

/// The scores of as many lanes as the tiles have with `kBlocks` blocks of keys; `step` floats from lane to lane.
template <uint32_t kBlocks>
FORESAY_INLINE void score_tiles(const uint32_t* keys, uint32_t key_words, const float* queries, uint32_t query_step, float* scores,
                                uint32_t step) {
    const size_t block = size_t{key_words} * kKeyBlock;
    const uint32_t lane_bytes = 4 * query_step;
    FORESAY_TILE_ZERO(0);
    if constexpr (kBlocks > 1) FORESAY_TILE_ZERO(1);
    if constexpr (kBlocks > 2) FORESAY_TILE_ZERO(2);
    if constexpr (kBlocks > 3) FORESAY_TILE_ZERO(3);
    for (uint32_t word = 0; word < key_words; word += 16, keys += 16 * kKeyBlock) {
        FORESAY_TILE_LOAD(4, queries + word, lane_bytes);
        FORESAY_TILE_LOAD(5, keys, 64u);
        FORESAY_TILE_ADD(0, 4, 5);
        if constexpr (kBlocks > 1) { FORESAY_TILE_LOAD(7, keys + block, 64u); FORESAY_TILE_ADD(1, 4, 7); }
        if constexpr (kBlocks > 2) { FORESAY_TILE_LOAD(5, keys + 2 * block, 64u); FORESAY_TILE_ADD(2, 4, 5); }
        if constexpr (kBlocks > 3) { FORESAY_TILE_LOAD(7, keys + 3 * block, 64u); FORESAY_TILE_ADD(3, 4, 7); }
    }
    FORESAY_TILE_STORE(0, scores, 4 * step);
    if constexpr (kBlocks > 1) FORESAY_TILE_STORE(1, scores + kKeyBlock, 4 * step);
    if constexpr (kBlocks > 2) FORESAY_TILE_STORE(2, scores + 2 * kKeyBlock, 4 * step);
    if constexpr (kBlocks > 3) FORESAY_TILE_STORE(3, scores + 3 * kKeyBlock, 4 * step);
}

#endif

/// The scores of neighbouring lanes with some blocks of keys that follow each other.
template <class Type>
void score_blocks(uint32_t lanes, const Block& b, uint32_t block, uint32_t end, const float* queries, uint32_t query_step, float* scores) {
    const size_t words = size_t{b.key_words} * kKeyBlock;
    for (; block + kScoreBlocks <= end; block += kScoreBlocks, scores += kScoreBlocks * kKeyBlock) {
#if FORESAY_TILES
        if constexpr (Type::kTiles) score_tiles<kScoreBlocks>(b.keys + block * words, b.key_words, queries, query_step, scores, kSegment);
        else
#endif
            score_lanes<Type, kScoreBlocks>(lanes, b.keys + block * words, b.key_words, queries, query_step, scores);
    }
    for (; block < end; ++block, scores += kKeyBlock) {
#if FORESAY_TILES
        if constexpr (Type::kTiles) score_tiles<1>(b.keys + block * words, b.key_words, queries, query_step, scores, kSegment);
        else
#endif
            score_lanes<Type, 1>(lanes, b.keys + block * words, b.key_words, queries, query_step, scores);
    }
}

// ---- softmax -------------------------------------------------------------------------------------------------------

/// Makes weights of the scores from `first` up to `end` (of a segment), 0 of those around them that share their vectors.
FORESAY_INLINE void softmax(float* scores, uint32_t first, uint32_t end, float scaling, float softcap, float& highest_score, float& sum) {
    constexpr float kNone = -__builtin_inff();
    Words index[kParts];
    for (uint32_t i = 0; i < kParts; ++i)
        for (uint32_t j = 0; j < kWidth; ++j) index[i][j] = i * kWidth + j;
    Vec tops[kParts];
    for (auto& top : tops) top = all(kNone);
    const uint32_t begin = first / kKeyBlock * kKeyBlock;
    for (uint32_t at = begin; at < end; at += kKeyBlock)
        for (uint32_t i = 0; i < kParts; ++i) {
            Vec score = load<Vec>(scores + at + i * kWidth) * all(scaling);
            if (softcap != 0) score = capped(score, softcap);
            if (at < first || at + kKeyBlock > end) {
                const Words place = index[i] + at;
                score = (place >= all(first)) & (place < all(end)) ? score : all(kNone);
            }
            store(scores + at + i * kWidth, score);
            tops[i] = highest(score, tops[i]);
        }
    highest_score = folded(tops, [](float a, float b) __attribute__((always_inline)) { return a > b ? a : b; });
    const Vec reference = all(highest_score == kNone ? 0.0f : highest_score);
    Vec sums[kParts] = {};
    for (uint32_t at = begin; at < end; at += kKeyBlock)
        for (uint32_t i = 0; i < kParts; ++i) {
            const Vec weight = exponential(load<Vec>(scores + at + i * kWidth) - reference);
            store(scores + at + i * kWidth, weight);
            sums[i] += weight;
        }
    sum = folded(sums, [](float a, float b) __attribute__((always_inline)) { return a + b; });
}

}  // namespace
}  // namespace foresay::attention
