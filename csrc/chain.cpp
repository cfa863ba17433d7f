#include "chain.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace foresay {
namespace {

// How much the weights and the token may add to the log odds of one piece of evidence.
constexpr float kSlack = 1.f;
// Log odds of what the request's own text and its group say beyond which the history is not asked.
static const float kSure = getenv("SURE") ? atof(getenv("SURE")) : 0.5f;
// Suffixes tried for a node's place in a text: they can be as many as the text has tokens, and a draft is not worth that.
static const uint32_t kMostSuffixes = getenv("MOST") ? atoi(getenv("MOST")) : 16;
// No single guess is more certain than this.
constexpr float kMostCertain = 0.98f;

}  // namespace

void ChainGrower::start(std::span<const Token> text, uint32_t budget, float floor, const Calibration& calibration,
                        const TokenLean* lean, Considered& considered) {
    text_ = text;
    calibration_ = &calibration;
    lean_ = lean;
    considered_ = budget > 0 ? &considered : nullptr;  // asking for nothing leaves the last draft to be learned from
    room_ = budget;
    floor_ = floor;
    if (budget == 0) return;
    least_ = -std::numeric_limits<float>::infinity();  // at the root all is looked at, to be learned from
    node_ = 0;
    read_ = static_cast<uint32_t>(text.size());
    considered.clear();
    considered.nodes.push_back({-1, -1, 1.f, 0, 0, 0});
    children_.resize(places.size());
    open();
}

/// Begins to ask what may follow the chain's end.
void ChainGrower::open() {
    begin_ = considered_->candidates.size();
    considered_->candidates.resize(begin_ + kMostCandidates);
    found_ = considered_->candidates.begin() + begin_;
    num_found_ = 0;
    asked_ = 0;
    at_ = 0;
    stage_ = Stage::fetch;
    for (const Place& place : places) place.automaton->prefetch(place.cursor.state);
}

bool ChainGrower::step() {
    if (room_ == 0) return false;
    switch (stage_) {
        case Stage::fetch: {
            bool wait = false;
            for (const Place& place : places) wait |= fetch(place);
            stage_ = Stage::ask;
            if (wait) return true;
            [[fallthrough]];
        }
        case Stage::ask:
            for (; at_ < places.size() && places[at_].kind != kHistory; ++at_) gather(at_);
            if (!doubtful()) return choose();
            stage_ = Stage::read;
            [[fallthrough]];
        case Stage::read:
            while (at_ < places.size()) {
                Place& place = places[at_];
                if (place.read == read_) {
                    gather(at_++);
                } else if (!read_on(place)) {
                    stage_ = Stage::fetch_read;
                    return true;
                }
            }
            return choose();
        case Stage::fetch_read:
            stage_ = Stage::read;
            if (fetch(places[at_])) return true;
            return step();
    }
    return false;
}

/// Asks for what the place will be read from next; false if that is there already.
inline bool ChainGrower::fetch(const Place& place) const {
    if (place.read == read_) return place.automaton->prefetch_next(place.cursor.state);
    return place.automaton->prefetch_next(place.cursor.state, token_at(place.read));
}

/// Moves the place on by a suffix or a token; returns false, as its next state has to be fetched first.
inline bool ChainGrower::read_on(Place& place) const {
    if (place.automaton->advance_once(place.cursor, token_at(place.read))) {
        ++place.read;
        if (place.read == text_.size() && place.bookmark) {
            place.bookmark->cursor = place.cursor;
            place.bookmark->read = place.read;
        }
    }
    place.automaton->prefetch(place.cursor.state);
    return false;
}

/// Whether the history is worth asking.
bool ChainGrower::doubtful() const {
    if (at_ == places.size()) return false;
    for (uint32_t c = 0; c < num_found_; ++c)
        for (const Kind kind : {kOwn, kGroup})
            if (found_[c].kinds >> kind & 1 && calibration_->table(kind)[found_[c].entries[kind]].log_odds > kSure) return false;
    return true;
}

/// Adds what a text knows: the longest context's most frequent continuation, and the latest.
void ChainGrower::gather(size_t index) {
    const Place& place = places[index];
    children_[index].cursor.length = 0;
    Automaton::Best best;
    if (!place.automaton->best(place.cursor, best)) return;
    const Kind kind = place.kind;
    if (!(asked_ >> kind & 1) || best.length > longest_[kind]) {
        asked_ |= static_cast<uint8_t>(1u << kind);
        longest_[kind] = best.length;
        unseen_[kind] = Calibration::unseen(best.length, best.first.count, best.total);
    }
    const Calibration::Entry* const table = calibration_->table(kind);
    const uint32_t shape = Calibration::context(best.length, 0);
    const bool latest = best.first.token == best.latest;
    const uint32_t entry = shape + Calibration::token(best.first.count, best.total, latest);
    if (table[entry].log_odds >= least_) {
        children_[index] = {best.first.token, {best.first.target, best.length + 1}};
        note(kind, best.first.token, entry, best.length, best.first.count);
    }
    if (latest) return;
    const uint32_t other = shape + Calibration::token(1, best.total, true);
    if (table[other].log_odds >= least_) note(kind, best.latest, other, best.length, 1);
}

/// Notes a piece of evidence, unless the same kind has told more of the token already.
inline void ChainGrower::note(Kind kind, Token token, uint32_t entry, uint32_t length, uint32_t count) {
    const uint8_t bit = static_cast<uint8_t>(1u << kind);
    const uint8_t short_length = static_cast<uint8_t>(std::min(length, 255u));
    uint32_t c = 0;
    while (c < num_found_ && found_[c].token != token) ++c;
    Candidate& candidate = found_[c];
    if (c < num_found_) {
        if (candidate.kinds & bit && candidate.lengths[kind] >= short_length) return;
    } else {
        if (c == kMostCandidates) return;
        ++num_found_;
        constexpr uint16_t none = Candidate::kNothing;
        candidate = {token, 0, {none, none, none, none}, {}, {}, 0, 0};
    }
    candidate.kinds |= bit;
    candidate.entries[kind] = static_cast<uint16_t>(entry);
    candidate.lengths[kind] = short_length;
    candidate.counts[kind] = static_cast<uint8_t>(std::min(count, 255u));
    candidate.longest = std::max(candidate.longest, Calibration::length_class(length));
}

/// Takes the best of what was found into the chain, and goes on behind it; false if the chain ends here.
bool ChainGrower::choose() {
    considered_->candidates.resize(begin_ + num_found_);
    considered_->nodes[node_].begin = begin_;
    considered_->nodes[node_].end = begin_ + num_found_;
    const Candidate* best = nullptr;
    std::array<Kind, kKinds> kinds;
    uint32_t num_kinds = 0;
    for (const Kind kind : {kOwn, kGroup, kHistory})
        if (asked_ >> kind & 1) kinds[num_kinds++] = kind;
    for (uint32_t c = 0; c < num_found_; ++c) {
        Candidate& candidate = found_[c];
        for (uint32_t k = 0; k < num_kinds; ++k)
            if (!(candidate.kinds >> kinds[k] & 1)) candidate.entries[kinds[k]] = unseen_[kinds[k]];
        candidate.chance = calibration_->chance(candidate, {kinds.data(), num_kinds}, lean_);
        if (!best || candidate.chance > best->chance) best = &candidate;
    }
    const float score = best ? considered_->nodes[node_].score * best->chance : 0;
    if (!best || score < floor_) {
        room_ = 0;
        return false;
    }
    const uint32_t parent = node_;
    node_ = considered_->nodes.size();
    considered_->nodes.push_back({best->token, static_cast<int32_t>(parent), score, 0, 0, best->kinds});
    if (--room_ == 0 || !promising(*best, floor_ / score)) {
        room_ = 0;
        return false;
    }
    // Behind it only those are asked that have been there too.
    size_t following = 0;
    for (size_t p = 0; p < places.size(); ++p) {
        Place& place = places[p];
        if (p < at_) {
            if (!(best->kinds >> place.kind & 1)) continue;
            if (children_[p].cursor.length > 0 && children_[p].token == best->token) place.cursor = children_[p].cursor;
            else place.automaton->advance(place.cursor, best->token, kMostSuffixes);
            ++place.read;
        }
        if (following != p) places[following] = place;
        ++following;
    }
    places.erase(places.begin() + static_cast<ptrdiff_t>(following), places.end());
    ++read_;
    open();
    return true;
}

/// Whether something may follow the candidate with a chance of `needed`, as far as can be told without looking: as if one
/// token had always followed it. Sets what evidence must say to matter.
bool ChainGrower::promising(const Candidate& candidate, float needed) {
    if (needed >= kMostCertain) return false;
    if (needed <= 0) return true;
    least_ = rough_log(needed / (1 - needed)) - kSlack;
    for (const Kind kind : {kOwn, kGroup, kHistory}) {
        if (!(candidate.kinds >> kind & 1)) continue;
        const uint32_t count = candidate.counts[kind];
        const uint32_t entry = Calibration::context(candidate.lengths[kind] + 1u, 0) + Calibration::token(count, count, true);
        if (calibration_->table(kind)[entry].log_odds >= least_) return true;
    }
    return false;
}

void ChainGrower::append_to(PackedTrees& out) const {
    const uint32_t count = considered_ ? considered_->nodes.size() - 1 : 0;
    const size_t first = out.tokens.size();
    out.tokens.resize(first + count);
    out.parents.resize(first + count);
    out.scores.resize(first + count);
    for (uint32_t n = 0; n < count; ++n) {
        const Considered::Node& node = considered_->nodes[n + 1];
        out.tokens[first + n] = node.token;
        out.parents[first + n] = static_cast<int32_t>(n) - 1;
        out.scores[first + n] = node.score;
    }
    out.offsets.push_back(static_cast<int32_t>(out.tokens.size()));
}

}  // namespace foresay
