// How much more or less often than its evidence says a token comes, as log odds: in general, and after each of the last few
// tokens, one by one. Evidence is of contexts without gaps; these see past a token that differs, such as another variable's
// name.
//
// Everything starts at 0 and follows what is observed. Tokens share slots. This file knows nothing of evidence.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "suffix/edges.hpp"

namespace foresay {

class TokenLean {
public:
    static constexpr uint32_t kFar = 5;  // tokens that are looked back

    /// Where a token's log odds stand: in general, and after the last tokens.
    struct Slots {
        uint16_t alone = 0;
        std::array<uint16_t, kFar> after{};
        bool looked_back = false;
    };
    /// The last tokens, the latest first; -1 before a text's beginning. Chains do not look back.
    struct Recent {
        std::array<Token, kFar> tokens{-1, -1, -1, -1, -1};
    };

    TokenLean() : alone_(size_t{1} << kBits, 0.f), after_(kFar << kPairBits, 0.f) {}

    static Slots slots(Token token) noexcept { return {static_cast<uint16_t>(mixed(token) >> (32 - kBits)), {}, false}; }
    static Slots slots(Token token, const Recent& recent) noexcept {
        Slots out = slots(token);
        for (uint32_t d = 0; d < kFar; ++d)
            out.after[d] =
                static_cast<uint16_t>((mixed(token) + mixed(recent.tokens[d] + 1) * 7u) * 0x85EBCA6Bu >> (32 - kPairBits));
        out.looked_back = true;
        return out;
    }

    float of(const Slots& slots) const noexcept {
        float sum = alone_[slots.alone];
        if (slots.looked_back)
            for (uint32_t d = 0; d < kFar; ++d) sum += after_[(d << kPairBits) + slots.after[d]];
        return sum;
    }
    /// The outcome less the chance that was stated.
    void learn(const Slots& slots, float error) noexcept {
        alone_[slots.alone] += kRate * error;
        if (slots.looked_back)
            for (uint32_t d = 0; d < kFar; ++d) after_[(d << kPairBits) + slots.after[d]] += kPairRate * error;
    }
    size_t bytes() const noexcept { return (alone_.size() + after_.size()) * sizeof(float); }

private:
    static constexpr uint32_t kBits = 14, kPairBits = 15;
    static constexpr float kRate = 0.1f, kPairRate = 0.15f;
    static uint32_t mixed(Token token) noexcept { return static_cast<uint32_t>(token) * 2654435761u; }

    std::vector<float> alone_;
    std::vector<float> after_;  // [kFar, slots]
};

}  // namespace foresay
