// Root-mean-square norms of bfloat16: a layer that is small, and there twice for every attention.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/layer_kernel.hpp"

namespace foresay {

/// out = weight * round(x / sqrt(mean(x * x) + eps)), row by row, rounded to bfloat16 where the round() stands and at the
/// end, as transformers' layers do. x is [rows, width] with `step` numbers from row to row, out [rows, width] contiguous
/// and elsewhere, or x itself. A row's bits depend on that row alone, and are the same on every level.
void rms_norm(const layer::Kernel& kernel, const uint16_t* x, int64_t step, size_t rows, size_t width, const uint16_t* weight, float eps,
              uint16_t* out) noexcept;

}  // namespace foresay
