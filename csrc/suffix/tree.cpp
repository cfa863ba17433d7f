#include "suffix/tree.hpp"

#include <algorithm>
#include <bit>
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

void TreeGrower::start(const Growth& growth, uint32_t budget, float floor, const Calibration& calibration, const TokenLean* lean,
                       Considered& considered) {
    calibration_ = &calibration;
    growth_ = &growth;
    behind_ = budget <= Growth::kSmallTree && sources.size() == 1 ? &growth.small : &growth.node;
    lean_ = lean;
    considered_ = budget > 0 ? &considered : nullptr;  // asking for nothing leaves the last draft to be learned from
    room_ = budget;
    floor_ = floor;
    if (budget == 0) return;
    node_ = 0;
    fetched_ = false;
    first_pending_ = end_pending_ = 0;
    set_least(1.f);
    num_kinds_ = 0;
    for (const Source& source : sources)
        if (num_kinds_ == 0 || kinds_used_[num_kinds_ - 1] != source.kind) kinds_used_[num_kinds_++] = source.kind;
    considered.clear();
    considered.nodes.push_back({-1, -1, 1.f, 0, 0, 0});
    cursors.resize(size_t{budget + 1} * sources.size());  // [budget + 1, sources]
    if (!sources.empty() && sources[0].automaton) sources[0].automaton->prefetch(cursors[0].online.state);
}

bool TreeGrower::step() {
    if (room_ == 0) return false;
    if (!fetched_) {
        fetched_ = true;
        const Source& first = sources[0];
        if (first.automaton) first.automaton->prefetch_next(cursors[node_ * sources.size()].online.state);
        return true;
    }
    expand();
    do {
        if (first_pending_ == end_pending_ || pending_[end_pending_ - 1].score < floor_) return false;
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
    if (room_ > 0 && end_pending_ - first_pending_ >= room_) needed = pending_[end_pending_ - room_].score;
    by_floor_ = node_ > 0 && needed < floor_;
    if (by_floor_) needed = floor_;
    if (needed == 0) return;
    needed /= score;
    if (needed >= kMostCertain) least_ = std::numeric_limits<float>::infinity();
    else least_ = rough_log(needed / (1 - needed)) - (sources.size() == 1 ? kSlack : kSlackOfMany);
}

/// The log odds of the best that may follow a candidate, as far as can be told without looking: as if one token had always
/// followed it, less what that usually overstates.
float TreeGrower::promise(const Candidate& candidate) const {
    float best = -std::numeric_limits<float>::infinity();
    for (uint32_t k = 0; k < num_kinds_; ++k) {
        const Kind kind = kinds_used_[k];
        if (!(candidate.kinds >> kind & 1)) continue;
        const uint32_t count = candidate.counts[kind];
        const uint32_t entry = Calibration::context(candidate.lengths[kind] + 1u, 0) + Calibration::token(count, count, true);
        best = std::max(best, calibration_->table(kind)[entry].log_odds);
    }
    return best - kSlackOfMany;
}

/// Moves the best pending node into the tree; it will be expanded next.
void TreeGrower::take_best() {
    const Pending best = pending_[--end_pending_];
    if (growth_->chain) end_pending_ = first_pending_;
    const Candidate& taken = considered_->candidates[best.candidate];
    node_ = considered_->nodes.size();
    considered_->nodes.push_back({taken.token, static_cast<int32_t>(best.parent), best.score, 0, 0, taken.kinds});
    if (--room_ == 0) return;
    set_least(best.score);
    // Others stand in line for a place in the tree; what is above the floor has none to take.
    expandable_ = promise(taken) + (by_floor_ ? kSlackOfMany : 0) >= least_;
    if (!expandable_) return;
    for (size_t s = 0; s < sources.size(); ++s) {
        SourceCursor& cursor = cursors[node_ * sources.size() + s];
        cursor = cursors[best.parent * sources.size() + s];
        if (sources[s].automaton) {
            if (s == 0 && children_[best.candidate].length > 0) cursor.online = children_[best.candidate];
            else sources[s].automaton->advance(cursor.online, taken.token, kMostSuffixes);
            sources[s].automaton->prefetch(cursor.online.state);
        } else {
            sources[s].index->advance(cursor.frozen, taken.token);
        }
    }
    fetched_ = false;
}

void TreeGrower::append_to(PackedTrees& out) const {
    for (uint32_t n = 1; considered_ && n < considered_->nodes.size(); ++n) {
        const Considered::Node& node = considered_->nodes[n];
        out.tokens.push_back(node.token);
        out.parents.push_back(node.parent - 1);
        out.scores.push_back(node.score);
    }
    out.offsets.push_back(static_cast<int32_t>(out.tokens.size()));
}

/// Collects what may follow the node, estimates each, and queues those that may still get into the tree.
void TreeGrower::expand() {
    const Reach& reach = node_ == 0 ? growth_->root : *behind_;
    const float score = considered_->nodes[node_].score;
    begin_ = considered_->candidates.size();
    considered_->candidates.resize(begin_ + kMostCandidates);
    children_.resize(begin_ + kMostCandidates);
    found_ = considered_->candidates.begin() + begin_;
    num_found_ = 0;
    unseen_.fill(Candidate::kNothing);
    for (size_t s = 0; s < sources.size(); ++s) gather(s, reach);
    if (reach.usual > 0) gather_usual(std::min(room_, reach.usual));

    considered_->candidates.resize(begin_ + num_found_);
    considered_->nodes[node_].begin = begin_;
    considered_->nodes[node_].end = begin_ + num_found_;

    pending_.resize(end_pending_ + num_found_);
    const std::span<const Kind> kinds(kinds_used_.data(), num_kinds_);
    for (uint32_t c = 0; c < num_found_; ++c) {
        Candidate& candidate = found_[c];
        for (const Kind kind : kinds)
            if (!(candidate.kinds >> kind & 1)) candidate.entries[kind] = unseen_[kind];
        candidate.chance = calibration_->chance(candidate, kinds, lean_);
        wait({score * candidate.chance, begin_ + c, node_});
    }
}

/// Notes the longest context that a kind of source matches.
inline void TreeGrower::enter(Kind kind, uint32_t rank, uint32_t length, uint32_t best, uint32_t total) {
    if (rank == 0 && (unseen_[kind] == Candidate::kNothing || length > longest_[kind])) {
        longest_[kind] = length;
        unseen_[kind] = Calibration::unseen(length, best, total);
    }
}

/// Adds what one source knows: for each continuation the longest context it was seen after. Continuations stand by falling
/// count, so after the first that is too weak only the latest may be worth a look.
void TreeGrower::gather(size_t index, const Reach& reach) {
    const Source& source = sources[index];
    const SourceCursor& cursor = cursors[node_ * sources.size() + index];
    const Kind kind = source.kind;
    const Calibration::Entry* const table = calibration_->table(kind);
    uint32_t rank = 0;
    if (source.automaton) {
        Automaton::Walk walk = source.automaton->walk(cursor.online);
        for (Automaton::Context context; rank < reach.contexts && walk.next(context); ++rank) {
            enter(kind, rank, context.length, context.counts[0], context.total);
            const uint32_t shape = Calibration::context(context.length, rank);
            const uint32_t size = std::min(context.size, reach.width);
            bool latest_noted = false;
            for (uint32_t e = 0; e < size; ++e) {
                const bool latest = context.tokens[e] == context.latest;
                const uint32_t entry = shape + Calibration::token(context.counts[e], context.total, latest);
                latest_noted |= latest;
                if (table[entry].log_odds < least_) break;
                const Automaton::Cursor child{context.targets[e], index == 0 ? context.length + 1 : 0};
                note(kind, context.tokens[e], entry, context.length, context.counts[e], child);
            }
            if (!latest_noted) {
                const uint32_t entry = shape + Calibration::token(1, context.total, true);
                if (table[entry].log_odds >= least_) note(kind, context.latest, entry, context.length, 1, {});
            }
            if (reach.until_sure && num_found_ > 0 && found_[0].kinds >> kind & 1 &&
                table[found_[0].entries[kind]].log_odds > kSure)
                break;
        }
    } else {
        source.index->matches(cursor.frozen, reach.width, [&](const FrozenIndex::Context& context) {
            if (context.total == 0) return true;
            enter(kind, rank, context.length, context.top[0].count, context.total);
            const uint32_t shape = Calibration::context(context.length, rank);
            for (const Continuation& next : context.top) {
                const uint32_t entry = shape + Calibration::token(next.count, context.total, next.token == context.latest_token);
                if (table[entry].log_odds < least_) break;
                note(kind, next.token, entry, context.length, next.count, {});
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
    for (uint32_t e = 0; e < std::min(usual.size, most) && num_found_ < most; ++e) {
        const uint32_t entry = Calibration::context(0, 0) + Calibration::token(usual.counts[e], usual.total, false);
        if (calibration_->table(largest->kind)[entry].log_odds < least_) return;
        note(largest->kind, usual.tokens[e], entry, 0, usual.counts[e], {});
    }
}

/// Notes a piece of evidence, unless the same kind has told more of the token already. `child` is where the token leads in
/// sources[0], with length 0 if that is not known.
inline void TreeGrower::note(Kind kind, Token token, uint32_t entry, uint32_t length, uint32_t count, Automaton::Cursor child) {
    const uint8_t bit = static_cast<uint8_t>(1u << kind);
    const uint8_t short_length = static_cast<uint8_t>(std::min(length, 255u));
    uint32_t c = 0;
    while (c < num_found_ && tokens_[c] != token) ++c;
    Candidate& candidate = found_[c];
    if (c < num_found_) {
        if (candidate.kinds & bit && candidate.lengths[kind] >= short_length) return;
    } else {
        if (c == kMostCandidates) return;
        ++num_found_;
        tokens_[c] = token;
        constexpr uint16_t none = Candidate::kNothing;
        candidate = {token, 0, {none, none, none, none}, {}, {}, 0, 0};
        children_[begin_ + c] = child;
    }
    candidate.kinds |= bit;
    candidate.entries[kind] = static_cast<uint16_t>(entry);
    candidate.lengths[kind] = short_length;
    candidate.counts[kind] = static_cast<uint8_t>(std::min(count, 255u));
    candidate.longest = std::max(candidate.longest, Calibration::length_class(length));
}

/// Queues a node, if it may still be among the best that there is room for.
inline void TreeGrower::wait(const Pending& pending) {
    const bool full = end_pending_ - first_pending_ >= room_;
    if (full && pending.score <= pending_[end_pending_ - room_].score) return;
    uint32_t at = end_pending_++;
    for (; at > first_pending_ && pending_[at - 1].score >= pending.score; --at) pending_[at] = pending_[at - 1];
    pending_[at] = pending;
    first_pending_ += full;
}

}  // namespace foresay
