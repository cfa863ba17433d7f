#include "norm.hpp"

#include <bit>
#include <cmath>

#include "levels.hpp"

namespace foresay {
namespace {

constexpr size_t kLanes = 16;  // sums that are added at last, whatever the machine's vectors are

inline __attribute__((always_inline)) float wide(uint16_t number) noexcept {
    return std::bit_cast<float>(static_cast<uint32_t>(number) << 16);
}

/// To the nearest, of two equally near to the even one.
inline __attribute__((always_inline)) uint16_t narrow(float number) noexcept {
    const auto bits = std::bit_cast<uint32_t>(number);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);  // NaN stays NaN
}

FORESAY_EACH_LEVEL void norm_row(const uint16_t* x, size_t width, const uint16_t* weight, float eps, uint16_t* out) noexcept {
    float sums[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += wide(x[i + lane]) * wide(x[i + lane]);
    for (size_t lane = 0; i + lane < width; ++lane) sums[lane] += wide(x[i + lane]) * wide(x[i + lane]);
    for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    const float scale = 1.0f / std::sqrt(sums[0] / static_cast<float>(width) + eps);
    for (i = 0; i < width; ++i) out[i] = narrow(wide(weight[i]) * wide(narrow(wide(x[i]) * scale)));
}

}  // namespace

void rms_norm(const uint16_t* x, int64_t step, size_t rows, size_t width, const uint16_t* weight, float eps, uint16_t* out) noexcept {
    for (size_t row = 0; row < rows; ++row) norm_row(x + static_cast<int64_t>(row) * step, width, weight, eps, out + row * width);
}

}  // namespace foresay
