#include "suffix/chain.hpp"

#include <algorithm>
#include <limits>

namespace foresay {
namespace {

// How much the weights and the token may add to the log odds of one piece of evidence.
constexpr float kSlack = 1.f;
// Log odds of what the request's own text and its group say beyond which the history is not asked.
constexpr float kSure = 1.5f;
constexpr std::array<Kind, 3> kDraftedFrom{kOwn, kGroup, kHistory};

}  // namespace

void ChainGrower::start(std::span<const Token> text, uint32_t budget, float floor, const Calibration& calibration,
                        const TokenBias* bias, Considered& considered) {
    text_ = text;
    calibration_ = &calibration;
    bias_ = bias;
    considered_ = budget > 0 ? &considered : nullptr;  // asking for nothing leaves the last draft to be learned from
    room_ = budget;
    floor_ = floor;
    num_places_ = 0;
    if (budget == 0) return;
    least_ = -std::numeric_limits<float>::infinity();  // at the root all is looked at, to be learned from
    score_ = 1;
    node_ = 0;
    considered.start();
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
    evidence_.open(*considered_, kMostCandidates);
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
    for (const Candidate& candidate : evidence_.candidates())
        for (const Kind kind : {kOwn, kGroup})
            if (candidate.kinds >> kind & 1 && calibration_->table(kind)[candidate.entries[kind]].log_odds > kSure) return false;
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
    evidence_.enter(kind, best.length, best.first.count, best.total);
    const Calibration::Entry* const table = calibration_->table(kind);
    const Evidence::Shape shape = Evidence::shape(kind, best.length, 0);
    const bool latest = best.first.token == best.latest;
    const uint32_t entry = shape.entry + Calibration::token(best.first.count, best.total, latest);
    if (table[entry].log_odds >= least_) {
        place.child = {best.first.target, best.length + 1};
        place.token = best.first.token;
        evidence_.note(shape, best.first.token, entry, best.first.count);
    }
    if (latest) return;
    const uint32_t other = shape.entry + Calibration::token(1, best.total, true);
    if (table[other].log_odds >= least_) evidence_.note(shape, best.latest, other, 1);
}

/// Estimates what was found; the best of it, or null.
inline const Candidate* ChainGrower::estimate() {
    const Candidate* best = nullptr;
    for (Candidate& candidate : evidence_.candidates()) {
        evidence_.add_unseen(candidate, kDraftedFrom);
        candidate.chance = calibration_->chance(candidate, kDraftedFrom, bias_ ? bias_->of(candidate.token) : 0.f);
        if (!best || candidate.chance > best->chance) best = &candidate;
    }
    return best;
}

/// Takes the best of what was found into the chain, and goes on behind it; false if the chain ends here.
bool ChainGrower::choose() {
    evidence_.close(*considered_, node_);
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
    least_ = least_log_odds(needed, kSlack);
    return promise(*calibration_, candidate, kDraftedFrom) >= least_;
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

}  // namespace foresay
