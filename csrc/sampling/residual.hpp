// What is left of the target's probs while drafted tokens are tried: rows of float64 that need not sum to 1.
//
// The CPU's half of src/foresay/sampling/acceptance/rejection.py. Each function works on rows in parallel, and each row's
// result depends on that row alone: sums go over a fixed number of lanes, which are folded in a fixed order, so neither
// the threads nor the batch changes a bit. (A machine that multiplies and adds at once rounds less often than others.)
//
// All throw InputError for sizes that do not fit, rows that are not there, and 0 or more than 256 threads; before that
// nothing is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "matrix.hpp"
#include "sampling/rows.hpp"

namespace foresay {

using FloatRows = Matrix<const float>;  // scores or probs
using ResidualRows = Matrix<double>;    // one row for each walk; written to

struct Softmax {
    std::vector<double> totals;
    std::vector<uint8_t> statuses;  // RowStatus
};

/// The probs of `rows` of the scores, into `walks` of the residual, as shares of the likeliest token's:
/// exp(score / temperature - top / temperature), where the quotients are rounded to float32. Temperature 0: all on the first
/// highest token. Scores are judged after the division, NaN before +inf; where they are invalid, the whole row is 1.
/// The exponential is right to 2 units in the last place, and 0 below the smallest normal number.
Softmax unnormalised_softmax(const FloatRows& scores, std::span<const int64_t> rows, std::span<const float> temperatures,
                             const ResidualRows& residual, std::span<const int64_t> walks, uint32_t threads, const Kernels& level);

struct Sums {
    std::vector<double> sums;
    std::vector<float> least;  // +inf if there is none but NaN, which makes the sum NaN
};

Sums sums(const FloatRows& probs, std::span<const int64_t> rows, uint32_t threads, const Kernels& level);

/// Leaves max(0, residual - prob * (total / sum)) of `walks`, whose rows had these totals, less `rows` of the probs, which
/// have these sums. Where nothing would be left, all stays as it is. Returns the new totals.
std::vector<double> subtract(const ResidualRows& residual, std::span<const int64_t> walks, std::span<const double> totals,
                             const FloatRows& probs, std::span<const int64_t> rows, std::span<const double> sums, uint32_t threads, const Kernels& level);

/// Of each row the first token at which the running sum of the residual exceeds coin * total; never one where it
/// is 0. Throws InputError for coins outside [0, 1), and for rows that do not sum to a positive finite number.
std::vector<int64_t> draw(const ResidualRows& residual, std::span<const double> coins, uint32_t threads, const Kernels& level);

}  // namespace foresay
