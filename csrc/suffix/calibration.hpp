// What experience says a piece of evidence is worth.
//
// A source (own text, group, history, corpus) that has seen a candidate token after the present context gives evidence:
// how long the context was, how often the token followed it and how often something else did, and whether it was the
// latest to follow. Each kind of evidence has an entry in a table: the share of times that it turned out right, as log
// odds. The log odds of all sources are added with weights that are themselves learned, as compressors of the PAQ family
// do. Everything starts from a formula and follows what is observed.
//
// Each tenant has tables of its own, so that nothing of one shows in another's drafts.
// chance() changes nothing; learn() changes the tables. Both are deterministic. This file knows nothing of automata.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "suffix/edges.hpp"

namespace foresay {

enum Kind : uint8_t { kOwn, kGroup, kHistory, kCorpus, kKinds };

/// A token that may come next and the evidence for it, as table entries.
struct Candidate {
    static constexpr uint16_t kNothing = UINT16_MAX;

    Token token;
    float chance;                          // as estimated
    std::array<uint16_t, kKinds> entries;  // kNothing: no source of this kind matched anything
    std::array<uint8_t, kKinds> lengths;   // of the context behind each entry, at most 255
    std::array<uint8_t, kKinds> counts;    // how often the kind has seen it after that context, at most 255
    uint8_t kinds;                         // bit set of the kinds that have seen it
    uint8_t longest;                       // class of the longest context over all kinds
    uint8_t occurrence = 0;                // how often own text and group have it at all, see Calibration::occurrence()
};

/// The natural logarithm to within 0.06, which is enough for a bound with slack.
inline float rough_log(float x) noexcept {
    return 0.69314718f * (static_cast<float>(std::bit_cast<int32_t>(x)) * 0x1p-23f - 126.94f);
}

class Calibration {
public:
    Calibration();

    struct Entry {
        float log_odds;
        float share;
        float seen;
    };

    /// Evidence from one context: that it has `length` tokens and that `rank` longer ones matched, of which none had seen
    /// the token. The entry of a token in its table is context(length, rank) + token(count, total, latest).
    static uint32_t context(uint32_t length, uint32_t rank) noexcept {
        return length_bucket(length) * kShares * 2 * kRanks + std::min(rank, kRanks - 1);
    }
    static uint32_t token(uint32_t count, uint32_t total, bool latest) noexcept {
        return (share_bucket(count, total) * 2 + latest) * kRanks;
    }
    /// The entry of a token that a source has not seen, although it matched a context of this length.
    static uint16_t unseen(uint32_t length, uint32_t best_count, uint32_t total) noexcept {
        const uint32_t shape = best_count == total ? (total == 1 ? 0 : total < 4 ? 1 : 2) : 2 * best_count > total ? 3 : 4;
        return static_cast<uint16_t>(kSeenEntries + length_bucket(length) * 5 + shape);
    }
    /// How often a token occurs in the request's own text and in its group, whatever came before it.
    static uint8_t occurrence(uint32_t own, uint32_t group) noexcept {
        const auto bucket = [](uint32_t count) { return count < 3 ? count : count < 6 ? 3u : 4u; };
        return static_cast<uint8_t>(1 + bucket(own) * 5 + bucket(group));
    }
    static uint8_t length_class(uint32_t length) noexcept {
        return length <= 2 ? static_cast<uint8_t>(length) : length <= 4 ? 3 : length <= 8 ? 4 : 5;
    }

    /// The table of a kind of source, by entry.
    const Entry* table(Kind kind) const noexcept { return entries_[kind].data(); }
    /// The chance that the candidate comes next, by the evidence of `kinds` and by what its token's log odds are `more`.
    float chance(const Candidate& candidate, std::span<const Kind> kinds, float more) const noexcept;
    /// Learns the outcome for a candidate that was estimated with `candidate.chance`: returns the outcome less that chance.
    float learn(const Candidate& candidate, bool came) noexcept;

private:
    struct Weights {
        std::array<float, kKinds> weight;
        float bias;
        float seen;
    };

    static constexpr uint32_t kLengths = 14;
    static constexpr uint32_t kShares = 20;
    static constexpr uint32_t kRanks = 4;
    static constexpr uint32_t kSeenEntries = kLengths * kShares * 2 * kRanks;
    static constexpr uint32_t kUnseenEntries = kLengths * 5;
    static constexpr uint32_t kOccurrences = 26;  // 0: not asked
    static constexpr float kMaxLogOdds = 9;

    // Lengths 0-8, -10, -12, -16, -24, and more.
    static constexpr std::array<uint8_t, 33> kLengthBuckets = [] {
        std::array<uint8_t, 33> out{};
        for (uint32_t l = 0; l < out.size(); ++l)
            out[l] = static_cast<uint8_t>(l <= 8 ? l : l <= 10 ? 9 : l <= 12 ? 10 : l <= 16 ? 11 : l <= 24 ? 12 : 13);
        return out;
    }();
    static uint32_t length_bucket(uint32_t length) noexcept { return kLengthBuckets[std::min(length, 32u)]; }

    // 0-4: always so far, seen 1, 2, 3, 4-7, 8+ times. 5-7: a third, a half, two thirds of 2 or 3. 8-19: by share.
    static constexpr uint8_t share_bucket_of(uint32_t count, uint32_t total) {
        if (count >= total) return static_cast<uint8_t>(count < 4 ? count - 1 : count < 8 ? 3 : 4);
        if (total <= 3) return total == 2 ? 6 : count == 1 ? 5 : 7;
        constexpr std::array<float, 11> bounds{.01f, .02f, .05f, .1f, .2f, .35f, .5f, .65f, .8f, .9f, .97f};
        const float share = static_cast<float>(count) / static_cast<float>(total);
        uint8_t bucket = 0;
        while (bucket < bounds.size() && share >= bounds[bucket]) ++bucket;
        return 8 + bucket;
    }
    static constexpr uint32_t kSmallTotal = 64;
    using ShareBuckets = std::array<std::array<uint8_t, kSmallTotal>, kSmallTotal>;
    static const ShareBuckets kShareBuckets;
    static uint32_t share_bucket(uint32_t count, uint32_t total) noexcept {
        if (total < kSmallTotal) [[likely]] return kShareBuckets[total][std::min(count, total)];
        return share_bucket_of(count, total);
    }

    /// 1 / (1 + exp(-x)) to about six digits: 2^t by its exponent bits and a polynomial for the fraction.
    static float squash(float x) noexcept {
        const float t = -1.44269504f * x;  // within 13 of zero, see kMaxLogOdds
        const int32_t whole = static_cast<int32_t>(t + 64.f) - 64;
        const float f = t - static_cast<float>(whole);
        const float fraction =
            1.f + f * (0.69315169f + f * (0.24013971f + f * (0.05586624f + f * (0.00894283f + f * 0.00189953f))));
        return 1.f / (1.f + fraction * std::bit_cast<float>(static_cast<uint32_t>(whole + 127) << 23));
    }

    std::array<std::array<Entry, kSeenEntries + kUnseenEntries>, kKinds> entries_;
    std::array<Weights, size_t{8} << kKinds> weights_;
    // Log odds to add, beside each of the weights.
    std::array<std::array<float, kOccurrences>, size_t{8} << kKinds> occurrences_{};
};

inline float Calibration::chance(const Candidate& candidate, std::span<const Kind> kinds, float more) const noexcept {
    const Weights& w = weights_[candidate.kinds * 8u + candidate.longest];
    float sum = w.bias + occurrences_[candidate.kinds * 8u + candidate.longest][candidate.occurrence];
    for (const Kind k : kinds)
        if (candidate.entries[k] != Candidate::kNothing) sum += w.weight[k] * entries_[k][candidate.entries[k]].log_odds;
    return squash(std::clamp(sum + more, -kMaxLogOdds, kMaxLogOdds));
}

}  // namespace foresay
