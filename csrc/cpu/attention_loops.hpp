// The loops of attention, for one level; see csrc/cpu/level.cpp.
//
// The bits of a lane depend on its query and on the keys and values it sees, in text order, and on nothing else:
// - a score is one chain of sums over the key's numbers;
// - a segment is 256 tokens, counted from the beginning of the text. Its highest score is a maximum; its sum of weights
//   has 16 parts, by text position modulo 16, each one chain; its mixed values are one chain for each column, in which
//   tiles, where there are any, take the place of 32 tokens at a time, counted from the beginning of the text;
// - segments are joined one after the other.
// However lanes are grouped, all of this is done with the same operations. What a lane does not see is never added to it.
#pragma once

#include "cpu/attention_scores.hpp"
#include "cpu/attention_values.hpp"

namespace foresay::attention {
namespace {

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
    const uint32_t lanes = lanes_of(b), step = share(lanes, lanes < 2 * kFewLanes ? kFewLanes : kMixLanes), size = partial_of(s.columns);
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
            softmax(s.scores + size_t{lane} * kSegment, part.first, part.end, b.scaling, b.softcap, partial[s.columns], partial[s.columns + 1]);
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
