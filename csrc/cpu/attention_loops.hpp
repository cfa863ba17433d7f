// The loops of attention, for one level; see csrc/cpu/level.hpp.
//
// The bits of a lane depend on its query and on the keys and values it sees, in text order, and on nothing else:
// - a score is one chain of sums over the key's numbers;
// - a segment is 256 tokens, counted from the beginning of the text. Its highest score is a maximum; its sum of weights
//   has 16 parts, by text position modulo 16, each one chain; its mixed values are one chain for each column, in which
//   tiles, where there are any, take the place of 32 tokens at a time, counted from the beginning of the text;
// - segments are joined one after the other.
// However lanes are grouped, all of this is done with the same operations. What a lane does not see is never added to it.
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
constexpr uint32_t kScoreLanes = kWidth == 16 ? 6 : 4, kScoreBlocks = kWidth == 16 ? 4 : 1;
constexpr uint32_t kTileRows = 16;  // lanes, where there are tiles
constexpr uint32_t kMixLanes = kWidth == 16 ? 6 : 2, kMixColumns = kWidth == 16 ? 64 : 32;

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
        return multiply_add(high_of(key), all(query[2 * word + 1]), multiply_add(low_of(key), all(query[2 * word]), sum));
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

// ---- weights -------------------------------------------------------------------------------------------------------

/// Makes weights of the scores from `first` up to `end` (of a segment), 0 of those around them that share their vectors.
FORESAY_INLINE void weigh(float* scores, uint32_t first, uint32_t end, float scaling, float softcap, float& highest_score, float& sum) {
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

// ---- values --------------------------------------------------------------------------------------------------------

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

template <class Type, uint32_t kUnits>
FORESAY_INLINE void mix_lanes(uint32_t lanes, const uint32_t* values, uint32_t row, uint32_t first, uint32_t end, const float* weights,
                              float* mixed, uint32_t step) {
    switch (lanes) {
#define FORESAY_CASE(n) \
    case n: if constexpr (n <= kMixLanes) mix<Type, n, kUnits>(values, row, first, end, weights, mixed, step); break;
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

// ---- a block -------------------------------------------------------------------------------------------------------

/// What one row sees of one segment, relative to its beginning.
struct Part {
    uint32_t first, straight, end;  // first <= straight <= end; nothing is seen where first == end
    const uint32_t* rest;           // the slot of position `straight`
};

FORESAY_INLINE Part part_of(const Row& row, uint32_t segment) {
    const uint32_t begin = segment * kSegment, stop = begin + kSegment;
    const uint32_t first = most(row.first, begin), end = most(first, least(row.end, stop));
    const uint32_t straight = most(first, least(row.straight, end));
    return {first - begin, straight - begin, end - begin, straight >= row.straight ? row.rest + (straight - row.straight) : row.rest};
}

struct Space {
    float *scores, *queries, *partials, *joined;
    uint16_t* halves;  // where there are tiles
    uint32_t query_step, columns;
};

template <class Type>
FORESAY_INLINE Space space_of(const Block& b, float* scratch) {
    Space s;
    s.columns = columns_of(b, Type::kSmall);
    s.query_step = query_of(b.key_dim);
    s.scores = scratch;
    const size_t room = lanes_of(b) + kSpare;  // tiles may take more lanes than there are
    s.queries = s.scores + room * kSegment;
    s.partials = s.queries + room * s.query_step;
    s.joined = s.partials + size_t{lanes_of(b)} * partial_of(s.columns);
    s.halves = reinterpret_cast<uint16_t*>(s.joined + size_t{lanes_of(b)} * partial_of(s.columns));
    return s;
}

/// Neighbouring lanes are worked on together, in groups of about the same size.
FORESAY_INLINE uint32_t share(uint32_t lanes, uint32_t at_most) {
    const uint32_t groups = (lanes + at_most - 1) / at_most;
    return (lanes + groups - 1) / groups;
}

template <class Type>
void score_segment(const Block& b, uint32_t segment, const Space& s) {
    const uint32_t lanes = lanes_of(b), step = share(lanes, Type::kTiles ? kTileRows : kScoreLanes), first_block = segment * (kSegment / kKeyBlock);
    uint32_t low = kSegment, high = 0;
    for (uint32_t row = 0; row < b.row_count; ++row) {
        const Part part = part_of(b.rows[row], segment);
        if (part.first < part.straight) low = least(low, part.first), high = most(high, part.straight);
    }
    // A few blocks of keys for all lanes, then the next: they stay in the first cache.
    for (uint32_t block = low / kKeyBlock; block * kKeyBlock < high; block += kScoreBlocks)
        for (uint32_t lane = 0; lane < lanes; lane += step) {
            const uint32_t count = least(step, lanes - lane);
            uint32_t from = kSegment, to = 0;
            for (uint32_t row = lane / b.group; row <= (lane + count - 1) / b.group; ++row) {
                const Part part = part_of(b.rows[row], segment);
                if (part.first < part.straight) from = least(from, part.first), to = most(to, part.straight);
            }
            const uint32_t begin = most(block, from / kKeyBlock), end = least(block + kScoreBlocks, (to + kKeyBlock - 1) / kKeyBlock);
            if (begin < end)
                score_blocks<Type>(count, b, first_block + begin, first_block + end, s.queries + size_t{lane} * s.query_step,
                                   s.query_step, s.scores + size_t{lane} * kSegment + begin * kKeyBlock);
        }
    // What is not where its position says: the whole block around it, then the one that is wanted.
    for (uint32_t row = 0; row < b.row_count; ++row) {
        const Part part = part_of(b.rows[row], segment);
        for (uint32_t lane = row * b.group, count; lane < (row + 1) * b.group && part.straight < part.end; lane += count) {
            count = least(step, (row + 1) * b.group - lane);
            float found[kTileRows * kSegment];
            uint32_t there = UINT32_MAX;
            for (uint32_t place = part.straight; place < part.end; ++place) {
                const uint32_t slot = part.rest[place - part.straight];
                if (slot / kKeyBlock != there) {
                    there = slot / kKeyBlock;
                    score_blocks<Type>(count, b, there, there + 1, s.queries + size_t{lane} * s.query_step, s.query_step, found);
                }
                for (uint32_t i = 0; i < count; ++i) s.scores[size_t{lane + i} * kSegment + place] = found[i * kSegment + slot % kKeyBlock];
            }
        }
    }
}

struct Range {
    uint32_t first, end;
};

/// Adds what range_of(part) says of each row's part of the segment, token after token.
template <class Type, class RangeOf>
FORESAY_INLINE void mix_ranges(const Block& b, uint32_t segment, const Space& s, float* partials, RangeOf range_of) {
    const uint32_t lanes = lanes_of(b), step = share(lanes, kMixLanes), size = partial_of(s.columns);
    const uint32_t* values = b.values + size_t{segment} * kSegment * b.value_words;
    const auto together = [&](uint32_t lane, uint32_t count, uint32_t first, uint32_t end) {
        if (first < end)
            mix_columns<Type>(count, values, s.columns, first, end, s.scores + size_t{lane} * kSegment + first, partials + size_t{lane} * size, size);
    };
    for (uint32_t lane = 0; lane < lanes; lane += step) {
        const uint32_t count = least(step, lanes - lane);
        uint32_t first = 0, end = kSegment;  // what all of them see
        for (uint32_t row = lane / b.group; row <= (lane + count - 1) / b.group; ++row) {
            const Part part = part_of(b.rows[row], segment);
            const Range range = range_of(part);
            first = most(first, range.first), end = least(end, least(range.end, part.straight));
        }
        const bool common = first < end;
        for (uint32_t i = lane; i < lane + count; ++i) {
            const Part part = part_of(b.rows[i / b.group], segment);
            const Range range = range_of(part);
            together(i, 1, range.first, common ? first : least(range.end, part.straight));
        }
        if (common) together(lane, count, first, end);
        for (uint32_t i = lane; i < lane + count; ++i) {
            const Part part = part_of(b.rows[i / b.group], segment);
            const Range range = range_of(part);
            if (common) together(i, 1, end, least(range.end, part.straight));
            for (uint32_t place = most(range.first, part.straight); place < range.end; ++place) {
                const uint32_t slot = part.rest[place - part.straight];
                mix_columns<Type>(1, b.values, s.columns, slot, slot + 1, s.scores + size_t{i} * kSegment + place, partials + size_t{i} * size, size);
            }
        }
    }
}

#if FORESAY_TILES

/// The whole blocks of 32 tokens, counted from the beginning of the text, that a row sees; tiles mix these. `first` == `end`
/// where there is none, and what is seen is before them.
FORESAY_INLINE Range blocks_of(const Part& part) {
    const uint32_t first = least(part.end, (part.first + kMixBlock - 1) / kMixBlock * kMixBlock);
    return {first, most(first, part.end / kMixBlock * kMixBlock)};
}

/// Where those that stand one after the other in memory end.
FORESAY_INLINE uint32_t straight_of(const Part& part, const Range& blocks) {
    return most(blocks.first, least(blocks.end, part.straight / kMixBlock * kMixBlock));
}

/// Blocks that stand in memory as in the text: neighbouring lanes together, and of each those lanes that see it.
void mix_blocks(const Block& b, uint32_t segment, const Space& s, float* partials) {
    const uint32_t lanes = lanes_of(b), step = share(lanes, kTileRows), size = partial_of(s.columns);
    const uint32_t* values = b.values + size_t{segment} * kSegment * b.value_words;
    for (uint32_t lane = 0; lane < lanes; lane += step) {
        const uint32_t count = least(step, lanes - lane);
        uint32_t taking[kSegment / kMixBlock] = {};
        for (uint32_t i = 0; i < count; ++i) {
            const Part part = part_of(b.rows[(lane + i) / b.group], segment);
            const Range blocks = blocks_of(part);
            for (uint32_t at = blocks.first; at < straight_of(part, blocks); at += kMixBlock) taking[at / kMixBlock] |= 1u << i;
        }
        for (uint32_t block = 0, next; block < kSegment / kMixBlock; block = next) {
            for (next = block + 1; next < kSegment / kMixBlock && taking[next] == taking[block]; ++next) {}
            for (uint32_t column = 0; taking[block] && column < s.columns; column += 64)
                mix_tiles(values + size_t{block} * kMixBlock * b.value_words + column, s.columns, least(64, s.columns - column), next - block,
                          s.halves + size_t{lane} * 2 * kSegment + block * kMixBlock, partials + size_t{lane} * size + column, size, count,
                          taking[block]);
        }
    }
}

/// Blocks of which some tokens stand elsewhere: gathered first, row by row.
void mix_gathered(const Block& b, uint32_t segment, const Space& s, float* partials) {
    const uint32_t step = share(lanes_of(b), kTileRows), size = partial_of(s.columns);
    for (uint32_t row = 0; row < b.row_count; ++row) {
        const Part part = part_of(b.rows[row], segment);
        const Range blocks = blocks_of(part);
        for (uint32_t at = straight_of(part, blocks); at < blocks.end; at += kMixBlock)
            for (uint32_t column = 0; column < s.columns; column += 64) {
                alignas(64) uint32_t gathered[kMixBlock / 2 * 64];
                const uint32_t columns = least(64, s.columns - column);
                for (uint32_t i = 0; i < kMixBlock; ++i) {
                    const uint32_t place = at + i, slot = place < part.straight ? segment * kSegment + place : part.rest[place - part.straight];
                    const uint32_t* from = b.values + size_t{slot / 2} * s.columns + column;
                    uint32_t* to = gathered + i / 2 * 64;
                    for (uint32_t j = 0; j < columns; ++j) {
                        const uint32_t value = from[j] >> 16 * (slot % 2) & 0xFFFF;
                        to[j] = i % 2 ? to[j] | value << 16 : value;
                    }
                }
                for (uint32_t lane = row * b.group; lane < (row + 1) * b.group; lane += step)
                    mix_tiles(gathered, 64, columns, 1, s.halves + size_t{lane} * 2 * kSegment + at, partials + size_t{lane} * size + column, size,
                              least(step, (row + 1) * b.group - lane), UINT32_MAX);
            }
    }
}

#endif

template <class Type>
void mix_segment(const Block& b, uint32_t segment, const Space& s, float* partials) {
#if FORESAY_TILES
    if constexpr (Type::kTiles) {
        mix_ranges<Type>(b, segment, s, partials, [](const Part& part) { return Range{part.first, blocks_of(part).first}; });
        mix_blocks(b, segment, s, partials);
        mix_gathered(b, segment, s, partials);
        return mix_ranges<Type>(b, segment, s, partials, [](const Part& part) { return Range{blocks_of(part).end, part.end}; });
    }
#endif
    mix_ranges<Type>(b, segment, s, partials, [](const Part& part) { return Range{part.first, part.end}; });
}

/// Adds a segment's result to those of the segments before it.
FORESAY_INLINE void join(float* joined, const float* partial, uint32_t columns) {
    const float a = joined[columns], b = partial[columns], top = a > b ? a : b;
    const float reference = top == -__builtin_inff() ? 0 : top;
    const Vec old_share = all(exponential(a - reference)), new_share = all(exponential(b - reference));
    for (uint32_t i = 0; i < columns; i += kWidth)
        store(joined + i, multiply_add(load<Vec>(joined + i), old_share, load<Vec>(partial + i) * new_share));
    joined[columns] = top;
    joined[columns + 1] = joined[columns + 1] * old_share[0] + partial[columns + 1] * new_share[0];
}

template <class Type>
void write(const Block& b, uint32_t lane, const float* joined, uint32_t columns) {
    auto* out = static_cast<typename Type::Number*>(b.out) + ptrdiff_t(lane / b.group) * b.out_row + ptrdiff_t(lane % b.group) * b.value_dim;
    float share = 1, sum = joined[columns + 1];
    if (b.sinks) {
        const float a = joined[columns], sink = b.sinks[lane % b.group], top = a > sink ? a : sink;
        const float reference = top == -__builtin_inff() ? 0 : top;
        share = exponential(a - reference);
        sum = sum * share + exponential(sink - reference);
    }
    const float factor = share / sum;
    for (uint32_t i = 0; i < b.value_dim; ++i) Type::write(out + i, joined[i] * factor);
}

template <class Type>
void attend(const Block& b, float* scratch) noexcept {
    const Space s = space_of<Type>(b, scratch);
    const uint32_t lanes = lanes_of(b), size = partial_of(s.columns);
    for (uint32_t lane = 0; lane < lanes; ++lane)
        Type::pack(static_cast<const typename Type::Number*>(b.query) + ptrdiff_t(lane / b.group) * b.query_row + ptrdiff_t(lane % b.group) * b.query_head,
                   b.key_dim, b.key_words, s.queries + size_t{lane} * s.query_step);
#if FORESAY_TILES
    const Tiling tiling(share(lanes, kTileRows));
    if constexpr (Type::kTiles) FORESAY_TILE_SET(tiling);
#endif
    for (uint32_t segment = b.first_segment; segment < b.end_segment; ++segment) {
        float* partials = b.partials ? b.partials + size_t{segment - b.first_segment} * lanes * size : s.partials;
        score_segment<Type>(b, segment, s);
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            const Part part = part_of(b.rows[lane / b.group], segment);
            float* partial = partials + size_t{lane} * size;
            for (uint32_t i = 0; i < s.columns; i += kWidth) store(partial + i, Vec{});
            if (part.first == part.end) continue;
            weigh(s.scores + size_t{lane} * kSegment, part.first, part.end, b.scaling, b.softcap, partial[s.columns], partial[s.columns + 1]);
#if FORESAY_TILES
            if constexpr (Type::kTiles)
                halve(s.scores + size_t{lane} * kSegment, blocks_of(part).first, blocks_of(part).end, s.halves + size_t{lane} * 2 * kSegment);
#endif
        }
        mix_segment<Type>(b, segment, s, partials);
        if (b.partials) continue;
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            const Row& row = b.rows[lane / b.group];
            float *joined = s.joined + size_t{lane} * size, *partial = s.partials + size_t{lane} * size;
            if (segment == row.first / kSegment) __builtin_memcpy(joined, partial, size * sizeof(float));
            else if (segment > row.first / kSegment && segment * kSegment < row.end) join(joined, partial, s.columns);
        }
    }
#if FORESAY_TILES
    if constexpr (Type::kTiles) asm volatile("tilerelease" : : : "memory");
#endif
    for (uint32_t lane = 0; lane < lanes && !b.partials; ++lane) write<Type>(b, lane, s.joined + size_t{lane} * size, s.columns);
}

/// Joins the segments' results, which other calls have left in b.partials, from b.first_segment on.
template <class Type>
void finish(const Block& b, float* scratch) noexcept {
    const uint32_t columns = columns_of(b, Type::kSmall), lanes = lanes_of(b), size = partial_of(columns);
    for (uint32_t lane = 0; lane < lanes; ++lane) {
        const Row& row = b.rows[lane / b.group];
        const auto partial = [&](uint32_t segment) { return b.partials + (size_t{segment - b.first_segment} * lanes + lane) * size; };
        __builtin_memcpy(scratch, partial(row.first / kSegment), size * sizeof(float));
        for (uint32_t segment = row.first / kSegment + 1; segment * kSegment < row.end; ++segment) join(scratch, partial(segment), columns);
        write<Type>(b, lane, scratch, columns);
    }
}

constexpr Kernel kKernel = {{attend<Float>, attend<Bfloat>}, {finish<Float>, finish<Bfloat>}};

}  // namespace
}  // namespace foresay::attention
