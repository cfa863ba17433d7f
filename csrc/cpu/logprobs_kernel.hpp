// The loops of log probabilities (csrc/sampling/logprobs.hpp) over a row of logits. The kernels are csrc/cpu/logprobs_loops.hpp;
// what they find depends on the row alone. Sums may differ in their last bits from level to level.
#pragma once

#include <cstddef>
#include <cstdint>

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
