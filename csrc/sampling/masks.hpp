// Masks of tokens over rows of logits: what a grammar forbids gets -inf.
//
// The CPU's half of src/foresay/sampling/acceptance/masks.py.
#pragma once

#include <cstdint>
#include <span>

#include "matrix.hpp"
#include "sampling/rows.hpp"

namespace foresay {

/// Writes -inf into `rows` of the logits where their masks have no bit, but not over a NaN or +inf, which must be seen. Mask i is that of
/// rows[i]: bit t % 32 of its word t / 32 is token t's; tokens beyond a mask are forbidden. No row may be named twice.
///
/// Throws InputError for sizes that do not fit, rows that are not there or are named twice, and 0 or more than 256 threads; before
/// that nothing is written.
void forbid(const Matrix<float>& logits, std::span<const int64_t> rows, const Matrix<const int32_t>& masks, uint32_t threads);

}  // namespace foresay
