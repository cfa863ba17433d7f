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

void TreeGrower::start(const Growth& growth, uint32_t budget, float floor, const Calibration& calibration, const TokenLean* lean,
                       Considered& considered) {
    calibration_ = &calibration;
    growth_ = &growth;
    behind_ = budget <= Growth::kSmallTree && sources.size() == 1 ? &growth.small : &growth.node;
    lean_ = lean;
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
    considered.clear();
    considered.nodes.push_back({-1, -1, 1.f, 0, 0, 0});
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
        gathered_ = lean_ != nullptr;
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
    expandable_ = promise(taken) + (by_floor_ ? kSlackOfMany : 0) >= least_;
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

void TreeGrower::append_to(PackedTrees& out) const {
    if (considered_) out.append(*considered_);
    else out.append_empty();
}

/// Collects what may follow the node, and asks for what their estimates read.
void TreeGrower::expand() {
    const Reach& reach = node_ == 0 ? growth_->root : *behind_;
    begin_ = considered_->candidates.size();
    considered_->candidates.resize(begin_ + kMostCandidates);
    origins_.resize(begin_ + kMostCandidates);
    found_ = considered_->candidates.begin() + begin_;
    num_found_ = 0;
    marks_ = 0;
    unseen_.fill(Candidate::kNothing);
    for (size_t s = 0; s < sources.size(); ++s) gather(s, reach);
    if (reach.usual > 0) gather_usual(std::min(room_, reach.usual));

    considered_->candidates.resize(begin_ + num_found_);
    considered_->nodes[node_].begin = begin_;
    considered_->nodes[node_].end = begin_ + num_found_;
    if (!lean_) return;
    for (uint32_t c = 0; c < num_found_; ++c) lean_->prefetch(tokens_[c], recents_[node_]);
}

/// Estimates what may follow the node, and queues those that may still get into the tree.
void TreeGrower::estimate() {
    const float score = considered_->nodes[node_].score;
    const std::span<const Kind> kinds(kinds_used_.data(), num_kinds_);
    const TokenLean::Recent& before = recents_[node_];
    for (uint32_t c = 0; c < num_found_; ++c) {
        Candidate& candidate = found_[c];
        if (num_kinds_ > 1) {  // else the one kind has seen it
            for (const Kind kind : kinds)
                if (!(candidate.kinds >> kind & 1)) candidate.entries[kind] = unseen_[kind];
            candidate.occurrence = occurrence(candidate.token);
        }
        candidate.chance = calibration_->chance(candidate, kinds, lean_ ? lean_->of(candidate.token, before) : 0.f);
    }
    // By itself, since a guess which is the better is often wrong: then the next chance would wait for the last.
    for (uint32_t c = 0; c < num_found_; ++c) wait(pending(score * found_[c].chance, begin_ + c));
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
    const SourceCursor& cursor = place(node_, index);
    const Kind kind = source.kind;
    const Calibration::Entry* const table = calibration_->table(kind);
    uint32_t rank = 0;
    if (source.automaton) {
        Automaton::Walk walk = source.automaton->walk(cursor.online);
        for (Automaton::Context context; rank < reach.contexts && walk.next(context); ++rank) {
            enter(kind, rank, context.length, context.counts[0], context.total);
            const Shape seen = shape(kind, context.length, rank);
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
            if (reach.until_sure && num_found_ > 0 && found_[0].kinds >> kind & 1 &&
                table[found_[0].entries[kind]].log_odds > kSure)
                break;
        }
    } else {
        source.index->matches(cursor.frozen, reach.width, [&](const FrozenIndex::Context& context) {
            if (context.total == 0) return true;
            enter(kind, rank, context.length, context.top[0].count, context.total);
            const Shape seen = shape(kind, context.length, rank);
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
    const Shape seen = shape(largest->kind, 0, 0);
    for (uint32_t e = 0; e < std::min(usual.size, most) && num_found_ < most; ++e) {
        const uint32_t entry = seen.entry + Calibration::token(usual.counts[e], usual.total, false);
        if (calibration_->table(largest->kind)[entry].log_odds < least_) return;
        note(seen, usual.tokens[e], entry, usual.counts[e], {});
    }
}

inline TreeGrower::Shape TreeGrower::shape(Kind kind, uint32_t length, uint32_t rank) noexcept {
    return {kind, Calibration::context(length, rank), length, static_cast<uint8_t>(std::min(length, 255u)), Calibration::length_class(length)};
}

/// Notes a piece of evidence, unless the same kind has told more of the token already.
inline void TreeGrower::note(const Shape& shape, Token token, uint32_t entry, uint32_t count, Automaton::Cursor child) {
    const Kind kind = shape.kind;
    const uint8_t bit = static_cast<uint8_t>(1u << kind);
    const uint64_t mark = uint64_t{1} << (static_cast<uint32_t>(token) % 64);
    uint32_t c = 0;
    if (marks_ & mark)
        while (c < num_found_ && tokens_[c] != token) ++c;
    else c = num_found_;
    Candidate& candidate = found_[c];
    if (c < num_found_) {
        if (candidate.kinds & bit && candidate.lengths[kind] >= shape.short_length) return;
    } else {
        if (c == kMostCandidates) return;
        ++num_found_;
        marks_ |= mark;
        tokens_[c] = token;
        constexpr uint16_t none = Candidate::kNothing;
        candidate = {token, 0, {none, none, none, none}, {}, {}, 0, 0, 0};
        origins_[begin_ + c] = {child, node_};
    }
    candidate.kinds |= bit;
    candidate.entries[kind] = static_cast<uint16_t>(entry);
    candidate.lengths[kind] = shape.short_length;
    candidate.counts[kind] = static_cast<uint8_t>(std::min(count, 255u));
    candidate.longest = std::max(candidate.longest, shape.length_class);
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
