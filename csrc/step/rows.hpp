// The rows of a step, laid out flat: src/foresay/models/rows.py, which is done in every step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drafts.hpp"

namespace foresay {

/// What a step computes of its texts, in their order: new tokens, then the nodes of a draft.
struct StepTexts {
    std::span<const int32_t> tokens, offsets;  // of text b: tokens[offsets[b]] to tokens[offsets[b + 1]], at least one
    Drafts drafts;                             // one for each text
    std::span<const bool> needs_logits;        // after the last token and after each node
    std::span<const int32_t> prefill;          // how many of the tokens, the first ones, are prefill,
    std::span<const int32_t> prefill_logits;   // and how many of these, the last ones, need logits
};

struct StepRows {
    std::vector<int32_t> tokens;
    std::vector<int32_t> parents;  // within the text; -1 of its first row
    std::vector<int32_t> offsets;  // where each text's rows begin
    std::vector<int64_t> needed;   // rows that need logits: those after tokens and nodes, then those of prefill
    std::vector<uint8_t> prefill;  // whether a row is prefill
};

/// Throws InputError for sizes that do not fit, for a text without tokens, and for what are no draft trees.
StepRows step_rows(const StepTexts& of);

/// The rows of each text that are stored after a step, counted within it: its tokens, then the nodes of its path. `tokens`: where each
/// text's begin. Throws InputError for sizes that do not fit, and for a path that does not lead from its draft's root from parent to child.
std::vector<int32_t> kept_rows(std::span<const int32_t> tokens, std::span<const int32_t> path, std::span<const int32_t> path_offsets,
                               std::span<const int32_t> parents, std::span<const int32_t> offsets);

}  // namespace foresay
