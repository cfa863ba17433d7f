// How many drafted nodes are verified, and which: the arithmetic of src/foresay/budget/adaptive.py, which is done in every step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foresay {

/// How long a step takes: by rows on lines between knots, and so much for each read, key and request. See src/foresay/budget/cost.py.
struct StepCost {
    std::span<const double> knots, shape;  // knots rise
    double per_read, per_key, per_request, level;

    double seconds(double rows, double reads, double keys, double requests) const noexcept;
};

/// Drafts, one for each request of a step, and what is known of the requests.
struct Candidates {
    std::span<const int32_t> parents, offsets;  // as those of Drafts
    std::span<const double> chances;            // of each node; never above its parent's
    std::span<const double> worth;              // of a token, by request
    std::span<const int64_t> left, contexts;    // tokens that each answer may still get, and that each text has
};

/// What a step has besides the nodes.
struct Besides {
    int64_t rows, reads;  // of prompts: their time is subtracted, but they count as rows, so that nodes start further up the curve
    double tokens;        // what it makes
    double seconds;       // what it takes
    bool overlaps;        // whether it does not take these seconds where nothing is verified
};

struct Selection {
    std::vector<int64_t> order;           // nodes that can still be committed, by falling gain, which is chance times worth
    std::vector<double> tokens, seconds;  // [n]: of a step that verifies the first n of them, from n = 0 on
    size_t best;                          // the n with the most tokens per second
    size_t most;                          // the largest n that loses at most `bearable` of a plain step's time against that
};

/// Of nodes with the same gain the one that is earlier in its own draft comes first, then the one of the earlier draft: so ties go
/// round the drafts, and parents come before their children. The target's own token takes the last place of an answer: with r
/// tokens left, nodes are of use down to depth r - 1.
/// Throws InputError for what are no trees, sizes that do not fit, and chances and worths that are not finite or below 0.
Selection selection(const Candidates& candidates, const StepCost& cost, const Besides& besides, double bearable);

}  // namespace foresay
