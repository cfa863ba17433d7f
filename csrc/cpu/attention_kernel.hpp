// What the attention of all levels is given. The kernels are csrc/cpu/attention_loops.hpp, compiled for each level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "inline.hpp"

namespace foresay::attention {

constexpr uint32_t kKeyBlock = 16;  // tokens whose keys stand beside each other
constexpr uint32_t kSegment = 256;  // tokens whose weights are made together
constexpr uint32_t kMostLanes = 48;  // lanes of a block, if one row has no more
constexpr uint32_t kSpare = 16;      // lanes that may be computed beyond a block's own

/// What a row sees, in text positions: from `first` up to `end`, of which those before `straight` are at the slot of the
/// same number, and the others at the slots of `rest`, which begins with position `straight`.
struct Row {
    uint32_t first, end, straight;
    const uint32_t* rest;
};

/// Some neighbouring rows of a request, with all query heads of one key head. Row r and head h of them are lane
/// r * group + h. All pointers stand at the block's first row and head; strides count numbers.
struct Block {
    const uint32_t *keys, *values;  // as csrc/cpu/kv.hpp says
    const Row* rows;
    const void* query;
    void* out;
    const float* sinks;             // null: none
    ptrdiff_t query_row, query_head, out_row;
    uint32_t row_count, group, key_dim, value_dim, key_words, value_words;
    float scaling, softcap;         // softcap 0: none
    uint32_t first_segment, end_segment;
    /// Null: the block is finished at once. Else each segment's results stay here, until `finish` is called.
    float* partials;
};

FORESAY_INLINE uint32_t lanes_of(const Block& block) noexcept { return block.row_count * block.group; }
/// Columns of values, in whole vectors; words of a row of values, which holds one token or two.
FORESAY_INLINE uint32_t columns_of(const Block& block, bool small) noexcept { return small ? 2 * block.value_words : block.value_words; }
/// Floats of one lane's result: columns, then the highest score and the sum of weights.
FORESAY_INLINE uint32_t partial_of(uint32_t columns) noexcept { return columns + kKeyBlock; }
FORESAY_INLINE uint32_t query_of(uint32_t key_dim) noexcept { return (key_dim + 31) / 32 * 32; }
/// Floats that a call needs.
FORESAY_INLINE size_t scratch_of(uint32_t lanes, uint32_t key_dim, uint32_t columns) noexcept {
    return size_t{lanes + kSpare} * (2 * kSegment + query_of(key_dim)) + size_t{lanes} * 2 * partial_of(columns);
}

struct Kernel {
    /// [0] float32, [1] bfloat16. `scratch` is aligned to 64 bytes.
    void (*attend[2])(const Block&, float* scratch) noexcept;
    void (*finish[2])(const Block&, float* scratch) noexcept;
};

}  // namespace foresay::attention
