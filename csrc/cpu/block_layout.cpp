#include "cpu/block_formats.hpp"

#include <cstring>

namespace foresay::blocks {
namespace {

uint16_t half_at(const uint8_t* from) noexcept {
    uint16_t half;
    std::memcpy(&half, from, sizeof half);
    return half;
}

/// The lower nibbles are the first 16, the upper ones the others.
void nibbles(const uint8_t* from, uint8_t* q) noexcept {
    for (size_t i = 0; i < 16; ++i) q[i] = from[i] & 15, q[i + 16] = from[i] >> 4;
}

/// Scale and minimum of a block of Q4_K or Q5_K: 6 bits each, the upper ones of the last four blocks elsewhere.
void six_bits(const uint8_t* from, size_t block, uint8_t (&fine)[2]) noexcept {
    if (block < 4) {
        fine[0] = from[block] & 63, fine[1] = from[block + 4] & 63;
        return;
    }
    fine[0] = static_cast<uint8_t>((from[block + 4] & 15) | (from[block - 4] >> 6) << 4);
    fine[1] = static_cast<uint8_t>(from[block + 4] >> 4 | (from[block] >> 6) << 4);
}

/// Block `index` of 32 inputs of a row of stored blocks. Where the format is a constant, no more than its own case is left.
FORESAY_INLINE Weights block_of(Format format, const uint8_t* row, size_t index) noexcept {
    Weights w{};
    const Facts& facts = facts_of(format);
    const size_t blocks = facts.numbers / kBlock, part = index % blocks;  // of a stored block
    const uint8_t* const from = row + index / blocks * facts.bytes;
    switch (format) {
        case Format::q8_0:
            w.scale = half_at(from);
            for (size_t i = 0; i < kBlock; ++i) w.q[i] = from[2 + i] ^ 0x80;
            break;
        case Format::q4_0:
            w.scale = half_at(from);
            nibbles(from + 2, w.q);
            break;
        case Format::q4_1:
            w.scale = half_at(from), w.minimum = half_at(from + 2);
            nibbles(from + 4, w.q);
            break;
        case Format::q5_0:
        case Format::q5_1: {
            const size_t bits = format == Format::q5_1 ? 4 : 2;
            w.scale = half_at(from);
            if (format == Format::q5_1) w.minimum = half_at(from + 2);
            nibbles(from + bits + 4, w.q);
            for (size_t i = 0; i < kBlock; ++i) w.q[i] = static_cast<uint8_t>(w.q[i] | (from[bits + i / 8] >> i % 8 & 1) << 4);
            break;
        }
        case Format::q4_k:
        case Format::q5_k: {
            w.scale = half_at(from), w.minimum = half_at(from + 2);
            six_bits(from + 4, part, w.fine);
            const uint8_t* const low = from + (format == Format::q5_k ? 48 : 16) + part / 2 * kBlock;
            for (size_t i = 0; i < kBlock; ++i) w.q[i] = part % 2 ? low[i] >> 4 : low[i] & 15;
            if (format == Format::q5_k)
                for (size_t i = 0; i < kBlock; ++i) w.q[i] = static_cast<uint8_t>(w.q[i] | (from[16 + i] >> part & 1) << 4);
            break;
        }
        case Format::q6_k: {  // in halves of 128 numbers; of each, four blocks share the bytes
            const size_t half = part / 4, place = part % 4;
            const uint8_t *const low = from + half * 64 + place % 2 * 32, *const high = from + 128 + half * 32;
            for (size_t i = 0; i < kBlock; ++i)
                w.q[i] = static_cast<uint8_t>((place < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> 2 * place & 3) << 4);
            w.fine[0] = from[192 + part * 2], w.fine[1] = from[193 + part * 2];
            w.scale = half_at(from + 208);
            break;
        }
        default: break;
    }
    return w;
}

bool is_finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

/// The numbers of a panel that are not quantised, of 2 or 4 bytes each: their exponent is in the upper 16 bits.
template <class Bits>
Damage transpose(const StoredRows& rows, size_t wide, size_t ins, Bits exponent, uint8_t* panel) noexcept {
    for (size_t lane = 0; lane < rows.count; ++lane)
        for (size_t i = 0; i < ins; ++i) {
            Bits number;
            std::memcpy(&number, rows.at[lane] + i * sizeof number, sizeof number);
            if ((number & exponent) == exponent) return {lane, i, true};
            std::memcpy(panel + (i * wide + lane) * sizeof number, &number, sizeof number);
        }
    return {};
}

/// Four bytes of one output, where those of all outputs stand side by side.
void put(uint8_t* to, size_t lane, uint32_t bytes) noexcept { std::memcpy(to + 4 * lane, &bytes, sizeof bytes); }
void put_half(uint8_t* to, size_t lane, uint16_t half) noexcept { std::memcpy(to + 2 * lane, &half, sizeof half); }

/// All outputs of a block before the next block: the panel is written from its begin to its end, once.
template <Format kFormat>
Damage interleave(const StoredRows& rows, size_t wide, size_t ins, uint8_t flip, uint8_t* panel) noexcept {
    constexpr Facts kFacts = facts_of(kFormat);
    const Places places = places_of(kFormat, wide);
    const size_t step = 4 * wide;
    for (size_t i = 0; i < ins / kBlock; ++i) {
        const bool first = kFacts.super && i % kSuper == 0;
        uint8_t* const block = panel + (first ? places.header : 0);
        for (size_t lane = 0; lane < rows.count; ++lane) {
            const Weights w = block_of(kFormat, rows.at[lane], i);
            if (!is_finite(w.scale) || !is_finite(w.minimum)) return {lane, i, true};
            if (first) {
                put_half(panel, lane, w.scale);
                if (kFacts.minimum) put_half(panel + 2 * wide, lane, w.minimum);
            }
            uint32_t q[kBlock / 4];  // four inputs each
            std::memcpy(q, w.q, sizeof q);
            if constexpr (kFacts.low == 8) {
                for (size_t group = 0; group < 8; ++group) put(block + group * step, lane, q[group] ^ flip * 0x01010101u);
            } else {
                for (size_t group = 0; group < 4; ++group)
                    put(block + group * step, lane, (q[group] & 0x0f0f0f0fu) | (q[group + 4] & 0x0f0f0f0fu) << 4);
            }
            if constexpr (kFacts.high == 1) {
                uint32_t bits = 0;
                for (size_t group = 0; group < 8; ++group) bits |= (q[group] >> 4 & 0x01010101u) << group;
                put(block + places.high, lane, bits);
            }
            if constexpr (kFacts.high == 2)
                for (size_t half = 0; half < 2; ++half) {
                    uint32_t bits = 0;
                    for (size_t group = 0; group < 4; ++group) bits |= (q[4 * half + group] >> 4 & 0x03030303u) << 2 * group;
                    put(block + places.high + half * step, lane, bits);
                }
            if constexpr (kFacts.super) {
                block[places.scale + lane] = w.fine[0], block[places.minimum + lane] = w.fine[1];
            } else {
                put_half(block + places.scale, lane, w.scale);
                if (kFacts.minimum) put_half(block + places.minimum, lane, w.minimum);
            }
        }
        panel = block + places.bytes;
    }
    return {};
}

}  // namespace

Damage lay_out(Format format, const StoredRows& rows, size_t wide, size_t ins, bool from_zero, uint8_t* panel) noexcept {
    const uint8_t flip = from_zero ? 0 : 0x80;
    switch (format) {
        case Format::f32: return transpose<uint32_t>(rows, wide, ins, 0x7f800000u, panel);
        case Format::f16: return transpose<uint16_t>(rows, wide, ins, 0x7c00, panel);
        case Format::bf16: return transpose<uint16_t>(rows, wide, ins, 0x7f80, panel);
        case Format::q8_0: return interleave<Format::q8_0>(rows, wide, ins, flip, panel);
        case Format::q4_0: return interleave<Format::q4_0>(rows, wide, ins, flip, panel);
        case Format::q4_1: return interleave<Format::q4_1>(rows, wide, ins, flip, panel);
        case Format::q5_0: return interleave<Format::q5_0>(rows, wide, ins, flip, panel);
        case Format::q5_1: return interleave<Format::q5_1>(rows, wide, ins, flip, panel);
        case Format::q4_k: return interleave<Format::q4_k>(rows, wide, ins, flip, panel);
        case Format::q5_k: return interleave<Format::q5_k>(rows, wide, ins, flip, panel);
        case Format::q6_k: return interleave<Format::q6_k>(rows, wide, ins, flip, panel);
    }
    return {};
}

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
