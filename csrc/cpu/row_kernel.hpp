// What stands between the products of a decoder with weights in blocks, of float32. The kernels are csrc/cpu/row_loops.hpp; a
// row's bits depend on that row alone, and are the same on every level.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foresay::row {

struct Kernel {
    /// x / sqrt(mean(x * x) + eps) * weight; `out` may be x.
    void (*norm)(const float* x, size_t width, const float* weight, float eps, float* out) noexcept;
    /// Turns the heads of one row by its position: each of the first 2 * `half` numbers with its partner `half` later.
    void (*turn)(float* x, size_t heads, size_t width, size_t half, const float* cos, const float* sin) noexcept;
    /// To bfloat16, to the nearest even, and back.
    void (*narrow)(const float* from, size_t count, uint16_t* to) noexcept;
    void (*widen)(const uint16_t* from, size_t count, float* to) noexcept;
};

}  // namespace foresay::row
