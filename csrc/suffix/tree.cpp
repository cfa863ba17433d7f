#include "suffix/tree.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <span>

namespace foresay {
namespace {

// How much the weights, the token and other sources may add to the log odds of one piece of evidence.
constexpr float kSlack = 0.5f;
constexpr float kSlackOfMany = 1.f;
// Log odds of a context's best continuation beyond which shorter contexts are not asked.
constexpr float kSure = 0.5f;

}  // namespace

void TreeGrower::start(const Growth& growth, uint32_t budget, float floor, const Calibration& calibration, const TokenBias* bias,
                       Considered& considered) {
    calibration_ = &calibration;
    growth_ = &growth;
    behind_ = budget <= Growth::kSmallTree && sources.size() == 1 ? &growth.small : &growth.node;
    bias_ = bias;
    considered_ = budget > 0 ? &considered : nullptr;  // asking for nothing leaves the last draft to be learned from
    room_ = budget;
    floor_ = floor;
    ahead_ = Automaton::kRoot;
    ask_usual_ = gathered_ = false;
    if (budget == 0) return;
    node_ = 0;
    pending_.resize(budget);
    first_pending_ = end_pending_ = 0;
    set_least(1.f);
    num_kinds_ = 0;
    for (const Source& source : sources)
        if (num_kinds_ == 0 || kinds_used_[num_kinds_ - 1] != source.kind) kinds_used_[num_kinds_++] = source.kind;
    considered.start();
    places_.resize((budget + 1) * static_cast<uint32_t>(sources.size()));
    std::copy(cursors.begin(), cursors.end(), places_.begin());
    recents_.resize(budget + 1);
    recents_[0] = recent;
    if (sources.empty() || !sources[0].automaton) return;
    ahead_ = places_[0].online.state;
    ask_usual_ = growth.root.usual > 0;
    sources[0].automaton->prefetch(ahead_);
    if (ask_usual_) sources[0].automaton->prefetch(Automaton::kRoot);
}

void TreeGrower::fetch() {
    if (gathered_) return;
    if (ask_usual_) sources[0].automaton->prefetch_next(Automaton::kRoot);
    ask_usual_ = false;
    if (ahead_ == Automaton::kRoot) return;
    sources[0].automaton->prefetch_next(ahead_);
    ahead_ = sources[0].automaton->link(ahead_);
}

bool TreeGrower::step() {
    if (room_ == 0) return false;
    if (!gathered_) {
        expand();
        gathered_ = bias_ != nullptr;
        if (gathered_) return true;
    }
    gathered_ = false;
    estimate();
    do {
        if (first_pending_ == end_pending_ || score_of(pending_[first_pending_]) < floor_) return false;
        take_best();
        if (room_ == 0) return false;
    } while (!expandable_);
    return true;
}

/// Once enough nodes wait, only a child that beats the weakest of them matters, and one below the floor never does: sets the
/// log odds of evidence that cannot make one. The root's is all looked at, to be learned from.
void TreeGrower::set_least(float score) {
    least_ = -std::numeric_limits<float>::infinity();
    float needed = 0;
    if (room_ > 0 && end_pending_ - first_pending_ >= room_) needed = score_of(pending_[end_pending_ - 1]);
    by_floor_ = node_ > 0 && needed < floor_;
    if (by_floor_) needed = floor_;
    if (needed == 0) return;
    least_ = least_log_odds(needed / score, sources.size() == 1 ? kSlack : kSlackOfMany);
}

/// Moves the best pending node into the tree; it will be expanded next.
void TreeGrower::take_best() {
    const Pending best = pending_[first_pending_++];
    if (growth_->chain) end_pending_ = first_pending_;
    const uint32_t candidate = candidate_of(best);
    const Candidate& taken = considered_->candidates[candidate];
    const Origin& origin = origins_[candidate];
    node_ = considered_->nodes.size();
    considered_->nodes.push_back({taken.token, static_cast<int32_t>(origin.parent), score_of(best), 0, 0, taken.kinds});
    if (--room_ == 0) return;
    set_least(score_of(best));
    // Others stand in line for a place in the tree; what is above the floor has none to take.
    expandable_ = promise(*calibration_, taken, kinds()) - kSlackOfMany + (by_floor_ ? kSlackOfMany : 0) >= least_;
    if (!expandable_) return;
    recents_[node_] = recents_[origin.parent].then(taken.token);
    for (size_t s = 0; s < sources.size(); ++s) {
        SourceCursor& cursor = place(node_, s);
        cursor = place(origin.parent, s);
        if (sources[s].automaton) {
            if (s == 0 && origin.child.length > 0) cursor.online = origin.child;
            else sources[s].automaton->advance(cursor.online, taken.token, kMostSuffixes);
            sources[s].automaton->prefetch(cursor.online.state);
        } else {
            sources[s].index->advance(cursor.frozen, taken.token);
        }
    }
    if (sources[0].automaton) ahead_ = place(node_, 0).online.state;
}

/// Collects what may follow the node, and asks for what their estimates read.
void TreeGrower::expand() {
    const Reach& reach = node_ == 0 ? growth_->root : *behind_;
    evidence_.open(*considered_, Evidence::kMost);
    origins_.resize(evidence_.begin() + Evidence::kMost);
    for (size_t s = 0; s < sources.size(); ++s) gather(s, reach);
    if (reach.usual > 0) gather_usual(std::min(room_, reach.usual));
    evidence_.close(*considered_, node_);
    if (!bias_) return;
    for (const Candidate& candidate : evidence_.candidates()) bias_->prefetch(candidate.token, recents_[node_]);
}

/// Estimates what may follow the node, and queues those that may still get into the tree.
void TreeGrower::estimate() {
    const float score = considered_->nodes[node_].score;
    const TokenBias::Recent& before = recents_[node_];
    const std::span<Candidate> found = evidence_.candidates();
    for (Candidate& candidate : found) {
        if (num_kinds_ > 1) {  // else the one kind has seen it
            evidence_.add_unseen(candidate, kinds());
            candidate.occurrence = occurrence(candidate.token);
        }
        candidate.chance = calibration_->chance(candidate, kinds(), bias_ ? bias_->of(candidate.token, before) : 0.f);
    }
    // By itself, since a guess which is the better is often wrong: then the next chance would wait for the last.
    for (uint32_t c = 0; c < found.size(); ++c) wait(pending(score * found[c].chance, evidence_.begin() + c));
}

/// How often the request's own text and its group have a token.
uint8_t TreeGrower::occurrence(Token token) const {
    uint32_t own = 0, group = 0;
    for (const Source& source : sources) {
        if (source.kind == kOwn) own = source.automaton->usual(token);
        if (source.kind == kGroup) group = source.automaton->usual(token);
        if (source.kind > kGroup) break;  // they stand by kind
    }
    return Calibration::occurrence(own, group);
}

/// Adds what one source knows: for each continuation the longest context it was seen after. Continuations stand by falling
/// count, so after the first that is too weak only the latest may be worth a look.
void TreeGrower::gather(size_t index, const Reach& reach) {
    const Source& source = sources[index];
    const SourceCursor& cursor = place(node_, index);
    const Kind kind = source.kind;
    const Calibration::Entry* const table = calibration_->table(kind);
    uint32_t rank = 0;
    if (source.automaton) {
        Automaton::Walk walk = source.automaton->walk(cursor.online);
        for (Automaton::Context context; rank < reach.contexts && walk.next(context); ++rank) {
            if (rank == 0) evidence_.enter(kind, context.length, context.counts[0], context.total);
            const Evidence::Shape seen = Evidence::shape(kind, context.length, rank);
            const uint32_t size = std::min(context.size, reach.width);
            bool latest_noted = false;
            for (uint32_t e = 0; e < size; ++e) {
                const bool latest = context.tokens[e] == context.latest;
                const uint32_t entry = seen.entry + Calibration::token(context.counts[e], context.total, latest);
                latest_noted |= latest;
                if (table[entry].log_odds < least_) break;
                const Automaton::Cursor child{context.targets[e], index == 0 ? context.length + 1 : 0};
                note(seen, context.tokens[e], entry, context.counts[e], child);
            }
            if (!latest_noted) {
                const uint32_t entry = seen.entry + Calibration::token(1, context.total, true);
                if (table[entry].log_odds >= least_) note(seen, context.latest, entry, 1, {});
            }
            const std::span<const Candidate> found = evidence_.candidates();
            if (reach.until_sure && !found.empty() && found[0].kinds >> kind & 1 && table[found[0].entries[kind]].log_odds > kSure) break;
        }
    } else {
        source.index->matches(cursor.frozen, reach.width, [&](const FrozenIndex::Context& context) {
            if (context.total == 0) return true;
            if (rank == 0) evidence_.enter(kind, context.length, context.top[0].count, context.total);
            const Evidence::Shape seen = Evidence::shape(kind, context.length, rank);
            for (const Continuation& next : context.top) {
                const uint32_t entry = seen.entry + Calibration::token(next.count, context.total, next.token == context.latest_token);
                if (table[entry].log_odds < least_) break;
                note(seen, next.token, entry, next.count, {});
            }
            return ++rank < reach.contexts;
        });
    }
}

/// Fills up to `most` candidates with what is usual in the largest text.
void TreeGrower::gather_usual(uint32_t most) {
    const Source* largest = nullptr;
    for (const Source& source : sources)
        if (source.automaton && (!largest || source.automaton->size() > largest->automaton->size())) largest = &source;
    if (!largest) return;
    const Automaton::Context usual = largest->automaton->usual();
    const Evidence::Shape seen = Evidence::shape(largest->kind, 0, 0);
    for (uint32_t e = 0; e < std::min(usual.size, most) && evidence_.candidates().size() < most; ++e) {
        const uint32_t entry = seen.entry + Calibration::token(usual.counts[e], usual.total, false);
        if (calibration_->table(largest->kind)[entry].log_odds < least_) return;
        note(seen, usual.tokens[e], entry, usual.counts[e], {});
    }
}

inline void TreeGrower::note(const Evidence::Shape& shape, Token token, uint32_t entry, uint32_t count, Automaton::Cursor child) {
    if (evidence_.note(shape, token, entry, count))
        origins_[evidence_.begin() + static_cast<uint32_t>(evidence_.candidates().size()) - 1] = {child, node_};
}

/// Queues a node, if it may still be among the best that there is room for.
inline void TreeGrower::wait(Pending pending) {
    Pending* const first = pending_.begin() + first_pending_;
    Pending* const end = pending_.begin() + end_pending_;
    const bool full = end_pending_ - first_pending_ == room_;
    if (full && pending < end[-1]) return;
    end_pending_ += !full;
    if (room_ > kFew) {
        Pending* const at = std::upper_bound(first, end, pending, std::greater<>());
        std::move_backward(at, end - full, end + !full);
        *at = pending;
        return;
    }
    for (Pending* at = first; at < end; ++at) {  // without a branch on what cannot be foreseen
        const Pending better = std::max(*at, pending);
        pending = std::min(*at, pending);
        *at = better;
    }
    if (!full) *end = pending;
}

}  // namespace foresay
