#include "tree.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foresay {
namespace {

// How much other evidence (the weights, the token, other sources) may add to the log odds of one piece of it.
constexpr float kSlack = 1.f;
constexpr float kSlackOfMany = 2.f;

}  // namespace

void TreeGrower::grow(const std::vector<Source>& sources, const std::vector<SourceCursor>& cursors, const Growth& growth,
                      uint32_t budget, const Calibration& calibration, Considered& considered, PackedTrees& out) {
    considered.clear();
    pending_.clear();
    cursors_.resize(size_t{budget + 1} * sources.size());
    std::copy(cursors.begin(), cursors.end(), cursors_.begin());
    considered.nodes.push_back({-1, -1, 1.f, 0, 0});
    if (budget > 0) expand(sources, growth, 0, budget, calibration, considered);

    for (uint32_t room = budget; room > 0 && !pending_.empty(); --room) {
        const Pending best = pending_.back();
        pending_.pop_back();
        if (growth.chain) pending_.clear();
        const Candidate taken = considered.candidates[best.candidate];
        const uint32_t node = static_cast<uint32_t>(considered.nodes.size());
        considered.nodes.push_back({taken.token, static_cast<int32_t>(best.parent), best.score, 0, 0});
        out.tokens.push_back(taken.token);
        out.parents.push_back(static_cast<int32_t>(best.parent) - 1);
        out.scores.push_back(best.score);
        out.kinds.push_back(taken.kinds);
        if (room == 1) break;
        const SourceCursor* from = &cursors_[best.parent * sources.size()];
        SourceCursor* to = &cursors_[node * sources.size()];
        for (const Source& source : sources) {
            *to = *from++;
            if (source.automaton) source.automaton->advance(to->online, taken.token);
            else source.index->advance(to->frozen, taken.token);
            ++to;
        }
        expand(sources, growth, node, room - 1, calibration, considered);
    }
    out.offsets.push_back(static_cast<int32_t>(out.tokens.size()));
}

/// Collects what may follow a node, estimates each, and queues those that may still get into the tree.
void TreeGrower::expand(const std::vector<Source>& sources, const Growth& growth, uint32_t node, uint32_t room,
                        const Calibration& calibration, Considered& considered) {
    // Once enough nodes wait, only a child that beats the weakest of them matters: evidence that cannot is passed over.
    const float score = considered.nodes[node].score;
    float least = -std::numeric_limits<float>::infinity();
    if (pending_.size() >= room) {
        const float needed = pending_[pending_.size() - room].score / score;
        if (needed >= 1) return;
        least = std::log(needed / (1 - needed)) - (sources.size() == 1 ? kSlack : kSlackOfMany);
    }
    num_found_ = 0;
    unseen_.fill(Candidate::kNothing);
    const SourceCursor* cursor = &cursors_[node * sources.size()];
    for (const Source& source : sources)
        gather(source, *cursor++, node == 0 ? growth.root : growth.node, room, least, calibration);

    const uint32_t begin = static_cast<uint32_t>(considered.candidates.size());
    for (uint32_t c = 0; c < num_found_; ++c) {
        Candidate& candidate = found_[c];
        for (uint32_t k = 0; k < kKinds; ++k)
            if (!(candidate.kinds >> k & 1)) candidate.entries[k] = unseen_[k];
        candidate.chance = calibration.chance(candidate);
        wait({score * candidate.chance, begin + c, node}, room);
    }
    considered.candidates.insert(considered.candidates.end(), found_.begin(), found_.begin() + num_found_);
    considered.nodes[node].begin = begin;
    considered.nodes[node].end = begin + num_found_;
}

/// Adds what one source knows: for each continuation the longest context it was seen after.
void TreeGrower::gather(const Source& source, const SourceCursor& cursor, const Reach& reach, uint32_t room, float least,
                        const Calibration& calibration) {
    const Kind kind = source.kind;
    uint32_t rank = 0;
    const auto enter = [&](uint32_t length, uint32_t best, uint32_t total) {
        if (rank == 0 && (unseen_[kind] == Candidate::kNothing || length > longest_[kind])) {
            longest_[kind] = length;
            unseen_[kind] = Calibration::entry_unseen(length, best, total);
        }
    };
    if (source.automaton) {
        source.automaton->contexts(cursor.online, reach.contexts, [&](const Automaton::Context& context) {
            enter(context.length, context.counts[0], context.total);
            const uint32_t size = std::min(context.size, context.length == 0 ? std::min(reach.most_usual, room) : reach.width);
            // Edges stand by falling count: after the first that is too weak only the latest may be worth a look.
            Evidence evidence{context.length, 0, context.total, rank, false};
            uint32_t latest = Edges::kNone;
            for (uint32_t e = 0; e < size; ++e) {
                evidence.count = context.counts[e];
                evidence.latest = context.tokens[e] == context.latest;
                if (evidence.latest) latest = e;
                if (!offer(kind, context.tokens[e], evidence, least, calibration)) break;
            }
            if (latest == Edges::kNone && context.length > 0) {
                evidence.count = 1;
                evidence.latest = true;
                offer(kind, context.latest, evidence, least, calibration);
            }
            ++rank;
            return true;
        });
    } else {
        source.index->matches(cursor.frozen, reach.width, [&](const FrozenIndex::Context& context) {
            if (context.total == 0) return true;
            enter(context.length, context.top[0].count, context.total);
            Evidence evidence{context.length, 0, context.total, rank, false};
            for (const Continuation& next : context.top) {
                evidence.count = next.count;
                evidence.latest = next.token == context.latest_token;
                if (!offer(kind, next.token, evidence, least, calibration)) break;
            }
            return ++rank < reach.contexts;
        });
    }
}

/// Notes a piece of evidence, unless the same kind has told more of the token already. False: it is too weak to matter.
inline bool TreeGrower::offer(Kind kind, Token token, const Evidence& evidence, float least, const Calibration& calibration) {
    const uint8_t bit = static_cast<uint8_t>(1u << kind);
    const uint8_t length = static_cast<uint8_t>(std::min(evidence.length, 255u));
    uint32_t c = 0;
    while (c < num_found_ && tokens_[c] != token) ++c;
    if (c < num_found_ && found_[c].kinds & bit && found_[c].lengths[kind] >= length) return true;
    const uint16_t entry = Calibration::entry(evidence);
    if (calibration.log_odds(kind, entry) < least) return false;
    if (c == num_found_) {
        if (c == kMostCandidates) return false;
        tokens_[c] = token;
        found_[c] = {token, 0, {}, {}, 0, 0};
        ++num_found_;
    }
    Candidate& candidate = found_[c];
    candidate.kinds |= bit;
    candidate.entries[kind] = entry;
    candidate.lengths[kind] = length;
    candidate.longest = std::max(candidate.longest, Calibration::length_class(length));
    return true;
}

/// Queues a node, if it may still be among the `room` best.
void TreeGrower::wait(const Pending& pending, uint32_t room) {
    const bool full = pending_.size() >= room;
    if (full && pending.score <= pending_[pending_.size() - room].score) return;
    const auto at = std::lower_bound(pending_.begin(), pending_.end(), pending,
                                     [](const Pending& a, const Pending& b) { return a.score < b.score; });
    pending_.insert(at, pending);
    if (full) pending_.erase(pending_.begin());
}

}  // namespace foresay
