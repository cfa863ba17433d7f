// Numbers of bfloat16: the upper halves of floats. Without the standard library, for the reason that csrc/cpu/level.cpp gives.
#pragma once

#include <cstdint>

#include "inline.hpp"

namespace foresay {

FORESAY_INLINE float wide(uint16_t number) noexcept { return __builtin_bit_cast(float, static_cast<uint32_t>(number) << 16); }

/// To the nearest, of two equally near to the even one.
FORESAY_INLINE uint16_t narrow(float number) noexcept {
    const auto bits = __builtin_bit_cast(uint32_t, number);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);  // NaN stays NaN
}

}  // namespace foresay
