// Linear layers of bfloat16 whose bits can be relied on.
//
// The bits of a row's result depend on that row, the weight and the bias, and on nothing else: not on other rows, on how
// many there are, or on threads, nor on what else is made at once. (On amx and on i8mm they are others than on the other levels, and
// numbers too small to be normal count as 0 on amx; silu may round differently on plain.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/levels.hpp"
#include "slab.hpp"

namespace foresay {

struct Product;

/// x times the transposed weight, plus the bias. Any number of threads may use it at a time.
class Linear {
public:
    /// Copies both. The weight is [outs, ins]; strides count numbers. `bias` has `outs` numbers, or is null. Throws
    /// InputError and std::bad_alloc.
    Linear(const uint16_t* weight, size_t outs, size_t ins, int64_t out_stride, int64_t in_stride, const uint16_t* bias, int64_t bias_stride,
           const Kernels& level);

    const Kernels& level() const noexcept { return *level_; }
    size_t ins() const noexcept { return ins_; }
    size_t outs() const noexcept { return outs_; }
    size_t bytes() const noexcept { return weight_.get_deleter().count * sizeof(uint16_t) + bias_.get_deleter().count * sizeof(float); }

private:
    friend void multiply(std::span<const Product>, const uint16_t*, int64_t, size_t, uint32_t);
    const Kernels* level_;
    size_t ins_, outs_, depth_, panels_;
    slab::Array<uint16_t> weight_;
    slab::Array<float> bias_;
};

/// What is made of the same rows at once.
struct Product {
    const Linear& layer;
    uint16_t* out;                    // [rows, outs], contiguous, and elsewhere than x
    const Linear* up = nullptr;       // of the same size: the result is silu(layer) times up
    const uint16_t* added = nullptr;  // added to the result: [rows, outs], contiguous; it may be `out`
};

/// x is [rows, ins], with `step` numbers from row to row; all layers have the same inputs. Throws InputError for 0 or more
/// than 256 threads, or layers that do not fit or are of several levels, and std::bad_alloc; before that nothing is written.
void multiply(std::span<const Product> products, const uint16_t* x, int64_t step, size_t rows, uint32_t threads);

}  // namespace foresay
