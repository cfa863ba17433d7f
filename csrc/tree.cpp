#include "tree.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>

namespace foresay {
namespace {

// How much the weights, the token and other sources may add to the log odds of one piece of evidence.
constexpr float kSlack = 1.f;
constexpr float kSlackOfMany = 2.f;
// Log odds of a context's best continuation beyond which shorter contexts are not asked.
constexpr float kSure = 1.f;
// No single guess is more certain than this.
constexpr float kMostCertain = 0.98f;

/// The natural logarithm to within 0.06, which is enough for a bound with slack.
float rough_log(float x) noexcept {
    return 0.69314718f * (static_cast<float>(std::bit_cast<int32_t>(x)) * 0x1p-23f - 126.94f);
}

}  // namespace

void TreeGrower::start(const Growth& growth, uint32_t budget, const TokenLean* lean, Considered& considered) {
    growth_ = &growth;
    lean_ = lean;
    considered_ = &considered;
    room_ = budget;
    node_ = 0;
    fetched_ = false;
    first_pending_ = end_pending_ = 0;
    num_kinds_ = 0;
    for (const Source& source : sources)
        if (num_kinds_ == 0 || kinds_used_[num_kinds_ - 1] != source.kind) kinds_used_[num_kinds_++] = source.kind;
    kinds_.clear();
    considered.clear();
    considered.nodes.push_back({-1, -1, 1.f, 0, 0});
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
    if (first_pending_ == end_pending_) return false;
    take_best();
    return room_ > 0;
}

/// Moves the best pending node into the tree; it will be expanded next.
void TreeGrower::take_best() {
    const Pending best = pending_[--end_pending_];
    if (growth_->chain) end_pending_ = first_pending_;
    const Candidate& taken = considered_->candidates[best.candidate];
    node_ = static_cast<uint32_t>(considered_->nodes.size());
    considered_->nodes.push_back({taken.token, static_cast<int32_t>(best.parent), best.score, 0, 0});
    kinds_.push_back(taken.kinds);
    if (--room_ == 0) return;
    for (size_t s = 0; s < sources.size(); ++s) {
        SourceCursor& cursor = cursors[node_ * sources.size() + s];
        cursor = cursors[best.parent * sources.size() + s];
        if (sources[s].automaton) {
            sources[s].automaton->advance(cursor.online, taken.token);
            sources[s].automaton->prefetch(cursor.online.state);
        } else {
            sources[s].index->advance(cursor.frozen, taken.token);
        }
    }
    fetched_ = false;
}

void TreeGrower::append_to(PackedTrees& out) const {
    for (size_t n = 1; n < considered_->nodes.size(); ++n) {
        out.tokens.push_back(considered_->nodes[n].token);
        out.parents.push_back(considered_->nodes[n].parent - 1);
        out.scores.push_back(considered_->nodes[n].score);
    }
    out.kinds.insert(out.kinds.end(), kinds_.begin(), kinds_.end());
    out.offsets.push_back(static_cast<int32_t>(out.tokens.size()));
}

/// Collects what may follow the node, estimates each, and queues those that may still get into the tree.
void TreeGrower::expand() {
    // Once enough nodes wait, only a child that beats the weakest of them matters: evidence that cannot is passed over.
    const Reach& reach = node_ == 0 ? growth_->root : growth_->node;
    const float score = considered_->nodes[node_].score;
    least_ = -std::numeric_limits<float>::infinity();
    if (end_pending_ - first_pending_ >= room_) {
        const float needed = pending_[end_pending_ - room_].score / score;
        if (needed >= kMostCertain) return;
        least_ = rough_log(needed / (1 - needed)) - (sources.size() == 1 ? kSlack : kSlackOfMany);
    }
    num_found_ = 0;
    unseen_.fill(Candidate::kNothing);
    for (size_t s = 0; s < sources.size(); ++s) gather(sources[s], cursors[node_ * sources.size() + s], reach);
    if (reach.usual > 0) gather_usual(std::min(room_, reach.usual));

    std::vector<Candidate>& candidates = considered_->candidates;
    const uint32_t begin = static_cast<uint32_t>(candidates.size());
    if (pending_.size() < end_pending_ + num_found_) pending_.resize(2 * (end_pending_ + num_found_));
    const std::span<const Kind> kinds(kinds_used_.data(), num_kinds_);
    for (uint32_t c = 0; c < num_found_; ++c) {
        Candidate& candidate = found_[c];
        for (const Kind kind : kinds)
            if (!(candidate.kinds >> kind & 1)) candidate.entries[kind] = unseen_[kind];
        candidate.chance = calibration_->chance(candidate, kinds, lean_);
        wait({score * candidate.chance, begin + c, node_});
    }
    candidates.insert(candidates.end(), found_.begin(), found_.begin() + num_found_);
    considered_->nodes[node_].begin = begin;
    considered_->nodes[node_].end = begin + num_found_;
}

/// Notes the longest context that a kind of source matches.
inline void TreeGrower::enter(Kind kind, uint32_t rank, uint32_t length, uint32_t best, uint32_t total) {
    if (rank == 0 && (unseen_[kind] == Candidate::kNothing || length > longest_[kind])) {
        longest_[kind] = length;
        unseen_[kind] = Calibration::entry_unseen(length, best, total);
    }
}

/// Adds what one source knows: for each continuation the longest context it was seen after. Continuations stand by falling
/// count, so after the first that is too weak only the latest may be worth a look.
void TreeGrower::gather(const Source& source, const SourceCursor& cursor, const Reach& reach) {
    uint32_t rank = 0;
    if (source.automaton) {
        Automaton::Walk walk = source.automaton->walk(cursor.online);
        for (Automaton::Context context; rank < reach.contexts && walk.next(context); ++rank) {
            enter(source.kind, rank, context.length, context.counts[0], context.total);
            const uint32_t size = std::min(context.size, reach.width);
            bool latest_offered = false;
            for (uint32_t e = 0; e < size; ++e) {
                const bool latest = context.tokens[e] == context.latest;
                latest_offered |= latest;
                if (!offer(source.kind, context.tokens[e], {context.length, context.counts[e], context.total, rank, latest})) break;
            }
            if (!latest_offered) offer(source.kind, context.latest, {context.length, 1, context.total, rank, true});
            if (reach.until_sure && num_found_ > 0 && found_[0].kinds >> source.kind & 1 &&
                calibration_->log_odds(source.kind, found_[0].entries[source.kind]) > kSure)
                break;
        }
    } else {
        source.index->matches(cursor.frozen, reach.width, [&](const FrozenIndex::Context& context) {
            if (context.total == 0) return true;
            enter(source.kind, rank, context.length, context.top[0].count, context.total);
            for (const Continuation& next : context.top) {
                const bool latest = next.token == context.latest_token;
                if (!offer(source.kind, next.token, {context.length, next.count, context.total, rank, latest})) break;
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
    for (uint32_t e = 0; e < std::min(usual.size, most) && num_found_ < most; ++e)
        if (!offer(largest->kind, usual.tokens[e], {0, usual.counts[e], usual.total, 0, false})) break;
}

/// Notes a piece of evidence, unless the same kind has told more of the token already. False: it is too weak to matter.
inline bool TreeGrower::offer(Kind kind, Token token, const Evidence& evidence) {
    const uint8_t bit = static_cast<uint8_t>(1u << kind);
    const uint8_t length = static_cast<uint8_t>(std::min(evidence.length, 255u));
    uint32_t c = 0;
    while (c < num_found_ && tokens_[c] != token) ++c;
    if (c < num_found_ && found_[c].kinds & bit && found_[c].lengths[kind] >= length) return true;
    const uint16_t entry = Calibration::entry(evidence);
    if (calibration_->log_odds(kind, entry) < least_) return false;
    if (c == num_found_) {
        if (c == kMostCandidates) return false;
        tokens_[c] = token;
        constexpr uint16_t none = Candidate::kNothing;
        found_[c] = {token, 0, {none, none, none, none}, {}, 0, 0};
        ++num_found_;
    }
    Candidate& candidate = found_[c];
    candidate.kinds |= bit;
    candidate.entries[kind] = entry;
    candidate.lengths[kind] = length;
    candidate.longest = std::max(candidate.longest, Calibration::length_class(length));
    return true;
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
