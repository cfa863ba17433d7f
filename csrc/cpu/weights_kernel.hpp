// The loops over rows of weights (csrc/sampling/weights.hpp). The kernels are csrc/cpu/weights_loops.hpp.
#pragma once

#include <cstddef>

namespace foresay::weights {

struct Kernel {
    /// NaN if there is one.
    float (*highest)(const float* row, size_t width) noexcept;
    /// Writes the weights of a row that is a law; returns their sum.
    double (*exponentials)(const float* row, size_t width, float temperature, double top, double* weights) noexcept;
    void (*sum)(const float* row, size_t width, double& sum, float& least) noexcept;
    /// Whether a weight is above its prob times `factor`.
    bool (*some_left)(const double* weights, const float* probs, size_t width, double factor) noexcept;
    /// Leaves what is; returns the sum of it.
    double (*subtract)(double* weights, const float* probs, size_t width, double factor) noexcept;
    double (*total)(const double* weights, size_t width) noexcept;
};

}  // namespace foresay::weights
