#include "cpu/block_formats.hpp"

namespace foresay::blocks {

void widen(Format format, const Weights& w, float* to) noexcept {
    const Facts& facts = facts_of(format);
    const int32_t offset = format == Format::q8_0 ? 128 : facts.offset;
    const float scale = widen_half(w.scale), minimum = widen_half(w.minimum);
    for (size_t i = 0; i < kBlock; ++i) {
        const auto q = static_cast<float>(w.q[i] - offset);
        if (facts.fine) to[i] = scale * static_cast<float>(static_cast<int8_t>(w.fine[i / 16])) * q;
        else if (facts.super) to[i] = scale * static_cast<float>(w.fine[0]) * q - minimum * static_cast<float>(w.fine[1]);
        else to[i] = scale * q + (facts.minimum ? minimum : 0.0f);
    }
}

}  // namespace foresay::blocks
