// Norms, turns and conversions of bfloat16 and of float32, for one level; see csrc/cpu/level.cpp. Of bfloat16 there is nothing to
// fuse: squares are exact floats, and every product is rounded before it is added.
#pragma once

#include "cpu/bfloat.hpp"
#include "cpu/kernels.hpp"

namespace foresay {
namespace {

/// 1 / sqrt(mean of the squares + eps), where `number` gives the numbers: a fixed order of sums, whatever the machine's vectors are.
template <class Number>
FORESAY_INLINE float norm_scale(size_t width, float eps, Number number) {
    constexpr size_t kLanes = 16;
    float sums[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += number(i + lane) * number(i + lane);
    for (size_t lane = 0; i + lane < width; ++lane) sums[lane] += number(i + lane) * number(i + lane);
    for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return 1.0f / __builtin_sqrtf(sums[0] / static_cast<float>(width) + eps);
}

}  // namespace
}  // namespace foresay

namespace foresay::layer {
namespace {

void norm(const uint16_t* x, size_t width, const uint16_t* weight, float eps, uint16_t* out) noexcept {
    const float scale = norm_scale(width, eps, [x](size_t i) __attribute__((always_inline)) { return wide(x[i]); });
    for (size_t i = 0; i < width; ++i) out[i] = narrow(wide(weight[i]) * wide(narrow(wide(x[i]) * scale)));
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

namespace foresay::row {
namespace {

void norm(const float* x, size_t width, const float* weight, float eps, float* out) noexcept {
    const float scale = norm_scale(width, eps, [x](size_t i) __attribute__((always_inline)) { return x[i]; });
    for (size_t i = 0; i < width; ++i) out[i] = x[i] * scale * weight[i];
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

constexpr Kernel kKernel = {norm, turn, narrow_row, layer::widen};

}  // namespace

}  // namespace foresay::row
