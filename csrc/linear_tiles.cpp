// Linear layers for machines with AVX-512 and AMX. CMakeLists.txt says how this file is compiled; it may be for none.
//
// One output of one row is one chain of sums: the tiles of 32 inputs one after the other, each in the processor's order,
// then the bias. A tile's row does not see the tile's other rows, so how rows are grouped changes no bit.
//
// Nothing of the standard library is used, for the reason that csrc/attention_loops.hpp gives.
#include "linear_kernel.hpp"

#ifdef __AMX_BF16__

#include <immintrin.h>

#include "tiles.hpp"

namespace foresay::linear {
namespace {

#define FORESAY_INLINE inline __attribute__((always_inline))

constexpr size_t kRows = 16;                 // of a tile
constexpr size_t kKept = size_t{768} << 10;  // bytes of rows that stay in the second cache while panels pass
constexpr size_t kAhead = 4096;              // numbers by which weights are fetched ahead

FORESAY_INLINE size_t least(size_t a, size_t b) { return a < b ? a : b; }

/// Tile loads wait for memory one after the other; these do not. What lies beyond the weights is not touched.
template <size_t kNumbers>
FORESAY_INLINE void fetch(const uint16_t* from) {
#pragma GCC unroll 32
    for (size_t i = 0; i < kNumbers; i += 32) _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T0);
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
        FORESAY_TILE_LOAD(5, weight, 64u);
        FORESAY_TILE_LOAD(7, weight + kTile, 64u);
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

typedef float Vec __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

/// Rounded to the nearest, of two the even one.
FORESAY_INLINE __m256i rounded(__m512 number) {
    const Vec value = reinterpret_cast<Vec>(number);
    const Words bits = reinterpret_cast<Words>(number), none = Words{} + 0x7FC0;
    const Words out = value != value ? none : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return reinterpret_cast<__m256i>(__builtin_convertvector(out, Halves));
}

FORESAY_INLINE void write(const Job& job, size_t panel, size_t first, size_t rows, const float* sums) {
    const size_t column = panel * kPanel, columns = least(kPanel, job.outs - column);
    const __mmask16 low = static_cast<__mmask16>(columns >= 16 ? 0xFFFF : (1u << columns) - 1);
    const __mmask16 high = static_cast<__mmask16>(columns <= 16 ? 0 : columns == 32 ? 0xFFFF : (1u << (columns - 16)) - 1);
    const __m512 bias_low = _mm512_loadu_ps(job.bias + column), bias_high = _mm512_loadu_ps(job.bias + column + 16);
    uint16_t* out = job.out + first * job.outs + column;
    for (size_t row = 0; row < rows; ++row, sums += kPanel, out += job.outs) {
        _mm256_mask_storeu_epi16(out, low, rounded(_mm512_add_ps(_mm512_load_ps(sums), bias_low)));
        if (high) _mm256_mask_storeu_epi16(out + 16, high, rounded(_mm512_add_ps(_mm512_load_ps(sums + 16), bias_high)));
    }
}

/// Rows `first` up to `end` of one panel; the tiles have kRows rows, except for the last rows of all.
FORESAY_INLINE void panel_of(const Job& job, size_t panel, size_t first, size_t end, const Tiling& whole, const Tiling& last) {
    alignas(64) float sums[2 * kRows * kPanel];
    const uint16_t* const weight = job.weight + panel * job.depth * 2 * kTile;
    const bool fits = job.rows < 2 * kRows || job.rows % kRows == 0;  // the tiles as they are set
    bool switched = false;
    for (size_t row = first; row < end; row += 2 * kRows) {
        const size_t rows = least(2 * kRows, end - row);
        const uint16_t* const x = job.x + static_cast<ptrdiff_t>(row) * job.x_step;
        if (rows < 2 * kRows && !fits) {
            FORESAY_TILE_SET(last);
            switched = true;
        }
        if (rows <= kRows) row == first ? sum<false, true>(job, weight, x, sums) : sum<false, false>(job, weight, x, sums);
        else row == first ? sum<true, true>(job, weight, x, sums) : sum<true, false>(job, weight, x, sums);
        write(job, panel, row, rows, sums);
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

}  // namespace

const Kernel kTiles = {"tiles", multiply};

}  // namespace foresay::linear

#else

const foresay::linear::Kernel foresay::linear::kTiles = {};

#endif
