#include "suffix/chain.hpp"

#include <algorithm>
#include <limits>

namespace foresay {
namespace {

// How much the weights and the token may add to the log odds of one piece of evidence.
constexpr float kSlack = 1.f;
// Log odds of what the request's own text and its group say beyond which the history is not asked.
constexpr float kSure = 1.5f;

}  // namespace

void ChainGrower::start(std::span<const Token> text, uint32_t budget, float floor, const Calibration& calibration,
                        const TokenLean* lean, Considered& considered) {
    text_ = text;
    calibration_ = &calibration;
    lean_ = lean;
    considered_ = budget > 0 ? &considered : nullptr;  // asking for nothing leaves the last draft to be learned from
    room_ = budget;
    floor_ = floor;
    num_places_ = 0;
    if (budget == 0) return;
    least_ = -std::numeric_limits<float>::infinity();  // at the root all is looked at, to be learned from
    score_ = 1;
    node_ = 0;
    considered.clear();
    considered.nodes.push_back({-1, -1, 1.f, 0, 0, 0});
    open();
}

void ChainGrower::add(Kind kind, const Automaton& automaton, Automaton::Cursor cursor) {
    if (num_places_ == kMostPlaces || room_ == 0) return;
    places_[num_places_++] = {&automaton, cursor, {}, 0, kind, false, 0, nullptr};
    automaton.prefetch(cursor.state);
}

void ChainGrower::add(const Automaton& automaton, Bookmark& bookmark) {
    if (num_places_ == kMostPlaces || room_ == 0) return;
    places_[num_places_++] = {&automaton, bookmark.cursor, {}, 0, kHistory, false, bookmark.read, &bookmark};
    automaton.prefetch(bookmark.cursor.state);
}

/// Begins to ask what may follow the chain's end.
inline void ChainGrower::open() {
    begin_ = considered_->candidates.size();
    considered_->candidates.resize(begin_ + kMostCandidates);
    found_ = considered_->candidates.begin() + begin_;
    num_found_ = 0;
    asked_ = 0;
    at_ = 0;
    stage_ = Stage::fetch;
}

bool ChainGrower::step() {
    if (room_ == 0) return false;
    if (stage_ == Stage::read) return read_history() || choose();
    if (stage_ == Stage::fetch) {
        bool wait = false;
        for (uint32_t p = 0; p < num_places_ && !places_[p].bookmark; ++p)
            wait |= places_[p].automaton->prefetch_next(places_[p].cursor.state);
        stage_ = Stage::ask;
        if (wait) return true;
    }
    for (; at_ < num_places_ && !places_[at_].bookmark; ++at_) gather(places_[at_]);
    if (at_ == num_places_ || !doubtful()) return choose();
    stage_ = Stage::read;
    return read_history() || choose();
}

/// Whether the history is worth asking.
inline bool ChainGrower::doubtful() const {
    for (uint32_t c = 0; c < num_found_; ++c)
        for (const Kind kind : {kOwn, kGroup})
            if (found_[c].kinds >> kind & 1 && calibration_->table(kind)[found_[c].entries[kind]].log_odds > kSure) return false;
    return true;
}

/// Reads the history on to the end of the text, a suffix at a time, and asks it; true if memory has to be fetched first.
bool ChainGrower::read_history() {
    for (; at_ < num_places_; ++at_) {
        Place& place = places_[at_];
        const bool there = place.read == text_.size();
        if (!place.fetched) {
            place.fetched = true;
            const State state = place.cursor.state;
            if (there ? place.automaton->prefetch_next(state) : place.automaton->prefetch_next(state, text_[place.read])) return true;
        }
        if (!there) {
            place.read += place.automaton->advance_once(place.cursor, text_[place.read]);
            place.automaton->prefetch(place.cursor.state);
            place.fetched = false;
            return true;
        }
        *place.bookmark = {place.bookmark->segment, place.cursor, place.read};
        place.bookmark = nullptr;
        gather(place);
    }
    return false;
}

/// Adds what a text knows: the longest context's most frequent continuation, and the latest.
inline void ChainGrower::gather(Place& place) {
    place.child.length = 0;
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
        place.child = {best.first.target, best.length + 1};
        place.token = best.first.token;
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
        ++num_found_;
        constexpr uint16_t none = Candidate::kNothing;
        candidate = {token, 0, {none, none, none, none}, {}, {}, 0, 0, 0};
    }
    candidate.kinds |= bit;
    candidate.entries[kind] = static_cast<uint16_t>(entry);
    candidate.lengths[kind] = short_length;
    candidate.counts[kind] = static_cast<uint8_t>(std::min(count, 255u));
    candidate.longest = std::max(candidate.longest, Calibration::length_class(length));
}

/// Estimates what was found; the best of it, or null.
inline const Candidate* ChainGrower::estimate() {
    std::array<Kind, kKinds> kinds;
    uint32_t num_kinds = 0;
    for (const Kind kind : {kOwn, kGroup, kHistory})
        if (asked_ >> kind & 1) kinds[num_kinds++] = kind;
    const Candidate* best = nullptr;
    for (uint32_t c = 0; c < num_found_; ++c) {
        Candidate& candidate = found_[c];
        for (uint32_t k = 0; k < num_kinds; ++k)
            if (!(candidate.kinds >> kinds[k] & 1)) candidate.entries[kinds[k]] = unseen_[kinds[k]];
        candidate.chance = calibration_->chance(candidate, {kinds.data(), num_kinds}, lean_ ? lean_->of(candidate.token) : 0.f);
        if (!best || candidate.chance > best->chance) best = &candidate;
    }
    return best;
}

/// Takes the best of what was found into the chain, and goes on behind it; false if the chain ends here.
bool ChainGrower::choose() {
    considered_->candidates.resize(begin_ + num_found_);
    considered_->nodes[node_].begin = begin_;
    considered_->nodes[node_].end = begin_ + num_found_;
    const Candidate* const best = estimate();
    if (!best || score_ * best->chance < floor_) {
        room_ = 0;
        return false;
    }
    score_ *= best->chance;
    considered_->nodes.push_back({best->token, static_cast<int32_t>(node_), score_, 0, 0, best->kinds});
    ++node_;
    if (--room_ == 0 || !promising(*best, floor_ / score_)) {
        room_ = 0;
        return false;
    }
    follow(*best);
    open();
    return true;
}

/// Whether something may follow the candidate with a chance of `needed`, as far as can be told without looking: as if one
/// token had always followed it. Sets what evidence must say to matter.
inline bool ChainGrower::promising(const Candidate& candidate, float needed) {
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

/// Moves on behind the candidate, with the texts that have seen it.
inline void ChainGrower::follow(const Candidate& candidate) {
    uint32_t following = 0;
    for (uint32_t p = 0; p < at_; ++p) {
        Place& place = places_[p];
        if (!(candidate.kinds >> place.kind & 1)) continue;
        if (place.child.length > 0 && place.token == candidate.token) place.cursor = place.child;
        else place.automaton->advance(place.cursor, candidate.token, kMostSuffixes);
        place.automaton->prefetch(place.cursor.state);
        places_[following++] = place;
    }
    num_places_ = following;
}

void ChainGrower::append_to(PackedTrees& out) const {
    if (considered_) out.append(*considered_);
    else out.append_empty();
}

}  // namespace foresay
