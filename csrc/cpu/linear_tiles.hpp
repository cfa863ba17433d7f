// Linear layers in matrix tiles, for one level; see csrc/cpu/level.cpp.
//
// One output of one row is one chain of sums: the tiles of 32 inputs one after the other, each in the processor's order,
// then the bias. A tile's row does not see the tile's other rows, so how rows are grouped changes no bit.
#pragma once

#include "cpu/linear_results.hpp"
#include "cpu/tiles.hpp"

namespace foresay::linear {
namespace {

constexpr size_t kRows = 16;                 // of a tile
constexpr size_t kKept = size_t{768} << 10;  // bytes of rows that stay in the second cache while panels pass
constexpr size_t kAhead = 8192;              // numbers by which weights are fetched ahead

/// Tile loads wait for memory one after the other; these do not. Into the second cache: it has three times as many places
/// for lines on their way as the first. What lies beyond the weights is not touched.
template <size_t kNumbers>
FORESAY_INLINE void fetch(const uint16_t* from) {
#pragma GCC unroll 32
    for (size_t i = 0; i < kNumbers; i += 32) _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T1);
}

/// Sums of one panel: of the first tile's rows, and if kTwo of the second's; kFirst if the panel was not used before.
template <bool kTwo, bool kFirst>
FORESAY_INLINE void sum(const Job& job, const uint16_t* weight, const uint16_t* x, float* sums) {
    const size_t row_bytes = static_cast<size_t>(job.x_step) * sizeof(uint16_t);
    const uint16_t* const second = x + static_cast<ptrdiff_t>(kRows) * job.x_step;
    FORESAY_TILE_ZERO(0);
    FORESAY_TILE_ZERO(1);
    if constexpr (kTwo) {
        FORESAY_TILE_ZERO(2);
        FORESAY_TILE_ZERO(3);
    }
    for (size_t i = 0; i < job.depth; ++i, weight += 2 * kTile) {
        if constexpr (kFirst) fetch<2 * kTile>(weight + kAhead);
        FORESAY_TILE_LOAD(4, x + i * kDepth, row_bytes);
        FORESAY_TILE_PASS(5, weight, 64u);
        FORESAY_TILE_PASS(7, weight + kTile, 64u);
        if constexpr (kTwo) FORESAY_TILE_LOAD(6, second + i * kDepth, row_bytes);
        FORESAY_TILE_ADD(0, 4, 5);
        FORESAY_TILE_ADD(1, 4, 7);
        if constexpr (kTwo) {
            FORESAY_TILE_ADD(2, 6, 5);
            FORESAY_TILE_ADD(3, 6, 7);
        }
    }
    constexpr size_t kStep = kPanel * sizeof(float);
    FORESAY_TILE_STORE(0, sums, kStep);
    FORESAY_TILE_STORE(1, sums + 16, kStep);
    if constexpr (kTwo) {
        FORESAY_TILE_STORE(2, sums + kRows * kPanel, kStep);
        FORESAY_TILE_STORE(3, sums + kRows * kPanel + 16, kStep);
    }
}

/// Rows `first` up to `end` of one panel; the tiles have kRows rows, except for the last rows of all.
FORESAY_INLINE void panel_of(const Job& job, size_t panel, size_t first, size_t end, const Tiling& whole, const Tiling& last) {
    alignas(64) float sums[2 * kRows * kPanel], ups[2 * kRows * kPanel];
    const size_t place = panel * job.depth * 2 * kTile;
    const bool fits = job.rows < 2 * kRows || job.rows % kRows == 0;  // the tiles as they are set
    bool switched = false;
    for (size_t row = first; row < end; row += 2 * kRows) {
        const size_t rows = least(2 * kRows, end - row);
        const uint16_t* const x = job.x + static_cast<ptrdiff_t>(row) * job.x_step;
        if (rows < 2 * kRows && !fits) {
            FORESAY_TILE_SET(last);
            switched = true;
        }
        const auto add = [&](const uint16_t* weight, float* to) __attribute__((always_inline)) {
            if (rows <= kRows) row == first ? sum<false, true>(job, weight, x, to) : sum<false, false>(job, weight, x, to);
            else row == first ? sum<true, true>(job, weight, x, to) : sum<true, false>(job, weight, x, to);
        };
        add(job.layer.weight + place, sums);
        if (job.up.weight) add(job.up.weight + place, ups);
        write_panel(job, panel, row, rows, sums, job.up.weight ? ups : nullptr);
    }
    if (switched) FORESAY_TILE_SET(whole);
}

void multiply(const Job& job, size_t first, size_t end) noexcept {
    const size_t left = job.rows % (2 * kRows);
    const Tiling whole(kRows), last(static_cast<uint32_t>(least(left, kRows)), static_cast<uint32_t>(left > kRows ? left - kRows : kRows));
    if (job.rows < 2 * kRows) FORESAY_TILE_SET(last);
    else FORESAY_TILE_SET(whole);
    const size_t fit = kKept / (job.depth * kDepth * sizeof(uint16_t)) / (2 * kRows) * (2 * kRows);
    const size_t step = fit ? fit : 2 * kRows;
    for (size_t row = 0; row < job.rows; row += step)
        for (size_t panel = first; panel < end; ++panel) panel_of(job, panel, row, least(job.rows, row + step), whole, last);
    _tile_release();
}

constexpr Kernel kKernel = {kRows, nullptr, multiply};

}  // namespace
}  // namespace foresay::linear
