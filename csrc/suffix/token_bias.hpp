// How much more or less often than its evidence says a token comes, as log odds: in general, and after each of the last few
// tokens, one by one. Evidence is of contexts without gaps; these see past a token that differs, such as another variable's
// name.
//
// Everything starts at 0 and follows what is observed. Tokens share slots. This file knows nothing of evidence.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "prefetch.hpp"
#include "slab.hpp"
#include "suffix/edges.hpp"

namespace foresay {

class TokenBias {
public:
    static constexpr uint32_t kFar = 5;  // tokens that are looked back

    /// The last tokens, the latest first, as they enter a slot's number.
    class Recent {
    public:
        /// Of a text; what would lie before its beginning counts as one more token.
        explicit Recent(std::span<const Token> text = {}) noexcept {
            for (size_t d = 0; d < kFar; ++d) mixed_[d] = mixed(d < text.size() ? text[text.size() - 1 - d] : -1);
        }
        /// The same, once `token` has followed.
        Recent then(Token token) const noexcept {
            Recent out = *this;
            std::copy_backward(mixed_.begin(), mixed_.end() - 1, out.mixed_.end());
            out.mixed_[0] = mixed(token);
            return out;
        }

    private:
        friend class TokenBias;
        static uint32_t mixed(Token token) noexcept { return static_cast<uint32_t>(token + 1) * (kMix * 7 * kMixPair); }
        std::array<uint32_t, kFar> mixed_;
    };

    TokenBias() : log_odds_(slab::make<int16_t>(kSlots)) { std::fill_n(log_odds_.get(), kSlots, int16_t{0}); }

    /// The log odds of a token, in general (chains do not look back) or after the last tokens.
    float of(Token token) const noexcept { return kUnit * static_cast<float>(log_odds_[slot(token)]); }
    float of(Token token, const Recent& recent) const noexcept {
        int32_t sum = log_odds_[slot(token)];
        for (uint32_t d = 0; d < kFar; ++d) sum += log_odds_[slot(token, recent, d)];
        return kUnit * static_cast<float>(sum);
    }
    /// Asks for what of() reads.
    void prefetch(Token token, const Recent& recent) const noexcept {
        foresay::prefetch(&log_odds_[slot(token)]);
        for (uint32_t d = 0; d < kFar; ++d) foresay::prefetch(&log_odds_[slot(token, recent, d)]);
    }
    /// Learns from the outcome less the chance that was stated.
    void learn(Token token, float error) noexcept { add(slot(token), units(kRate * error)); }
    void learn(Token token, const Recent& recent, float error) noexcept {
        learn(token, error);
        const int32_t more = units(kPairRate * error);
        for (uint32_t d = 0; d < kFar; ++d) add(slot(token, recent, d), more);
    }
    static size_t bytes() noexcept { return kSlots * sizeof(int16_t); }

private:
    static constexpr uint32_t kBits = 14, kPairBits = 15;
    static constexpr float kRate = 0.1f, kPairRate = 0.15f;
    static constexpr uint32_t kMix = 2654435761u, kMixPair = 0x85EBCA6Bu;  // odd, with bits of no order
    // Of log odds. 16 bits reach to 4 either way, and all tables fit the second cache of a small core with room to spare.
    static constexpr float kUnit = 1.f / 8192;
    static int32_t units(float log_odds) noexcept { return static_cast<int32_t>(std::lrint(log_odds / kUnit)); }
    void add(uint32_t slot, int32_t more) noexcept {
        log_odds_[slot] = static_cast<int16_t>(std::clamp(log_odds_[slot] + more, -INT16_MAX, +INT16_MAX));
    }
    static uint32_t slot(Token token) noexcept { return static_cast<uint32_t>(token) * kMix >> (32 - kBits); }
    static uint32_t slot(Token token, const Recent& recent, uint32_t distance) noexcept {
        return (1u << kBits) + (distance << kPairBits) +
               ((static_cast<uint32_t>(token) * (kMix * kMixPair) + recent.mixed_[distance]) >> (32 - kPairBits));
    }

    static constexpr size_t kSlots = (size_t{1} << kBits) + (kFar << kPairBits);
    slab::Array<int16_t> log_odds_;  // in units: of tokens alone; then [kFar] after others
};

}  // namespace foresay
