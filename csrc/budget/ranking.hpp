// What drafted nodes are worth, and in which order they are taken: the arithmetic of src/foresay/budget/adaptive.py, which is done
// in every step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "drafts.hpp"

namespace foresay {

/// The chance of each node, never above its parent's: the product along its path of what a score over its parent's is worth. `edges`
/// (rising) divide such ratios into classes, one more than edges; `gaps` is what is added in each class, first of nodes without a
/// parent, then of the others. Throws InputError for drafts without scores and for sizes that do not fit.
std::vector<double> calibrated(const Drafts& drafts, std::span<const double> edges, std::span<const double> gaps);

/// What verified nodes teach: those whose parent was accepted were tested.
struct Lessons {
    std::vector<int64_t> counts;   // of tested nodes by table and class
    std::vector<double> beyond;    // how many more of them were accepted than were stated to be
    std::vector<int64_t> roots;    // of each draft its nodes without a parent,
    std::vector<double> expected;  // the sum of their chances,
    std::vector<int64_t> accepted; // and how many of them were accepted
};

/// `accepted`: of each node. `tables`: which table each draft's nodes count for, of those that `gaps` has side by side, each as in
/// `calibrated`. Throws InputError as `calibrated`, and for a table that is not there.
Lessons lessons(const Drafts& drafts, std::span<const double> edges, std::span<const double> gaps, std::span<const bool> accepted,
                std::span<const int32_t> tables);

struct Ranked {
    std::vector<int64_t> order;  // nodes of all drafts, by falling gain
    std::vector<double> gains;   // in that order
};

/// Nodes by their chance times their draft's worth. Of equals the one that is earlier in its own draft comes first, then the one of
/// the earlier draft: so ties go round the drafts, and parents come before their children. `nodes`: only these; without it all.
/// Throws InputError for sizes that do not fit, chances and worths that are not finite or below 0, and a node that is not there.
Ranked ranked(std::span<const double> chances, std::span<const int32_t> offsets, std::span<const double> worth, std::optional<std::span<const int64_t>> nodes);

/// How long a step takes: by rows on lines between knots, and so much for each read, key and request. See src/foresay/budget/cost.py.
struct StepCost {
    std::span<const double> knots, shape;  // knots rise
    double per_read, per_key, per_request, level;

    double seconds(double rows, double reads, double keys, double requests) const noexcept;
};

struct Expected {
    std::vector<double> tokens, seconds;  // [n]: of a step that verifies the first n nodes of an order, from n = 0 on
};

/// What a step of requests with these contexts makes and takes. `tokens` and `seconds` are what it makes and takes besides. The time
/// of other rows is subtracted; they still count as rows, so that the nodes start further up the curve.
/// Throws InputError for sizes that do not fit, and for a node that is not there.
Expected expected(std::span<const int64_t> order, std::span<const double> gains, std::span<const int32_t> offsets, std::span<const int64_t> contexts,
                  const StepCost& cost, int64_t other_rows, int64_t other_reads, double tokens, double seconds);

}  // namespace foresay
