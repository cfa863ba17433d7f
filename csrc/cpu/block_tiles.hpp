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

constexpr size_t kChunk = 8;                   // blocks that are unpacked, multiplied and scaled together: a tile that waits for what
                                               // was just stored waits long

/// Tiles 0 and 1 are sums, 4 and 6 the rows' inputs, 5 and 7 the weights.
struct alignas(64) BlockTiling {
    uint8_t palette = 1, start = 0, zeros[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    explicit BlockTiling(size_t count) {
        row_bytes[0] = row_bytes[1] = row_bytes[5] = row_bytes[7] = 64, row_bytes[4] = row_bytes[6] = kBlock;
        rows[0] = rows[1] = rows[4] = rows[6] = static_cast<uint8_t>(count), rows[5] = rows[7] = kVectors;
    }
};

#define FORESAY_TILE_ADD_BYTES(sum, a, b) asm volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : : : "memory")  // signed inputs, unsigned weights
#define FORESAY_TILE_BLOCK(at, sum, a, b)                                   \
    FORESAY_TILE_LOAD(a, x.q + (first + (at)) * count * kBlock, kBlock);    \
    FORESAY_TILE_LOAD(b, weights[at], kBytes);                              \
    FORESAY_TILE_ZERO(sum);                                                 \
    FORESAY_TILE_ADD_BYTES(sum, a, b);                                      \
    FORESAY_TILE_STORE(sum, products[at], kWidth * sizeof(int32_t))

/// The sums of a group of `count` rows with one panel; tiles are set for as many.
template <Format kFormat>
__attribute__((noinline)) void sum_in_tiles(const uint8_t* panel, Rows x, size_t blocks, size_t count, Vec* sums) {
    alignas(64) uint8_t weights[kChunk][kVectors * kBytes];
    alignas(64) int32_t products[kChunk][kTileRows * kWidth];
    Scales<kFormat> scales[kChunk];
    for (size_t row = 0; row < count; ++row) sums[row] = Vec{};
    for (size_t first = 0; first < blocks; first += kChunk) {  // a chunk of K formats is all that shares its scale of scales
        const size_t size = blocks - first < kChunk ? blocks - first : kChunk;
        for (size_t i = 0; i < size; ++i) {
            if (i) scales[i].of_scales = scales[i - 1].of_scales, scales[i].of_minimums = scales[i - 1].of_minimums;
            panel = scales[i].read(panel, first + i);
            Bytes w[kVectors];
            unpack<kFormat>(panel, w);
            panel += scales[i].p.bytes;
#pragma GCC unroll 8
            for (size_t j = 0; j < kVectors; ++j) store(weights[i] + j * kBytes, w[j]);
        }
        for (size_t i = 0; i + 1 < size; i += 2) {
            FORESAY_TILE_BLOCK(i, 0, 4, 5);
            FORESAY_TILE_BLOCK(i + 1, 1, 6, 7);
        }
        if (size % 2) { FORESAY_TILE_BLOCK(size - 1, 0, 4, 5); }
        for (size_t row = 0; row < count; ++row) {
            Vec sum = sums[row];
            for (size_t i = 0; i < size; ++i) {
                const size_t at = (first + i) * count + row;
                Ints found = load<Ints>(products[i] + row * kWidth);
                if constexpr (kOffset<kFormat> != 0) found -= kOffset<kFormat> * (x.halves[2 * at] + x.halves[2 * at + 1]);
                sum = scales[i].add(sum, as_floats(found), x.scales[at], x.sums[at]);
            }
            sums[row] = sum;
        }
    }
}

}  // namespace
}  // namespace foresay::blocks
