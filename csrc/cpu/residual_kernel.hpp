// The loops over rows of the residual (csrc/sampling/residual.hpp). The kernels are csrc/cpu/residual_loops.hpp.
#pragma once

#include <cstddef>

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
