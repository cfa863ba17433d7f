#include "calibration.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace foresay {
namespace {

constexpr float kShareFloor = 0.0005f;
constexpr float kMostSeen = 500;       // an entry's share follows the last few hundred outcomes
constexpr float kMaxLogOdds = 9;

float stretch(float p) noexcept { return std::log(p / (1 - p)); }

/// 1 / (1 + exp(-x)) to about six digits, without a call: 2^t by its exponent bits and a polynomial for the fraction.
float squash(float x) noexcept {
    const float t = -1.44269504f * x;  // within 13 of zero, see kMaxLogOdds
    const int32_t whole = static_cast<int32_t>(t + 64.f) - 64;
    const float f = t - static_cast<float>(whole);
    const float fraction =
        1.f + f * (0.69315169f + f * (0.24013971f + f * (0.05586624f + f * (0.00894283f + f * 0.00189953f))));
    const float power = std::bit_cast<float>(static_cast<uint32_t>(whole + 127) << 23);
    return 1.f / (1.f + fraction * power);
}

constexpr std::array<uint8_t, 33> kLengthBuckets = [] {
    std::array<uint8_t, 33> out{};
    for (uint32_t l = 0; l < out.size(); ++l)
        out[l] = static_cast<uint8_t>(l <= 8 ? l : l <= 10 ? 9 : l <= 12 ? 10 : l <= 16 ? 11 : l <= 24 ? 12 : 13);
    return out;
}();

uint32_t length_bucket(uint32_t length) noexcept { return kLengthBuckets[std::min(length, 32u)]; }

/// 0-4: always so far, seen 1, 2, 3, 4-7, 8+ times. 5-7: a third, a half, two thirds of 2 or 3. 8-19: by share.
constexpr uint8_t share_bucket_of(uint32_t count, uint32_t total) {
    if (count >= total) return static_cast<uint8_t>(count < 4 ? count - 1 : count < 8 ? 3 : 4);
    if (total <= 3) return total == 2 ? 6 : count == 1 ? 5 : 7;
    constexpr std::array<float, 11> bounds{.01f, .02f, .05f, .1f, .2f, .35f, .5f, .65f, .8f, .9f, .97f};
    const float share = static_cast<float>(count) / static_cast<float>(total);
    uint8_t bucket = 0;
    while (bucket < bounds.size() && share >= bounds[bucket]) ++bucket;
    return 8 + bucket;
}

constexpr uint32_t kSmallTotal = 64;
constexpr auto kShareBuckets = [] {
    std::array<std::array<uint8_t, kSmallTotal>, kSmallTotal> out{};
    for (uint32_t total = 1; total < kSmallTotal; ++total)
        for (uint32_t count = 1; count <= total; ++count) out[total][count] = share_bucket_of(count, total);
    return out;
}();

uint32_t share_bucket(uint32_t count, uint32_t total) noexcept {
    if (total < kSmallTotal) [[likely]] return kShareBuckets[total][std::min(count, total)];
    return share_bucket_of(count, total);
}

/// What to believe before the first outcome: the share, held back by an escape count that shrinks as contexts lengthen.
float prior(float length, float count, float total) noexcept {
    const float escape = length <= 0 ? 8.f : 4.f / length + 0.5f;
    return std::clamp((count - 0.3f) / (total + escape), 0.002f, 0.98f);
}

}  // namespace

uint8_t Calibration::length_class(uint32_t length) noexcept {
    return length <= 2 ? static_cast<uint8_t>(length) : length <= 4 ? 3 : length <= 8 ? 4 : 5;
}

uint16_t Calibration::entry(const Evidence& e) noexcept {
    const uint32_t shape = length_bucket(e.length) * kShares + share_bucket(e.count, e.total);
    return static_cast<uint16_t>((shape * 2 + e.latest) * kRanks + std::min(e.rank, kRanks - 1));
}

uint16_t Calibration::entry_unseen(uint32_t length, uint32_t best_count, uint32_t total) noexcept {
    const uint32_t shape = best_count == total ? (total == 1 ? 0 : total < 4 ? 1 : 2) : 2 * best_count > total ? 3 : 4;
    return static_cast<uint16_t>(kSeenEntries + length_bucket(length) * 5 + shape);
}

Calibration::Calibration() : weights_(8u << kKinds), tokens_(size_t{1} << kTokenBits, 0.f) {
    constexpr std::array<float, 14> lengths{0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32};
    constexpr std::array<std::array<float, 2>, kShares> shapes{{{1, 1}, {2, 2}, {3, 3}, {5, 5}, {10, 10}, {1, 3}, {1, 2}, {2, 3},
        {1, 150}, {1, 70}, {1, 30}, {1, 13}, {1, 7}, {2, 7}, {3, 7}, {4, 7}, {5, 7}, {17, 20}, {19, 20}, {49, 50}}};
    for (auto& table : entries_) {
        table.resize(kSeenEntries + kUnseenEntries, Entry{stretch(0.05f), 0.05f, 0});
        for (uint32_t l = 0; l < lengths.size(); ++l)
            for (uint32_t s = 0; s < kShares; ++s)
                for (uint32_t rest = 0; rest < 2 * kRanks; ++rest) {
                    float p = prior(lengths[l], shapes[s][0], shapes[s][1]);
                    if (rest % kRanks != 0) p *= 0.5f;
                    table[(l * kShares + s) * 2 * kRanks + rest] = Entry{stretch(p), p, 0};
                }
    }
    for (uint32_t kinds = 0; kinds < (1u << kKinds); ++kinds)
        for (uint32_t c = 0; c < 8; ++c) {
            Weights& w = weights_[kinds * 8 + c];
            for (uint32_t k = 0; k < kKinds; ++k)
                w.weight[k] = kinds >> k & 1 ? (std::popcount(kinds) == 1 ? 1.f : 0.5f) : 0.1f;
            w.bias = 0;
            w.seen = 0;
        }
}

float Calibration::chance(const Candidate& candidate) const noexcept {
    const Weights& w = weights_of(candidate);
    float sum = w.bias + tokens_[token_slot(candidate.token)];
    for (uint32_t k = 0; k < kKinds; ++k)
        if (candidate.entries[k] != Candidate::kNothing) sum += w.weight[k] * entries_[k][candidate.entries[k]].log_odds;
    return squash(std::clamp(sum, -kMaxLogOdds, kMaxLogOdds));
}

void Calibration::learn(const Candidate& candidate, bool came) noexcept {
    const float outcome = came ? 1.f : 0.f;
    const float error = outcome - candidate.chance;
    Weights& w = weights_of(candidate);
    const float rate = std::max(0.005f, 0.02f / (1 + w.seen * 0.01f));
    w.seen += 1;
    w.bias += rate * error;
    tokens_[token_slot(candidate.token)] += 0.02f * error;
    for (uint32_t k = 0; k < kKinds; ++k) {
        if (candidate.entries[k] == Candidate::kNothing) continue;
        Entry& e = entries_[k][candidate.entries[k]];
        w.weight[k] += rate * error * e.log_odds;
        e.seen = std::min(e.seen + 1, kMostSeen);
        e.share = std::clamp(e.share + (outcome - e.share) / (e.seen + 1.5f), kShareFloor, 1 - kShareFloor);
        e.log_odds = stretch(e.share);
    }
}

}  // namespace foresay
