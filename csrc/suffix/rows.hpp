// The rows of an engine's batch, which come without names: what each row just got, and the keys that texts are known by.
//
// A key is made of a text's length and of its tokens at places that lie further and further back from its end. Equal texts
// have equal keys, on every machine. This file knows nothing of drafts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foresay {

/// Texts side by side in one array: row r begins at tokens[r * stride] and has room for `width` tokens.
struct RowTexts {
    const int32_t* tokens;
    size_t rows, width, stride;
};

/// The rows that got tokens, in their order.
struct Rows {
    std::vector<int32_t> numbers;
    std::vector<int32_t> lengths;     // of their texts, with the new tokens
    std::vector<int32_t> tokens;      // the new ones,
    std::vector<int32_t> offsets{0};  // and where each row's begin
    std::vector<int64_t> before;      // keys of the texts without them,
    std::vector<int64_t> after;       // and with them
};

/// counts[r] new tokens are the last of the lengths[r] tokens of row r; there may be more rows than counts. Throws InputError for
/// a row that is not there, that is longer than its room, or shorter than its new tokens.
Rows read_rows(std::span<const uint32_t> counts, std::span<const int32_t> lengths, const RowTexts& texts);

}  // namespace foresay
