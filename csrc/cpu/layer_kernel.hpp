// What stands between the products of a layer, of bfloat16. The kernels are csrc/cpu/layer_loops.hpp; their bits are the same on
// every level.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foresay::layer {

struct Kernel {
    /// One row of rms_norm in csrc/cpu/norm.hpp.
    void (*norm)(const uint16_t* x, size_t width, const uint16_t* weight, float eps, uint16_t* out) noexcept;
    /// Turns the heads of one row by its position: each number with its partner in the other half.
    void (*turn)(uint16_t* x, size_t heads, size_t width, const uint16_t* cos, const uint16_t* sin) noexcept;
    /// The same numbers as floats.
    void (*widen)(const uint16_t* from, size_t count, float* to) noexcept;
};

}  // namespace foresay::layer
