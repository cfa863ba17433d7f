#include "budget/worth.hpp"

#include <algorithm>
#include <cmath>

#include "checks.hpp"

namespace foresay {
namespace {

/// Node i's score over its parent's.
double stated(const Drafts& drafts, size_t begin, size_t i) {
    const double above = drafts.parents[i] >= 0 ? double{drafts.scores[begin + static_cast<size_t>(drafts.parents[i])]} : 1.0;
    return drafts.scores[i] / std::max(above, 1e-9);
}

/// Bounded away from 1 by more than rounding, so that no child can overtake its parent.
double bounded(double chance) { return std::clamp(chance, 1e-6, 1 - 1e-9); }

double fading(double prior, double memory) {
    if (!(prior > 0) || std::isinf(prior)) throw InputError("prior is ", prior, "; expected a number above 0");
    if (!(memory >= 1)) throw InputError("memory is ", memory, "; expected a number from 1");
    return 1 - 1 / memory;
}

void check(const Drafts& drafts, ClassTables tables, std::span<const int32_t> rows) {
    check_drafts(drafts);
    if (!drafts.scores) throw InputError("the drafts have no scores; expected one for each node");
    check_size("rows", rows.size(), drafts.offsets.size() - 1);
    for (const int32_t row : rows)
        if (row < 0 || static_cast<size_t>(row) >= tables.size())
            throw InputError("table ", row, " is not there; expected 0 to ", static_cast<int64_t>(tables.size()) - 1);
}

}  // namespace

ClassTable::ClassTable(std::vector<double> edges, double prior, double memory) : edges_(std::move(edges)), prior_(prior), fades_(fading(prior, memory)) {
    for (size_t i = 0; i < edges_.size(); ++i)
        if (!(edges_[i] > (i ? edges_[i - 1] : 0.0))) throw InputError("edges[", i, "] is ", edges_[i], "; expected edges that rise from above 0");
    const size_t classes = 2 * (edges_.size() + 1);
    for (auto* const values : {&seen_, &beyond_, &gap_, &counts_, &more_}) values->resize(classes);
}

size_t ClassTable::class_of(double stated, bool below) const noexcept {
    const auto kind = static_cast<size_t>(std::lower_bound(edges_.begin(), edges_.end(), stated) - edges_.begin());
    return kind + (below ? edges_.size() + 1 : 0);
}

void ClassTable::test(size_t kind, double stated, bool accepted) noexcept {
    counts_[kind] += 1;
    more_[kind] += (accepted ? 1.0 : 0.0) - stated;
}

void ClassTable::settle() noexcept {
    for (size_t kind = 0; kind < gap_.size(); ++kind) {
        if (counts_[kind] == 0) continue;
        const double kept = std::pow(fades_, counts_[kind]);
        seen_[kind] = seen_[kind] * kept + counts_[kind];
        beyond_[kind] = beyond_[kind] * kept + more_[kind];
        gap_[kind] = beyond_[kind] / (seen_[kind] + prior_);
        counts_[kind] = more_[kind] = 0;
    }
}

RequestFactors::RequestFactors(double prior, double memory, size_t most) : prior_(prior), fades_(fading(prior, memory)), most_(most) {
    if (most == 0) throw InputError("most is 0; expected at least 1 request to be remembered");
}

std::vector<double> RequestFactors::of(std::span<const int64_t> ids) const {
    std::vector<double> factors(ids.size(), 1.0);
    for (size_t i = 0; i < ids.size(); ++i)
        if (const auto found = requests_.find(ids[i]); found != requests_.end()) factors[i] = found->second.factor;
    return factors;
}

void RequestFactors::observe(int64_t id, double expected, double accepted) {
    auto found = requests_.find(id);
    if (found == requests_.end()) {
        order_.push_back(id);
        try {
            found = requests_.emplace(id, Request{0, 0, 1, std::prev(order_.end())}).first;
        } catch (...) {
            order_.pop_back();
            throw;
        }
    }
    Request& request = found->second;
    order_.splice(order_.end(), order_, request.place);
    request.expected = request.expected * fades_ + std::min(1.0, expected);
    request.accepted = request.accepted * fades_ + accepted;
    request.factor = std::min(1.0, (request.accepted + prior_) / (request.expected + prior_));
}

void RequestFactors::forget() {
    for (; requests_.size() > most_; order_.pop_front()) requests_.erase(order_.front());
}

std::vector<double> calibrated(const Drafts& drafts, ClassTables tables, std::span<const int32_t> rows) {
    check(drafts, tables, rows);
    std::vector<double> chances(drafts.tokens.size());
    for (size_t b = 0; b < rows.size(); ++b) {
        const ClassTable& table = *tables[static_cast<size_t>(rows[b])];
        const auto begin = static_cast<size_t>(drafts.offsets[b]);
        for (size_t i = begin; i < static_cast<size_t>(drafts.offsets[b + 1]); ++i) {
            const bool below = drafts.parents[i] >= 0;
            const double own = stated(drafts, begin, i);
            const double above = below ? chances[begin + static_cast<size_t>(drafts.parents[i])] : 1.0;
            chances[i] = bounded(own + table.gap(table.class_of(own, below))) * above;
        }
    }
    return chances;
}

void learn(const Drafts& drafts, std::span<const bool> accepted, ClassTables tables, std::span<const int32_t> rows, RequestFactors* factors,
           std::span<const int64_t> ids) {
    check(drafts, tables, rows);
    check_size("accepted", accepted.size(), drafts.tokens.size());
    if (factors) check_size("ids", ids.size(), rows.size());
    for (size_t b = 0; b < rows.size(); ++b) {
        ClassTable& table = *tables[static_cast<size_t>(rows[b])];
        const auto begin = static_cast<size_t>(drafts.offsets[b]);
        size_t roots = 0, right = 0;
        double expected = 0;
        for (size_t i = begin; i < static_cast<size_t>(drafts.offsets[b + 1]); ++i) {
            const bool below = drafts.parents[i] >= 0;
            const double own = stated(drafts, begin, i);
            const size_t kind = table.class_of(own, below);
            if (!below) ++roots, expected += bounded(own + table.gap(kind)), right += accepted[i];
            if (!below || accepted[begin + static_cast<size_t>(drafts.parents[i])]) table.test(kind, own, accepted[i]);
        }
        if (factors && roots) factors->observe(ids[b], expected, static_cast<double>(right));
    }
    for (ClassTable* const table : tables) table->settle();
    if (factors) factors->forget();
}

void follow_places(Matrix<double> means, std::span<const int32_t> nodes, std::span<const bool> accepted, size_t asked, size_t requests, double rate) {
    if (means.count != 2) throw InputError("means has ", means.count, " rows; expected 2, of verified and of accepted nodes");
    if (asked > means.width) throw InputError("asked is ", asked, "; expected at most ", means.width, ", the places of a draft");
    if (requests == 0) throw InputError("requests is 0; expected at least 1");
    if (!(rate >= 0 && rate <= 1)) throw InputError("rate is ", rate, "; expected 0 to 1");
    check_size("accepted", accepted.size(), nodes.size());
    std::vector<double> counts(2 * asked);
    for (size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i] < 0) throw InputError("nodes[", i, "] is ", nodes[i], "; expected a place from 0");
        const auto place = static_cast<size_t>(nodes[i]);
        if (place < asked) counts[place] += 1, counts[asked + place] += accepted[i];
    }
    for (size_t row = 0; row < 2; ++row)
        for (size_t place = 0; place < asked; ++place) {
            double& mean = means.row(row)[place];
            mean += (counts[row * asked + place] / static_cast<double>(requests) - mean) * rate;
        }
}

}  // namespace foresay
