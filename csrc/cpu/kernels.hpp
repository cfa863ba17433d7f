// What is written once and compiled for each level of processor: one table of functions per level. csrc/cpu/levels.hpp says
// which table is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/attention_kernel.hpp"
#include "cpu/block_kernel.hpp"
#include "cpu/linear_kernel.hpp"
#include "cpu/noise_kernel.hpp"

// What stands between the products of a layer, of bfloat16 (row_loops.hpp). The bits are the same on every level.
namespace foresay::layer {

struct Kernel {
    /// One row of rms_norm() in csrc/cpu/decoder_layer.hpp.
    void (*norm)(const uint16_t* x, size_t width, const uint16_t* weight, float eps, uint16_t* out) noexcept;
    /// Turns the heads of one row by its position: each number with its partner in the other half.
    void (*turn)(uint16_t* x, size_t heads, size_t width, const uint16_t* cos, const uint16_t* sin) noexcept;
    /// The same numbers as floats.
    void (*widen)(const uint16_t* from, size_t count, float* to) noexcept;
};

}  // namespace foresay::layer

// The same of a decoder with weights in blocks, of float32. A row's bits depend on that row alone, and are the same on every level.
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

// The loops over rows of the residual (csrc/sampling/residual.hpp), in residual_loops.hpp.
namespace foresay::residual {

struct Kernel {
    /// NaN if there is one.
    float (*highest)(const float* row, size_t width) noexcept;
    /// Writes exp(row / temperature - top) of a valid row; returns the sum.
    double (*exponentials)(const float* row, size_t width, float temperature, double top, double* residual) noexcept;
    void (*sum)(const float* row, size_t width, double& sum, float& least) noexcept;
    /// Whether the residual of a token is above its prob times `factor`.
    bool (*some_left)(const double* residual, const float* probs, size_t width, double factor) noexcept;
    /// Leaves what is; returns the sum of it.
    double (*subtract)(double* residual, const float* probs, size_t width, double factor) noexcept;
    double (*total)(const double* residual, size_t width) noexcept;
};

}  // namespace foresay::residual

// The loops of log probabilities (csrc/sampling/logprobs.hpp) over a row of logits, in logprobs_loops.hpp. What they find depends on
// the row alone; sums may differ in their last bits from level to level.
namespace foresay::logprobs {

constexpr size_t kBlock = 128;  // tokens that are looked at together

/// A row of logits, `width` of them.
struct Row {
    const float* logits;    // or null:
    const uint16_t* small;  // the same in bfloat16
    size_t width;
};

struct Kernel {
    /// The beginning of the first kBlock tokens, from `first` on, of which some logit is not at or below `least`; the row's
    /// width if there are none. `first` is a multiple of kBlock. What was found is in `block`, after the row's end -inf.
    size_t (*above)(const Row& row, size_t first, float least, float* block) noexcept;
    /// The sum of exp(logit - top), where `top` is the highest of them and finite: right to about 5e-7 of itself.
    double (*rough_sum)(const Row& row, float top) noexcept;
    /// The sum of exp(logit / temperature - top), where the quotient is rounded to float32 and `top` is the highest of these
    /// and finite: right to about 2e-15 of itself.
    double (*sum)(const Row& row, float temperature, double top) noexcept;
};

}  // namespace foresay::logprobs

namespace foresay {

struct Kernels {
    const char* name;  // null: not compiled
    attention::Kernel attention;
    blocks::Kernel blocks;
    linear::Kernel linear;
    layer::Kernel layer;
    row::Kernel row;
    noise::Kernel noise;
    residual::Kernel residual;
    logprobs::Kernel logprobs;
};

extern const Kernels kPlain, kNeon, kDotprod, kI8mm, kAvx2, kAvx512, kVnni, kAmx;

}  // namespace foresay
