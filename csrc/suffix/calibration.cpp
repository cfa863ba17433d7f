#include "suffix/calibration.hpp"

#include <cmath>

namespace foresay {
namespace {

constexpr float kShareFloor = 0.0005f;
constexpr float kMostSeen = 500;  // an entry's share follows the last few hundred outcomes
constexpr float kSlowestRate = 0.002f, kFirstRate = 0.02f;
constexpr float kOccurrenceRate = 0.03f;
constexpr float kSettled = 2000;  // outcomes after which the rate is the slowest: kFirstRate / sqrt(1 + 2000 * 0.05) is less

float stretch(float p) noexcept { return std::log(p / (1 - p)); }

/// What to believe before the first outcome: the share, with a discount and an escape count that both shrink as contexts
/// lengthen.
float prior(float length, float count, float total) noexcept {
    const float discount = 0.6f / (length + 1), escape = length > 0 ? 3 / length : 8.f;
    return std::clamp((count - discount) / (total + escape), 0.002f, 0.98f);
}

}  // namespace

const Calibration::ShareBuckets Calibration::kShareBuckets = [] {
    ShareBuckets out{};
    for (uint32_t total = 1; total < kSmallTotal; ++total)
        for (uint32_t count = 1; count <= total; ++count) out[total][count] = share_bucket_of(count, total);
    return out;
}();

Calibration::Calibration() {
    // A typical length and a typical (count, total) for each bucket.
    constexpr std::array<float, kLengths> lengths{0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32};
    constexpr std::array<std::array<float, 2>, kShares> shares{
        {{1, 1},  {2, 2},  {3, 3}, {5, 5}, {10, 10}, {1, 3}, {1, 2}, {2, 3},   {1, 150}, {1, 70},
         {1, 30}, {1, 13}, {1, 7}, {2, 7}, {3, 7},   {4, 7}, {5, 7}, {17, 20}, {19, 20}, {49, 50}}};
    for (auto& table : entries_) {
        table.fill(Entry{stretch(0.05f), 0.05f, 0});
        for (uint32_t l = 0; l < kLengths; ++l)
            for (uint32_t s = 0; s < kShares; ++s)
                for (uint32_t rest = 0; rest < 2 * kRanks; ++rest) {
                    float p = prior(lengths[l], shares[s][0], shares[s][1]);
                    if (rest % kRanks != 0) p *= 0.5f;  // a longer context has spoken against it
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

float Calibration::learn(const Candidate& candidate, bool came) noexcept {
    const float outcome = came ? 1.f : 0.f;
    const float error = outcome - candidate.chance;
    Weights& w = weights_[candidate.kinds * 8u + candidate.longest];
    const float rate = w.seen > kSettled ? kSlowestRate : std::max(kSlowestRate, kFirstRate / std::sqrt(1 + w.seen * 0.05f));
    w.seen += 1;
    w.bias += rate * error;
    if (candidate.occurrence > 0)
        occurrences_[candidate.kinds * 8u + candidate.longest][candidate.occurrence] += kOccurrenceRate * error;
    for (uint32_t k = 0; k < kKinds; ++k) {
        if (candidate.entries[k] == Candidate::kNothing) continue;
        Entry& e = entries_[k][candidate.entries[k]];
        w.weight[k] += rate * error * e.log_odds;
        e.seen = std::min(e.seen + 1, kMostSeen);
        e.share = std::clamp(e.share + (outcome - e.share) / (e.seen + 1.5f), kShareFloor, 1 - kShareFloor);
        e.log_odds = stretch(e.share);
    }
    return error;
}

}  // namespace foresay
