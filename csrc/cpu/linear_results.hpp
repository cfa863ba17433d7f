// What comes after the sums of a linear layer, for one level: the bias, an activation, a product, a sum. Each is rounded to
// bfloat16, as it would be in layers of their own.
#pragma once

#include "cpu/linear_kernel.hpp"
#include "cpu/vectors.hpp"

namespace foresay::linear {
namespace {

constexpr FORESAY_INLINE size_t least(size_t a, size_t b) { return a < b ? a : b; }

/// Rounded to the nearest, of two the even one.
FORESAY_INLINE Halves rounded(Vec value) {
    const Words bits = reinterpret_cast<Words>(value), none = Words{} + 0x7FC0;
    const Words out = value != value ? none : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector(out, Halves);
}

FORESAY_INLINE Vec silu(Vec x) { return gated(x, x); }

/// A vector of columns of one row, of which `present` are there.
FORESAY_INLINE void write(const Job& job, size_t column, size_t row, size_t present, const float* sums, const float* ups) {
    Halves result = rounded(load<Vec>(sums) + load<Vec>(job.layer.bias + column));
    if (ups) result = rounded(widened(rounded(silu(widened(result)))) * widened(rounded(load<Vec>(ups) + load<Vec>(job.up.bias + column))));
    const size_t at = row * job.outs + column;
    if (present == kWidth) {
        if (job.added) result = rounded(widened(load<Halves>(job.added + at)) + widened(result));
        return store(job.out + at, result);
    }
    if (job.added) {
        Halves added{};
        for (size_t i = 0; i < present; ++i) added[i] = job.added[at + i];
        result = rounded(widened(added) + widened(result));
    }
    for (size_t i = 0; i < present; ++i) job.out[at + i] = result[i];
}

/// Rows `first` up to `first + rows` of a panel, whose sums stand row by row.
FORESAY_INLINE void write_panel(const Job& job, size_t panel, size_t first, size_t rows, const float* sums, const float* ups) {
    for (size_t i = 0; i < kPanel; i += kWidth) {
        const size_t column = panel * kPanel + i;
        if (column >= job.outs) return;
        const size_t present = least(kWidth, job.outs - column);
        for (size_t row = 0; row < rows; ++row)
            write(job, column, first + row, present, sums + row * kPanel + i, ups ? ups + row * kPanel + i : nullptr);
    }
}

}  // namespace
}  // namespace foresay::linear
