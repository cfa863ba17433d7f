// What comes after the sums of a linear layer with weights in blocks, for one level: the bias, an activation, a product, a sum.
// All of float32.
#pragma once

#include "cpu/block_kernel.hpp"
#include "cpu/vectors.hpp"

namespace foresay::blocks {
namespace {

/// x * sigmoid(t): silu for t = x.
FORESAY_INLINE Vec activated(Vec x, Activation kind) {
    if (kind == Activation::silu) return gated(x, x);
    return gated(x, all(1.5957691216f) * multiply_add(x * x * x, all(0.044715f), x));  // 2 sqrt(2 / pi): tanh as a sigmoid
}

/// A vector of columns of one row, of which those beyond the last output are not there.
FORESAY_INLINE void write(const Job& job, size_t panel, size_t row, Vec sums, const Vec* ups) {
    const size_t column = panel * kWidth, at = row * job.outs + column;
    const size_t present = job.outs - column < kWidth ? job.outs - column : kWidth;
    Vec result = sums + load<Vec>(job.layer.bias + column);
    if (ups) result = activated(result, job.activation) * (*ups + load<Vec>(job.up.bias + column));
    if (present == kWidth) {
        if (job.added) result = load<Vec>(job.added + at) + result;
        return store(job.out + at, result);
    }
    for (size_t i = 0; i < present; ++i) job.out[at + i] = job.added ? job.added[at + i] + result[i] : result[i];
}

}  // namespace
}  // namespace foresay::blocks
