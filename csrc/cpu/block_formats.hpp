// The formats in which GGUF files store weights, and how each is laid out for the kernels.
//
// A quantised weight is (q - offset) * scale + minimum, with one scale for each block of 32 inputs of an output (16 of Q6_K).
// For the kernels the outputs stand in panels, as many as a vector has floats. A panel's block of 32 inputs is
//
//     low bits    vectors of (output, 4 inputs): the lower nibbles are inputs 0 to 15, the upper ones 16 to 31. Q8_0: whole bytes
//     high bits   Q5: bit g of a byte belongs to inputs 4 g to 4 g + 3; Q6_K: two bits each, in two vectors
//     scales      of each output, as they are stored
//
// and K formats have the scales of the scales before every 8 blocks. So the bytes are those of the file, in another order.
// Numbers of F32, F16 and BF16 stand as [input][output].
//
// Without the standard library, for the reason that csrc/cpu/level.cpp gives.
#pragma once

#include <cstddef>
#include <cstdint>

#include "inline.hpp"

namespace foresay::blocks {

enum class Format : uint8_t { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k };

/// A format's facts. `low` and `high` count bits.
struct Facts {
    const char* name;
    uint32_t numbers, bytes;         // of a stored block
    uint32_t low, high;              // bits of a weight in each plane; 0 and 0: it is a floating-point number
    int32_t offset;                  // what a stored integer is above its value
    bool minimum, super, fine;       // a minimum; 8 blocks with a scale of scales; a scale for each 16 inputs
};

constexpr size_t kFormats = 11;
constexpr Facts kFacts[kFormats] = {
    {"F32", 1, 4, 0, 0, 0, false, false, false},     {"F16", 1, 2, 0, 0, 0, false, false, false},
    {"BF16", 1, 2, 0, 0, 0, false, false, false},    {"Q8_0", 32, 34, 8, 0, 0, false, false, false},
    {"Q4_0", 32, 18, 4, 0, 8, false, false, false},  {"Q4_1", 32, 20, 4, 0, 0, true, false, false},
    {"Q5_0", 32, 22, 4, 1, 16, false, false, false}, {"Q5_1", 32, 24, 4, 1, 0, true, false, false},
    {"Q4_K", 256, 144, 4, 0, 0, true, true, false},  {"Q5_K", 256, 176, 4, 1, 0, true, true, false},
    {"Q6_K", 256, 210, 4, 2, 32, false, true, true},
};
constexpr const Facts& facts_of(Format format) { return kFacts[static_cast<size_t>(format)]; }
constexpr bool is_quantised(Format format) { return facts_of(format).low != 0; }

constexpr size_t kBlock = 32;  // inputs that are multiplied as integers before they are scaled
constexpr size_t kSuper = 8;   // blocks with a scale of scales

/// Where the parts of a panel's block are, in bytes, for panels of that number of outputs.
struct Places {
    size_t high, scale, minimum, bytes;  // of a block; it begins with the low bits
    size_t header, super_bytes;          // before every `supers` blocks; bytes of all of these
    size_t supers;
};
constexpr Places places_of(Format format, size_t outs) {
    const Facts& f = facts_of(format);
    Places p{};
    p.high = kBlock * outs * f.low / 8;
    p.scale = p.high + kBlock * outs * f.high / 8;
    p.minimum = p.scale + outs * (f.super ? 1 : 2);
    p.bytes = p.minimum + (f.minimum || f.fine ? outs * (f.super ? 1 : 2) : 0);
    p.header = f.super ? outs * (f.minimum ? 4 : 2) : 0;
    p.supers = f.super ? kSuper : 1;
    p.super_bytes = p.header + p.supers * p.bytes;
    return p;
}
/// Bytes of a number that is not quantised.
constexpr size_t bytes_of_number(Format format) { return facts_of(format).bytes; }

/// Half precision as a float. Not for infinities, which are refused when weights are loaded.
FORESAY_INLINE float widen_half(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half & 0x7fff) << 13;
    const float number = __builtin_bit_cast(float, bits) * 0x1p112f;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, number) | static_cast<uint32_t>(half & 0x8000) << 16);
}

/// 32 inputs of one output, as a file stores them: integers without their offset, and scales.
struct Weights {
    uint8_t q[kBlock];        // of Q8_0: 128 above the value
    uint16_t scale, minimum;  // half precision; of K formats the scales of the scales
    uint8_t fine[2];          // of K formats: the scale and the minimum; of Q6_K the signed scales of 16 inputs each
};

/// These inputs as floats.
void widen(Format format, const Weights& weights, float* to) noexcept;

// ---- from the blocks of a file to the panels of the kernels (block_layout.cpp) ----

/// The stored rows of the outputs of one panel; the last panel may have fewer than its width.
struct StoredRows {
    const uint8_t* const* at;
    size_t count;
};

/// What a file must not hold: a scale, or a number that is not quantised, which is infinite or none.
struct Damage {
    size_t output = 0, place = 0;  // in the panel; the block of 32 inputs, or the number
    bool found = false;
};

/// Lays the rows out as one panel of `wide` outputs; the places of those that are lacking are left as they are. Bytes of Q8_0 are
/// stored 128 above their values if `from_zero`. Where a damage is found, the panel is of no use.
Damage lay_out(Format format, const StoredRows& rows, size_t wide, size_t ins, bool from_zero, uint8_t* panel) noexcept;

}  // namespace foresay::blocks
