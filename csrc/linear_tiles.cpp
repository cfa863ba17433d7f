// Linear layers for machines with AVX-512 and AMX. CMakeLists.txt says how this file is compiled; it may be for none.
//
// One output of one row is one chain of sums: the tiles of 32 inputs one after the other, each in the processor's order,
// then the bias. A tile's row does not see the tile's other rows, so how rows are grouped changes no bit. What comes after
// it (an activation, a product, a sum) is rounded to bfloat16 each time, as it would be in layers of their own.
//
// Nothing of the standard library is used, for the reason that csrc/attention_loops.hpp gives.
#include "linear_kernel.hpp"

#ifdef __AMX_BF16__

#define FORESAY_WIDTH 16
#include "tiles.hpp"
#include "vectors.hpp"

namespace foresay::linear {
namespace {

constexpr size_t kRows = 16;                 // of a tile
constexpr size_t kKept = size_t{768} << 10;  // bytes of rows that stay in the second cache while panels pass
constexpr size_t kAhead = 8192;              // numbers by which weights are fetched ahead

FORESAY_INLINE size_t least(size_t a, size_t b) { return a < b ? a : b; }

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

typedef uint16_t Halves __attribute__((vector_size(32)));

FORESAY_INLINE Vec widened(Halves numbers) { return reinterpret_cast<Vec>(__builtin_convertvector(numbers, Words) << 16); }

/// Rounded to the nearest, of two the even one.
FORESAY_INLINE Halves rounded(Vec value) {
    const Words bits = reinterpret_cast<Words>(value), none = Words{} + 0x7FC0;
    const Words out = value != value ? none : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector(out, Halves);
}

/// x / (1 + e^-x), without a power of more than 1.
FORESAY_INLINE Vec silu(Vec x) {
    const Words sign = reinterpret_cast<Words>(x) & 0x80000000u;
    const Vec power = exponential(reinterpret_cast<Vec>(reinterpret_cast<Words>(x) | 0x80000000u));
    return (sign != 0 ? x * power : x) / (all(1.0f) + power);
}

/// 16 columns of one row; `present` says which of them there are.
FORESAY_INLINE void write(const Job& job, size_t column, size_t row, __mmask16 present, const float* sums, const float* ups) {
    Halves result = rounded(load<Vec>(sums) + load<Vec>(job.layer.bias + column));
    if (ups) result = rounded(widened(rounded(silu(widened(result)))) * widened(rounded(load<Vec>(ups) + load<Vec>(job.up.bias + column))));
    const size_t at = row * job.outs + column;
    if (job.added) result = rounded(widened(reinterpret_cast<Halves>(_mm256_maskz_loadu_epi16(present, job.added + at))) + widened(result));
    _mm256_mask_storeu_epi16(job.out + at, present, reinterpret_cast<__m256i>(result));
}

FORESAY_INLINE void write(const Job& job, size_t panel, size_t first, size_t rows, const float* sums, const float* ups) {
    for (size_t half = 0; half < kPanel; half += 16) {
        const size_t column = panel * kPanel + half;
        if (column >= job.outs) return;
        const auto present = static_cast<__mmask16>(job.outs - column >= 16 ? 0xFFFF : (1u << (job.outs - column)) - 1);
        for (size_t row = 0; row < rows; ++row)
            write(job, column, first + row, present, sums + row * kPanel + half, ups ? ups + row * kPanel + half : nullptr);
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
        write(job, panel, row, rows, sums, job.up.weight ? ups : nullptr);
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
