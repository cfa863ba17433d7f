// SAM-Decoding's rules, by their names, as a baseline: the longest match alone decides.
//
// The request's own text is used unless the corpus matches more than l_bias tokens longer; nothing is drafted when the
// match is shorter than l_threshold; the draft is what followed the match's first (or latest) occurrence, its length may
// grow with the match, or, with topk_succ, it is a tree of the most probable paths by occurrence counts.
#pragma once

#include <cstdint>

#include "suffix/tree.hpp"

namespace foresay {

struct SamRule {
    uint32_t l_threshold = 5;
    uint32_t l_bias = 5;
    bool latest = false;        // which occurrence of the match is continued: the latest, or the first
    uint32_t topk_succ = 0;     // 0: a chain; else a tree with at most this many successors per node
    double length_factor = 0;   // 0: as long as the budget; else 1 + floor(length_factor * match length)
    uint32_t max_predicts = 60;
    bool to_anc = false;        // shorten the match until enough tokens follow its occurrence (own text)
};

/// Appends one draft of at most `budget` tokens to `out` and returns the kind of source it is from. `sources` as for
/// TreeGrower: kOwn and kCorpus are used.
Kind draft_by_sam_rule(const SamRule& rule, const std::vector<Source>& sources, const std::vector<SourceCursor>& cursors,
                       uint32_t budget, DraftTrees& out);

}  // namespace foresay
