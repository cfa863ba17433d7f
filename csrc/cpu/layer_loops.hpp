// Norms, turns and conversions, for one level; see csrc/cpu/level.hpp. There is nothing to fuse: squares of bfloat16 are exact
// floats, and every product is rounded before it is added.
#pragma once

#include "cpu/bfloat.hpp"
#include "cpu/layer_kernel.hpp"

namespace foresay::layer {
namespace {

constexpr size_t kLanes = 16;  // sums that are added at last, whatever the machine's vectors are

void norm(const uint16_t* x, size_t width, const uint16_t* weight, float eps, uint16_t* out) noexcept {
    float sums[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += wide(x[i + lane]) * wide(x[i + lane]);
    for (size_t lane = 0; i + lane < width; ++lane) sums[lane] += wide(x[i + lane]) * wide(x[i + lane]);
    for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    const float scale = 1.0f / __builtin_sqrtf(sums[0] / static_cast<float>(width) + eps);
    for (i = 0; i < width; ++i) out[i] = narrow(wide(weight[i]) * wide(narrow(wide(x[i]) * scale)));
}

void turn(uint16_t* x, size_t heads, size_t width, const uint16_t* cos, const uint16_t* sin) noexcept {
    const size_t half = width / 2;
    for (uint16_t* const end = x + heads * width; x < end; x += width)
        for (size_t i = 0; i < half; ++i) {
            const float low = wide(x[i]), high = wide(x[i + half]);
            const uint16_t kept = narrow(low * wide(cos[i])), crossed = narrow(-high * wide(sin[i]));
            const uint16_t kept_high = narrow(high * wide(cos[i + half])), crossed_high = narrow(low * wide(sin[i + half]));
            x[i] = narrow(wide(kept) + wide(crossed));
            x[i + half] = narrow(wide(kept_high) + wide(crossed_high));
        }
}

void widen(const uint16_t* from, size_t count, float* to) noexcept {
    for (size_t i = 0; i < count; ++i) to[i] = wide(from[i]);
}

constexpr Kernel kKernel = {norm, turn, widen};

}  // namespace
}  // namespace foresay::layer
