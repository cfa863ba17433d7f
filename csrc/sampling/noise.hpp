// Choosing tokens: the argmax of logits / temperature plus keyed Gumbel noise, in one pass over each row.
//
// src/foresay/sampling/noise.py says what the noise is and is the slow twin. The uniforms here are its uniforms, bit for
// bit; the Gumbel noise goes through std::log, which may differ from numpy's logarithm in the last bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "sampling/rows.hpp"

namespace foresay {

/// In (0, 1), both ends excluded.
double uniform(const NoiseKey& key, uint32_t token);
/// -log(-log(uniform)), between -3.604 and 36.737.
double gumbel(const NoiseKey& key, uint32_t token);

/// Of a row. The token is -1 and its value NaN unless the status is kGood.
struct Choice {
    int32_t token = -1;
    double value = NAN;  // logit / temperature + noise
    uint8_t status = RowStatus::kNotReached;
};
/// From one row; see `choose`.
Choice choose_row(const logprobs::Row& row, float temperature, const NoiseKey& key, const Kernels& level);

/// The same of each row.
struct Choices {
    std::vector<int32_t> tokens;
    std::vector<double> values;
    std::vector<uint8_t> statuses;  // RowStatus
};

/// Chooses from each row; of equals, the lowest token. Logits are judged after the division, which is in float32: NaN and +inf
/// spoil a row, -inf is a token that cannot be chosen. Temperature 0 is greedy, without noise. Rows run in parallel.
/// Throws InputError for sizes that do not fit, and for a temperature that is negative or not finite.
Choices choose(const LogitRows& rows, std::span<const float> temperatures, std::span<const uint64_t> seeds, std::span<const uint32_t> positions,
               uint32_t stream, uint32_t threads, const Kernels& level);

}  // namespace foresay
