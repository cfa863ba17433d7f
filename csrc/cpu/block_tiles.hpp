// The products of a panel's blocks with many rows in matrix tiles of bytes, for one level; see csrc/cpu/level.hpp.
//
// A tile holds the integer sums of one block, of up to 16 rows by 16 outputs. They are those that csrc/cpu/block_loops.hpp adds up
// in vectors, and are scaled by the same operations in the same order: the bits are the same.
#pragma once

#include "cpu/block_sums.hpp"
#include "cpu/tiles.hpp"

namespace foresay::blocks {
namespace {

constexpr size_t kTileRows = 16, kFewest = 4;  // rows of a tile; rows from which on tiles are faster

/// Tile 0 is the sums, 4 the rows' inputs, 5 the weights.
struct alignas(64) BlockTiling {
    uint8_t palette = 1, start = 0, zeros[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    explicit BlockTiling(size_t count) {
        row_bytes[0] = 64, row_bytes[4] = kBlock, row_bytes[5] = 64;
        rows[0] = rows[4] = static_cast<uint8_t>(count), rows[5] = kVectors;
    }
};

#define FORESAY_TILE_ADD_BYTES() asm volatile("tdpbsud %%tmm5, %%tmm4, %%tmm0" : : : "memory")  // signed inputs, unsigned weights

/// The sums of a group of `count` rows with one panel; tiles are set for as many.
template <Format kFormat>
__attribute__((noinline)) void sum_in_tiles(const uint8_t* panel, Rows x, size_t blocks, size_t count, Vec* sums) {
    alignas(64) uint8_t weights[2][kVectors * kBytes];
    alignas(64) int32_t products[2][kTileRows * kWidth];
    Scales<kFormat> scales[2];
    for (size_t row = 0; row < count; ++row) sums[row] = Vec{};
    // What a tile gives is scaled while the next one is at work.
    const auto scale = [&](size_t i) __attribute__((always_inline)) {
        const size_t at = i * count;
        for (size_t row = 0; row < count; ++row) {
            Ints found = load<Ints>(products[i % 2] + row * kWidth);
            if constexpr (kOffset<kFormat> != 0) found -= kOffset<kFormat> * (x.halves[2 * (at + row)] + x.halves[2 * (at + row) + 1]);
            sums[row] = scales[i % 2].add(sums[row], as_floats(found), x.scales[at + row], x.sums[at + row]);
        }
    };
    for (size_t i = 0; i < blocks; ++i) {
        if (i) scales[i % 2].of_scales = scales[1 - i % 2].of_scales, scales[i % 2].of_minimums = scales[1 - i % 2].of_minimums;
        panel = scales[i % 2].read(panel, i);
        Bytes w[kVectors];
        unpack<kFormat>(panel, w);
        panel += scales[0].p.bytes;
#pragma GCC unroll 8
        for (size_t j = 0; j < kVectors; ++j) store(weights[i % 2] + j * kBytes, w[j]);
        FORESAY_TILE_ZERO(0);
        FORESAY_TILE_LOAD(4, x.q + i * count * kBlock, kBlock);
        FORESAY_TILE_LOAD(5, weights[i % 2], kBytes);
        FORESAY_TILE_ADD_BYTES();
        FORESAY_TILE_STORE(0, products[i % 2], kWidth * sizeof(int32_t));
        if (i) scale(i - 1);
    }
    scale(blocks - 1);
}

}  // namespace
}  // namespace foresay::blocks
