// What linear layers with weights in blocks are given, on all levels. The kernels are csrc/cpu/block_loops.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/block_formats.hpp"

namespace foresay::blocks {

/// Rows of activations, quantised one by one in blocks of 32: a number is q * scale. Rows that are multiplied together (at
/// most Kernel::rows, as `Groups` divides them) stand block by block; a group begins at its first row's place.
struct Rows {
    int8_t* q;        // [group][block][row][32]
    float* scales;    // [group][block][row]
    float* sums;      // the same: of the block's numbers
    int32_t* halves;  // [group][block][row][2]: of q, of its first 16 and its others
};

/// Beginning with a group's first row.
FORESAY_INLINE Rows from_row(const Rows& rows, size_t first, size_t ins) {
    const size_t at = first * (ins / kBlock);
    return {rows.q + at * kBlock, rows.scales + at, rows.sums + at, rows.halves + 2 * at};
}

/// How rows are divided: all groups have as many, or one more.
struct Groups {
    size_t count, rows, more;  // the first `more` groups have one row more
    constexpr Groups(size_t all, size_t most) : count((all + most - 1) / most), rows(count ? all / count : 0), more(count ? all % count : 0) {}
    constexpr size_t first(size_t group) const { return group * rows + (group < more ? group : more); }
    constexpr size_t size(size_t group) const { return rows + (group < more ? 1 : 0); }
};

enum class Activation : uint8_t { silu, gelu };  // gelu: with tanh

struct Layer {
    const uint8_t* panels;  // null: there is none
    const float* bias;      // of all panels' outputs
};

/// All sizes count numbers.
struct Job {
    Layer layer, up;       // with `up` the result is activation(layer) times up
    Activation activation;
    const float* added;    // null, or what is added to the result: like `out`, and it may be the same
    const float* x;        // [rows, ins], for numbers that are not quantised
    Rows quantised;        // the same, for those that are
    float* out;            // [rows, outs]
    size_t rows, ins, outs;
};

struct Kernel {
    size_t rows, outs;      // that are multiplied together; outputs of a panel
    bool from_zero;         // whether a byte of Q8_0 is stored 128 above its value
    /// One row of `count` in a group: its place there is the group's, `row` its number.
    void (*quantise)(const float* x, size_t ins, const Rows& group, size_t row, size_t count) noexcept;
    /// By format: the outputs of panels `first` up to `end`, of all rows.
    void (*multiply[kFormats])(const Job&, size_t first, size_t end) noexcept;
};

}  // namespace foresay::blocks
