#include "budget/ranking.hpp"

#include <algorithm>
#include <cmath>

#include "checks.hpp"

namespace foresay {
namespace {

void check_numbers(const char* name, std::span<const double> values) {
    for (size_t i = 0; i < values.size(); ++i)
        if (!(values[i] >= 0) || std::isinf(values[i]))
            throw InputError(name, "[", i, "] is ", values[i], "; expected a finite number from 0");
}

struct Classed {
    double stated;
    size_t kind;
};

/// Node i's stated chance given its parent, and the class of that: of csrc/budget/ranking.hpp's, as in src/foresay/budget/calibration.py.
Classed classed(const Drafts& drafts, std::span<const double> edges, size_t begin, size_t i) {
    const bool below = drafts.parents[i] >= 0;
    const double above = below ? double{drafts.scores[begin + static_cast<size_t>(drafts.parents[i])]} : 1.0;
    const double stated = drafts.scores[i] / std::max(above, 1e-9);
    const auto kind = static_cast<size_t>(std::lower_bound(edges.begin(), edges.end(), stated) - edges.begin());
    return {stated, kind + (below ? edges.size() + 1 : 0)};
}

/// Bounded away from 1 by more than rounding, so that no child can overtake its parent.
double bounded(double chance) { return std::clamp(chance, 1e-6, 1 - 1e-9); }

void check_scored(const Drafts& drafts) {
    check_drafts(drafts);
    if (!drafts.scores) throw InputError("the drafts have no scores; expected one for each node");
}

}  // namespace

std::vector<double> calibrated(const Drafts& drafts, std::span<const double> edges, std::span<const double> gaps) {
    check_scored(drafts);
    check_size("gaps", gaps.size(), 2 * (edges.size() + 1));
    std::vector<double> chances(drafts.tokens.size());
    for (size_t b = 0; b + 1 < drafts.offsets.size(); ++b) {
        const auto begin = static_cast<size_t>(drafts.offsets[b]);
        for (size_t i = begin; i < static_cast<size_t>(drafts.offsets[b + 1]); ++i) {
            const bool below = drafts.parents[i] >= 0;
            const size_t parent = below ? begin + static_cast<size_t>(drafts.parents[i]) : 0;
            const auto [stated, kind] = classed(drafts, edges, begin, i);
            chances[i] = bounded(stated + gaps[kind]) * (below ? chances[parent] : 1.0);
        }
    }
    return chances;
}

Lessons lessons(const Drafts& drafts, std::span<const double> edges, std::span<const double> gaps, std::span<const bool> accepted,
                std::span<const int32_t> tables) {
    check_scored(drafts);
    const size_t classes = 2 * (edges.size() + 1), count = drafts.offsets.size() - 1;
    if (gaps.empty() || gaps.size() % classes) throw InputError("gaps has ", gaps.size(), " values; expected ", classes, " for each table");
    check_size("accepted", accepted.size(), drafts.tokens.size()), check_size("tables", tables.size(), count);
    Lessons out{std::vector<int64_t>(gaps.size()), std::vector<double>(gaps.size()), std::vector<int64_t>(count), std::vector<double>(count),
                std::vector<int64_t>(count)};
    for (size_t b = 0; b < count; ++b) {
        if (tables[b] < 0 || static_cast<size_t>(tables[b]) >= gaps.size() / classes)
            throw InputError("table ", tables[b], " is not there; expected 0 to ", gaps.size() / classes - 1);
        const auto begin = static_cast<size_t>(drafts.offsets[b]);
        for (size_t i = begin; i < static_cast<size_t>(drafts.offsets[b + 1]); ++i) {
            const auto [stated, kind] = classed(drafts, edges, begin, i);
            const size_t place = static_cast<size_t>(tables[b]) * classes + kind;
            const bool root = drafts.parents[i] < 0;
            if (root) out.roots[b] += 1, out.expected[b] += bounded(stated + gaps[place]), out.accepted[b] += accepted[i];
            if (root || accepted[begin + static_cast<size_t>(drafts.parents[i])])
                out.counts[place] += 1, out.beyond[place] += (accepted[i] ? 1.0 : 0.0) - stated;
        }
    }
    return out;
}

Ranked ranked(std::span<const double> chances, std::span<const int32_t> offsets, std::span<const double> worth, std::optional<std::span<const int64_t>> nodes) {
    const size_t count = chances.size();
    check_offsets(offsets, count);
    check_size("worth", worth.size(), offsets.size() - 1);
    check_numbers("chances", chances), check_numbers("worth", worth);
    struct Node {
        double gain;
        int64_t place, index;
    };
    std::vector<Node> all(count);
    for (size_t b = 0; b < worth.size(); ++b)
        for (int32_t i = offsets[b]; i < offsets[b + 1]; ++i) all[static_cast<size_t>(i)] = {chances[static_cast<size_t>(i)] * worth[b], i - offsets[b], i};
    if (nodes) {
        std::vector<Node> some;
        for (const int64_t node : *nodes) {
            if (node < 0 || static_cast<size_t>(node) >= count)
                throw InputError("node ", node, " is not there; expected 0 to ", static_cast<int64_t>(count) - 1);
            some.push_back(all[static_cast<size_t>(node)]);
        }
        all = std::move(some);
    }
    std::sort(all.begin(), all.end(), [](const Node& a, const Node& b) {
        if (a.gain != b.gain) return a.gain > b.gain;
        return a.place != b.place ? a.place < b.place : a.index < b.index;
    });
    Ranked out;
    out.order.reserve(all.size()), out.gains.reserve(all.size());
    for (const Node& node : all) out.order.push_back(node.index), out.gains.push_back(node.gain);
    return out;
}

double StepCost::seconds(double rows, double reads, double keys, double requests) const noexcept {
    const auto above = static_cast<size_t>(std::upper_bound(knots.begin(), knots.end(), rows) - knots.begin());
    double own = shape[above == knots.size() ? above - 1 : 0];
    if (above > 0 && above < knots.size()) {
        const double share = (rows - knots[above - 1]) / (knots[above] - knots[above - 1]);
        own = shape[above - 1] + (shape[above] - shape[above - 1]) * share;
    }
    return (own + per_read * reads + per_key * keys + per_request * requests) * level;
}

Expected expected(std::span<const int64_t> order, std::span<const double> gains, std::span<const int32_t> offsets, std::span<const int64_t> contexts,
                  const StepCost& cost, int64_t other_rows, int64_t other_reads, double tokens, double seconds) {
    check_size("gains", gains.size(), order.size());
    check_size("offsets", offsets.size(), contexts.size() + 1);
    if (cost.knots.empty()) throw InputError("knots is empty; expected at least 1 number of rows");
    check_size("shape", cost.shape.size(), cost.knots.size());
    check_offsets(offsets, static_cast<size_t>(std::max(0, offsets.back())));
    const auto requests = static_cast<double>(contexts.size());
    double keys = 0;
    for (const int64_t context : contexts) keys += static_cast<double>(context);
    double rows = requests + static_cast<double>(other_rows), reads = keys + static_cast<double>(other_reads);
    // The other rows are computed in any case, and make no token: their time is not the nodes' to share, or a long prefill would
    // make every node look cheap.
    seconds -= cost.seconds(rows, reads, keys, requests) - cost.seconds(requests, keys, keys, requests);
    Expected out;
    out.tokens.reserve(order.size() + 1), out.seconds.reserve(order.size() + 1);
    for (size_t i = 0;; ++i) {
        out.tokens.push_back(tokens), out.seconds.push_back(cost.seconds(rows, reads, keys, requests) + seconds);
        if (i == order.size()) return out;
        const auto next = std::upper_bound(offsets.begin(), offsets.end(), order[i]);  // where the next draft begins
        if (order[i] < 0 || next == offsets.end()) throw InputError("node ", order[i], " is not there; expected 0 to ", offsets.back() - 1);
        reads += static_cast<double>(contexts[static_cast<size_t>(next - offsets.begin()) - 1] + 1);
        rows += 1, tokens += gains[i];
    }
}

}  // namespace foresay
