// What experience says a piece of evidence is worth.
//
// A source (own text, group, history, corpus) that has seen a candidate token after the present context gives evidence:
// how long the context was, how often the token followed it and how often something else did, and whether it was the
// latest to follow. Each kind of evidence has an entry in a table: the share of times that it turned out right, as log
// odds. The log odds of all sources are added with weights that are themselves learned, as compressors of the PAQ family
// do. Everything starts from a formula and follows what is observed.
//
// estimate() changes nothing; learn() changes the tables. Both are deterministic. This file knows nothing of automata.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "edges.hpp"

namespace foresay {

enum Kind : uint8_t { kOwn, kGroup, kHistory, kCorpus, kKinds };

/// What one source of a kind knows of one candidate.
struct Evidence {
    uint32_t length;   // of the longest context that the candidate was seen after
    uint32_t count;    // how often it was
    uint32_t total;    // how often anything was
    uint32_t rank;     // how many longer contexts matched that it was not seen after
    bool latest;       // whether it was the latest to follow
};

/// A token that may come next and the evidence for it, as table entries.
struct Candidate {
    static constexpr uint16_t kNothing = UINT16_MAX;

    Token token;
    float chance;                          // filled by estimate()
    std::array<uint16_t, kKinds> entries;  // kNothing: no source of this kind matched anything
    std::array<uint8_t, kKinds> lengths;   // of the context behind each entry, at most 255
    uint8_t kinds;                         // bit set of the kinds that have seen it
    uint8_t longest;                       // class of the longest context over all kinds
};

class Calibration {
public:
    Calibration();

    /// The table entry of a candidate that a source has seen, and of one that it has not although it matched a context.
    static uint16_t entry(const Evidence& evidence) noexcept;
    static uint16_t entry_unseen(uint32_t length, uint32_t best_count, uint32_t total) noexcept;
    static uint8_t length_class(uint32_t length) noexcept;

    /// Log odds of one piece of evidence alone.
    float log_odds(Kind kind, uint16_t entry) const noexcept { return entries_[kind][entry].log_odds; }
    /// The chance that the candidate comes next.
    float chance(const Candidate& candidate) const noexcept;
    /// The outcome for a candidate that was estimated with `candidate.chance`.
    void learn(const Candidate& candidate, bool came) noexcept;

private:
    struct Entry {
        float log_odds;
        float share;
        float seen;
    };
    struct Weights {
        std::array<float, kKinds> weight;
        float bias;
        float seen;
    };

    static constexpr uint32_t kLengths = 15;
    static constexpr uint32_t kShares = 20;
    static constexpr uint32_t kRanks = 4;
    static constexpr uint32_t kSeenEntries = kLengths * kShares * 2 * kRanks;
    static constexpr uint32_t kUnseenEntries = kLengths * 5;
    static constexpr uint32_t kTokenBits = 14;

    static uint32_t token_slot(Token token) noexcept {
        return (static_cast<uint32_t>(token) * 2654435761u) >> (32 - kTokenBits);
    }
    Weights& weights_of(const Candidate& candidate) noexcept { return weights_[candidate.kinds * 8u + candidate.longest]; }
    const Weights& weights_of(const Candidate& candidate) const noexcept {
        return weights_[candidate.kinds * 8u + candidate.longest];
    }

    std::array<std::vector<Entry>, kKinds> entries_;
    std::vector<Weights> weights_;
    std::vector<float> tokens_;
};

}  // namespace foresay
