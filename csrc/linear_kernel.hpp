// What csrc/linear_tiles.cpp is given, which is compiled for machines with matrix tiles.
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
    const uint16_t* x;      // rows of whole tiles
    uint16_t* out;
    ptrdiff_t x_step;
    size_t rows, depth, outs;  // depth counts tiles
};

struct Kernel {
    const char* name;  // null: not compiled
    /// The outputs of panels `first` up to `end`, of all rows.
    void (*multiply)(const Job&, size_t first, size_t end) noexcept;
};

extern const Kernel kTiles;

}  // namespace foresay::linear
