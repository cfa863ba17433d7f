// Norms, turns and conversions of float32, for one level; see csrc/cpu/level.hpp.
#pragma once

#include "cpu/bfloat.hpp"
#include "cpu/row_kernel.hpp"

namespace foresay::row {
namespace {

constexpr size_t kLanes = 16;  // sums that are added at last, whatever the machine's vectors are

void norm(const float* x, size_t width, const float* weight, float eps, float* out) noexcept {
    float sums[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
    for (size_t lane = 0; i + lane < width; ++lane) sums[lane] += x[i + lane] * x[i + lane];
    for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    const float scale = 1.0f / __builtin_sqrtf(sums[0] / static_cast<float>(width) + eps);
    for (i = 0; i < width; ++i) out[i] = x[i] * scale * weight[i];
}

void turn(float* x, size_t heads, size_t width, size_t half, const float* cos, const float* sin) noexcept {
    for (float* const end = x + heads * width; x < end; x += width)
        for (size_t i = 0; i < half; ++i) {
            const float low = x[i], high = x[i + half];
            x[i] = low * cos[i] - high * sin[i];
            x[i + half] = high * cos[i] + low * sin[i];
        }
}

void narrow_row(const float* from, size_t count, uint16_t* to) noexcept {
    for (size_t i = 0; i < count; ++i) to[i] = narrow(from[i]);
}

void widen_row(const uint16_t* from, size_t count, float* to) noexcept {
    for (size_t i = 0; i < count; ++i) to[i] = wide(from[i]);
}

constexpr Kernel kKernel = {norm, turn, narrow_row, widen_row};

}  // namespace
}  // namespace foresay::row
