#include "norm.hpp"

#include <cmath>

#include "bfloat.hpp"
#include "levels.hpp"

namespace foresay {
namespace {

constexpr size_t kLanes = 16;  // sums that are added at last, whatever the machine's vectors are

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
