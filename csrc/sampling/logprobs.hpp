// Log probabilities of tokens, and the likeliest tokens of rows of logits.
//
// The CPU's half of src/foresay/sampling/logprobs.py. Rows run in parallel, and each row's result depends on that row alone: sums
// go over a fixed number of lanes, so neither the threads nor the batch changes a bit. (Levels of processors round differently.)
//
// A row is invalid if it holds NaN or +inf, or nothing but -inf. All throw InputError for sizes that do not fit, rows and tokens
// that are not there, more tokens than a row has, and 0 or more than 256 threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sampling/rows.hpp"

namespace foresay {

struct TopTokens {
    std::vector<int32_t> tokens;  // [count, k] the likeliest first; of equals the smaller id
    std::vector<float> logprobs;  // [count, k] right to about 1e-6
};

/// The k likeliest tokens of every row; of an invalid row -1 and -inf.
TopTokens topk(const LogitRows& rows, size_t k, uint32_t threads, const Kernels& level);

/// Which log probabilities are wanted: of `tokens` in `rows`, one each.
struct Wanted {
    std::span<const int64_t> rows;
    std::span<const int32_t> tokens;
    std::span<const float> temperatures;  // 0: all is on the first highest token
    size_t top;                           // how many likeliest tokens beside each
};

struct TokenLogprobs {
    std::vector<double> logprobs;     // [T]
    std::vector<int32_t> top_tokens;  // [T, top] in the order of TopTokens
    std::vector<double> top_logprobs;
};

/// log softmax(logits / temperature), where the quotients are rounded to float32 and all else is in float64: right to about 4e-15, or
/// a unit in the last place. Of a row that is invalid after the division all are NaN, and the top tokens are the first ones.
TokenLogprobs token_logprobs(const LogitRows& rows, const Wanted& wanted, uint32_t threads, const Kernels& level);

}  // namespace foresay
