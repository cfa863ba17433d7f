#include "budget/ranking.hpp"

#include <algorithm>
#include <cmath>

#include "checks.hpp"
#include "drafts.hpp"

namespace foresay {
namespace {

struct Node {
    double gain;
    int32_t place, owner;  // in its draft; its draft
    int64_t index;
};

void check_numbers(const char* name, std::span<const double> values) {
    for (size_t i = 0; i < values.size(); ++i)
        if (!(values[i] >= 0) || std::isinf(values[i]))
            throw InputError(name, "[", i, "] is ", values[i], "; expected a finite number from 0");
}

void check(const Candidates& of, const StepCost& cost) {
    check_parents(of.parents, of.offsets);
    const size_t requests = of.offsets.size() - 1;
    check_size("chances", of.chances.size(), of.parents.size());
    check_size("worth", of.worth.size(), requests), check_size("left", of.left.size(), requests), check_size("contexts", of.contexts.size(), requests);
    check_numbers("chances", of.chances), check_numbers("worth", of.worth);
    if (cost.knots.empty()) throw InputError("knots is empty; expected at least 1 number of rows");
    check_size("shape", cost.shape.size(), cost.knots.size());
}

/// The nodes that can still be committed, by falling gain.
std::vector<Node> ranked(const Candidates& of) {
    std::vector<Node> nodes;
    nodes.reserve(of.parents.size());
    std::vector<int32_t> depths(of.parents.size());
    for (size_t b = 0; b < of.worth.size(); ++b) {
        const auto begin = static_cast<size_t>(of.offsets[b]);
        for (size_t i = begin; i < static_cast<size_t>(of.offsets[b + 1]); ++i) {
            depths[i] = 1 + (of.parents[i] >= 0 ? depths[begin + static_cast<size_t>(of.parents[i])] : 0);
            if (depths[i] < of.left[b])
                nodes.push_back({of.chances[i] * of.worth[b], static_cast<int32_t>(i - begin), static_cast<int32_t>(b), static_cast<int64_t>(i)});
        }
    }
    std::sort(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) {
        if (a.gain != b.gain) return a.gain > b.gain;
        return a.place != b.place ? a.place < b.place : a.index < b.index;
    });
    return nodes;
}

}  // namespace

double StepCost::seconds(double rows, double reads, double keys, double requests) const noexcept {
    const auto above = static_cast<size_t>(std::upper_bound(knots.begin(), knots.end(), rows) - knots.begin());
    double own = shape[above == knots.size() ? above - 1 : 0];
    if (above > 0 && above < knots.size()) {
        const double share = (rows - knots[above - 1]) / (knots[above] - knots[above - 1]);
        own = shape[above - 1] + (shape[above] - shape[above - 1]) * share;
    }
    return (own + per_read * reads + per_key * keys + per_request * requests) * level;
}

Selection selection(const Candidates& candidates, const StepCost& cost, const Besides& besides, double bearable) {
    check(candidates, cost);
    const std::vector<Node> nodes = ranked(candidates);
    Selection out{};
    out.order.reserve(nodes.size()), out.tokens.reserve(nodes.size() + 1), out.seconds.reserve(nodes.size() + 1);
    const auto requests = static_cast<double>(candidates.contexts.size());
    double keys = 0;
    for (const int64_t context : candidates.contexts) keys += static_cast<double>(context);
    double rows = requests + static_cast<double>(besides.rows), reads = keys + static_cast<double>(besides.reads), tokens = besides.tokens;
    // The other rows are computed in any case, and make no token: their time is not the nodes' to share, or a long prefill would
    // make every node look cheap.
    const double more = besides.seconds - (cost.seconds(rows, reads, keys, requests) - cost.seconds(requests, keys, keys, requests));
    const auto add = [&] { out.tokens.push_back(tokens), out.seconds.push_back(cost.seconds(rows, reads, keys, requests) + more); };
    add();
    if (besides.overlaps) out.seconds.front() -= besides.seconds;
    for (const Node& node : nodes) {
        out.order.push_back(node.index);
        reads += static_cast<double>(candidates.contexts[static_cast<size_t>(node.owner)] + 1);
        rows += 1, tokens += node.gain;
        add();
    }
    for (size_t n = 1; n <= nodes.size(); ++n)
        if (out.tokens[n] / out.seconds[n] > out.tokens[out.best] / out.seconds[out.best]) out.best = n;
    const double per_token = out.seconds[out.best] / out.tokens[out.best];
    for (out.most = nodes.size(); out.most > out.best; --out.most)
        if (out.seconds[out.most] - out.tokens[out.most] * per_token <= bearable * out.seconds.front()) break;
    return out;
}

}  // namespace foresay
