// Matrix tiles. Only for files that are compiled for them; in an unnamed namespace, for the reason that
// csrc/cpu/level.cpp gives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foresay {
namespace {

/// Tiles 0 to 3 are sums, 4 and 6 what rows bring, 5 and 7 what they share. What the tile of one row holds does not depend
/// on how many others there are.
struct alignas(64) Tiling {
    uint8_t palette = 1, start = 0, zeros[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    explicit Tiling(uint32_t count) : Tiling(count, count) {}
    /// `count` rows for tiles 0, 1 and 4, `more` for 2, 3 and 6.
    Tiling(uint32_t count, uint32_t more) {
        for (uint32_t tile = 0; tile < 8; ++tile) {
            const bool shared = tile == 5 || tile == 7, second = tile == 2 || tile == 3 || tile == 6;
            row_bytes[tile] = 64, rows[tile] = static_cast<uint8_t>(shared ? 16 : second ? more : count);
        }
    }
};

// PASS loads what need not stay in the first cache. Not those of the compiler, which does not say that they read and write memory.
#define FORESAY_TILE_SET(tiling) asm volatile("ldtilecfg %0" : : "m"(tiling) : "memory")
#define FORESAY_TILE_LOAD(tile, from, bytes) asm volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(size_t{bytes}) : "memory")
#define FORESAY_TILE_PASS(tile, from, bytes) asm volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(size_t{bytes}) : "memory")
#define FORESAY_TILE_STORE(tile, to, bytes) asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(size_t{bytes}) : "memory")
#define FORESAY_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile : : : "memory")
#define FORESAY_TILE_ADD(sum, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : : : "memory")

}  // namespace
}  // namespace foresay
