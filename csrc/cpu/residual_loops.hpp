// The loops over rows of the residual, for one level; see csrc/cpu/level.cpp.
#pragma once

#include "cpu/doubles.hpp"
#include "cpu/kernels.hpp"

namespace foresay::residual {
namespace {

float highest(const float* row, size_t width) noexcept {
    float lanes[kLanes];
    for (float& lane : lanes) lane = -__builtin_inff();
    int nan = 0;
    const auto look = [&](size_t i, float value) __attribute__((always_inline)) {
        lanes[i] = value > lanes[i] ? value : lanes[i];
        nan |= value != value;
    };
    size_t first = 0;
    for (; first + kLanes <= width; first += kLanes)
        for (size_t i = 0; i < kLanes; ++i) look(i, row[first + i]);
    for (size_t i = 0; first + i < width; ++i) look(i, row[first + i]);
    for (size_t i = 1; i < kLanes; ++i) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
    return nan ? __builtin_nanf("") : lanes[0];
}

double exponentials(const float* row, size_t width, float temperature, double top, double* residual) noexcept {
    double lanes[kLanes] = {};
    size_t first = 0;
    for (; first + kLanes <= width; first += kLanes)
        for (size_t i = 0; i < kLanes; ++i) {
            const double weight = power(double{row[first + i] / temperature} - top);
            residual[first + i] = weight;
            lanes[i] += weight;
        }
    for (size_t i = 0; first + i < width; ++i) lanes[i] += residual[first + i] = power(double{row[first + i] / temperature} - top);
    return folded(lanes);
}

void sum(const float* row, size_t width, double& sum, float& least) noexcept {
    double lanes[kLanes] = {};
    float lows[kLanes];
    for (float& low : lows) low = __builtin_inff();
    const auto look = [&](size_t i, float value) __attribute__((always_inline)) {
        lanes[i] += value;
        lows[i] = value < lows[i] ? value : lows[i];
    };
    size_t first = 0;
    for (; first + kLanes <= width; first += kLanes)
        for (size_t i = 0; i < kLanes; ++i) look(i, row[first + i]);
    for (size_t i = 0; first + i < width; ++i) look(i, row[first + i]);
    for (size_t i = 1; i < kLanes; ++i) lows[0] = lows[i] < lows[0] ? lows[i] : lows[0];
    sum = folded(lanes), least = lows[0];
}

bool some_left(const double* residual, const float* probs, size_t width, double factor) noexcept {
    int some = 0;
    for (size_t i = 0; i < width; ++i) some |= multiply_add(probs[i], -factor, residual[i]) > 0;
    return some != 0;
}

double subtract(double* residual, const float* probs, size_t width, double factor) noexcept {
    double lanes[kLanes] = {};
    const auto take = [&](size_t lane, size_t at) __attribute__((always_inline)) {
        const double rest = multiply_add(probs[at], -factor, residual[at]), left = rest > 0 ? rest : 0;
        residual[at] = left;
        lanes[lane] += left;
    };
    size_t first = 0;
    for (; first + kLanes <= width; first += kLanes)
        for (size_t i = 0; i < kLanes; ++i) take(i, first + i);
    for (size_t i = 0; first + i < width; ++i) take(i, first + i);
    return folded(lanes);
}

double total(const double* residual, size_t width) noexcept {
    double lanes[kLanes] = {};
    size_t first = 0;
    for (; first + kLanes <= width; first += kLanes)
        for (size_t i = 0; i < kLanes; ++i) lanes[i] += residual[first + i];
    for (size_t i = 0; first + i < width; ++i) lanes[i] += residual[first + i];
    return folded(lanes);
}

constexpr Kernel kKernel = {highest, exponentials, sum, some_left, subtract, total};

}  // namespace
}  // namespace foresay::residual
