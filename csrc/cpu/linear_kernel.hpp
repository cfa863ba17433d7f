// What the linear layers of all levels are given. The kernels are csrc/cpu/linear_loops.hpp, compiled for each level, and
// csrc/cpu/linear_tiles.hpp, for machines with matrix tiles.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foresay::linear {

constexpr size_t kPanel = 32;  // outputs that are made together
constexpr size_t kDepth = 32;  // inputs of a tile
constexpr size_t kTile = 512;  // numbers of a tile: pairs of inputs by 16 outputs

/// A layer as it is stored.
struct Stored {
    const uint16_t* weight;  // panels; of each, for every kDepth inputs, the tiles of its two halves
    const float* bias;       // of all panels' outputs
};

/// All sizes count numbers.
struct Job {
    Stored layer;
    Stored up;              // weight null: there is none. Else the result is silu(layer) times this one's
    const uint16_t* added;  // null, or what is added to the result: like `out`, and it may be the same
    const uint16_t* x;      // rows of whole tiles, for a kernel that takes them as they are
    const float* packed;    // rows as the kernel has packed them, for one that does
    uint16_t* out;
    ptrdiff_t x_step;
    size_t rows, depth, outs;  // depth counts tiles
};

struct Kernel {
    size_t rows;  // that read the weights together
    /// Null, or how rows of `ins` numbers are packed, with zeros up to `depth` tiles: into rows * depth * kDepth floats
    /// at most.
    void (*pack)(const uint16_t* x, ptrdiff_t step, size_t rows, size_t ins, size_t depth, float* to) noexcept;
    /// The outputs of panels `first` up to `end`, of all rows.
    void (*multiply)(const Job&, size_t first, size_t end) noexcept;
};

}  // namespace foresay::linear
