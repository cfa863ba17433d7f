// What several texts say of the token that comes next, as tree and chain gather it, and what is remembered of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "buffer.hpp"
#include "drafts.hpp"
#include "suffix/automaton.hpp"
#include "suffix/calibration.hpp"
#include "suffix/token_bias.hpp"

namespace foresay {

/// Suffixes tried for a node's place in a text: they can be as many as the text has tokens, and a draft is not worth that.
inline constexpr uint32_t kMostSuffixes = 16;
/// No single drafted token is more certain than this.
inline constexpr float kMostCertain = 0.98f;

/// What one growth considered, so that the outcome can be learned from.
struct Considered {
    struct Node {
        Token token;
        int32_t parent;          // index into nodes; the root (the last committed token) is node 0
        float score;
        uint32_t begin, end;     // candidates that were considered after it; equal: it was not expanded
        uint8_t kinds;           // bit set of the kinds of source that had seen the token there
    };
    Buffer<Node> nodes;
    Buffer<Candidate> candidates;

    void clear() {
        nodes.resize(0);
        candidates.resize(0);
    }
    /// With a root.
    void start() {
        clear();
        nodes.push_back({-1, -1, 1.f, 0, 0, 0});
    }
    /// Appends the tree or chain that was grown: all nodes but the root.
    void append_to(DraftTrees& out) const {
        const size_t first = out.tokens.size(), count = nodes.size() - 1;
        out.tokens.resize(first + count);
        out.parents.resize(first + count);
        out.scores.resize(first + count);
        for (uint32_t n = 0; n < count; ++n) {
            const Node& node = nodes[n + 1];
            out.tokens[first + n] = node.token;
            out.parents[first + n] = node.parent - 1;
            out.scores[first + n] = node.score;
        }
        out.end_tree();
    }
};

/// Candidates for one place, gathered from several contexts into the end of `Considered::candidates`.
class Evidence {
public:
    /// A context as table entries: what all of its continuations have in common.
    struct Shape {
        Kind kind;
        uint32_t entry;
        uint8_t length, length_class;  // the length is at most 255
    };
    static Shape shape(Kind kind, uint32_t length, uint32_t rank) noexcept {
        return {kind, Calibration::context(length, rank), static_cast<uint8_t>(std::min(length, 255u)), Calibration::length_class(length)};
    }
    static constexpr uint32_t kMost = 64;  // candidates

    /// Begins with nothing, for at most `most` candidates.
    void open(Considered& considered, uint32_t most) {
        most_ = most;
        begin_ = considered.candidates.size();
        considered.candidates.resize(begin_ + most);
        found_ = considered.candidates.begin() + begin_;
        count_ = 0;
        marks_ = 0;
        unseen_.fill(Candidate::kNothing);
    }
    /// Ends the gathering: the candidates are those after `node`.
    void close(Considered& considered, uint32_t node) const {
        considered.candidates.resize(begin_ + count_);
        considered.nodes[node].begin = begin_;
        considered.nodes[node].end = begin_ + count_;
    }

    uint32_t begin() const noexcept { return begin_; }
    std::span<Candidate> candidates() const noexcept { return {found_, count_}; }

    /// Notes the longest context that a source matches; of a kind's sources the longest counts.
    void enter(Kind kind, uint32_t length, uint32_t best, uint32_t total) noexcept {
        if (unseen_[kind] != Candidate::kNothing && length <= longest_[kind]) return;
        longest_[kind] = length;
        unseen_[kind] = Calibration::unseen(length, best, total);
    }
    /// Notes a piece of evidence, unless the same kind has told more of the token already. Whether the candidate is a new one.
    bool note(const Shape& shape, Token token, uint32_t entry, uint32_t count) noexcept {
        const Kind kind = shape.kind;
        const uint8_t bit = static_cast<uint8_t>(1u << kind);
        const uint64_t mark = uint64_t{1} << (static_cast<uint32_t>(token) % 64);
        uint32_t c = 0;
        if (marks_ & mark)
            while (c < count_ && tokens_[c] != token) ++c;
        else c = count_;
        Candidate& candidate = found_[c];
        const bool fresh = c == count_;
        if (!fresh) {
            if (candidate.kinds & bit && candidate.lengths[kind] >= shape.length) return false;
        } else {
            if (c == most_) return false;
            ++count_;
            marks_ |= mark;
            tokens_[c] = token;
            constexpr uint16_t none = Candidate::kNothing;
            candidate = {token, 0, {none, none, none, none}, {}, {}, 0, 0, 0};
        }
        candidate.kinds |= bit;
        candidate.entries[kind] = static_cast<uint16_t>(entry);
        candidate.lengths[kind] = shape.length;
        candidate.counts[kind] = static_cast<uint8_t>(std::min(count, 255u));
        candidate.longest = std::max(candidate.longest, shape.length_class);
        return fresh;
    }
    /// Gives a candidate what kinds say that have not seen it.
    void add_unseen(Candidate& candidate, std::span<const Kind> kinds) const noexcept {
        for (const Kind kind : kinds)
            if (!(candidate.kinds >> kind & 1)) candidate.entries[kind] = unseen_[kind];
    }

private:
    uint32_t most_ = 0, begin_ = 0, count_ = 0;
    Candidate* found_ = nullptr;
    uint64_t marks_ = 0;                          // bit token % 64 of each candidate
    std::array<Token, kMost> tokens_;             // of the candidates
    std::array<uint32_t, kKinds> longest_{};      // context of each kind,
    std::array<uint16_t, kKinds> unseen_{};       // and the entry that stands for a token not seen after it
};

/// The best log odds that may follow a candidate by one of the kinds that have seen it, as far as can be told without looking: as
/// if one token had always followed it.
inline float promise(const Calibration& calibration, const Candidate& candidate, std::span<const Kind> kinds) noexcept {
    float best = -std::numeric_limits<float>::infinity();
    for (const Kind kind : kinds) {
        if (!(candidate.kinds >> kind & 1)) continue;
        const uint32_t count = candidate.counts[kind];
        const uint32_t entry = Calibration::context(candidate.lengths[kind] + 1u, 0) + Calibration::token(count, count, true);
        best = std::max(best, calibration.table(kind)[entry].log_odds);
    }
    return best;
}

/// The log odds below which evidence cannot give a chance of `needed`, where the rest may add `slack`.
inline float least_log_odds(float needed, float slack) noexcept {
    if (needed >= kMostCertain) return std::numeric_limits<float>::infinity();
    return rough_log(needed / (1 - needed)) - slack;
}

}  // namespace foresay
