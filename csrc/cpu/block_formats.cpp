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

}  // namespace

Weights read(Format format, const uint8_t* row, size_t index) noexcept {
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
