// The loops of a choice (csrc/sampling/noise.hpp) over a row of logits. The kernels are csrc/cpu/noise_loops.hpp; what they find is the
// same on every level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "inline.hpp"

namespace foresay {

/// Whose noise: all of the generator's key and counter but the token id.
struct NoiseKey {
    uint64_t seed;
    uint32_t position;
    uint32_t stream;
};

namespace noise {

constexpr size_t kLanes = 128;  // tokens that are looked at together
constexpr uint32_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

struct TwoWords {
    uint32_t first, second;
};

/// Philox 4x32-10 of the counter (position, token, stream, 0): the two words that are used.
FORESAY_INLINE TwoWords philox(const NoiseKey& key, uint32_t token) {
    uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    uint32_t c0 = key.position, c1 = token, c2 = key.stream, c3 = 0;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round, k0 += kWeyl0, k1 += kWeyl1) {
        const uint64_t product0 = uint64_t{kMultiply0} * c0, product1 = uint64_t{kMultiply1} * c2;
        c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0, c1 = static_cast<uint32_t>(product1);
        c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1, c3 = static_cast<uint32_t>(product0);
    }
    return {c0, c1};
}

/// A row of logits, `width` of them.
struct Row {
    const float* logits;
    size_t width;
};

/// What is known of kLanes tokens, of which the last ones of a row may not be there: their logits over the temperature, and
/// no less than the sum of that and their noise.
struct Lanes {
    float scaled[kLanes], most[kLanes];
};

struct Kernel {
    /// The beginning of the first kLanes tokens, from `first` on, of which some logit is not at or below `least`; the row's
    /// width if there are none. `first` is a multiple of kLanes.
    size_t (*above)(const Row& row, size_t first, float least) noexcept;
    /// The same for logits with noise, of which some may not be below `floor`; these are then in `lanes`.
    size_t (*above_with_noise)(const Row& row, size_t first, float temperature, const NoiseKey& key, float floor, Lanes& lanes) noexcept;
};

}  // namespace noise
}  // namespace foresay
