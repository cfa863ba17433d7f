#include "cpu/norm.hpp"

namespace foresay {

void rms_norm(const layer::Kernel& kernel, const uint16_t* x, int64_t step, size_t rows, size_t width, const uint16_t* weight, float eps,
              uint16_t* out) noexcept {
    for (size_t row = 0; row < rows; ++row) kernel.norm(x + static_cast<int64_t>(row) * step, width, weight, eps, out + row * width);
}

}  // namespace foresay
