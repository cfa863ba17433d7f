// Linear layers without matrix tiles, for one level; see csrc/cpu/level.cpp.
//
// One output of one row is one chain of sums, input after input, then the bias. However rows and outputs share registers,
// the chain is the same, so how rows are grouped changes no bit. Products of bfloat16 are exact floats, so that fusing changes
// none either. Where a processor adds two products of bfloat16 at once (i8mm), the chain goes from pair to pair, with its rounding.
#pragma once

#include "cpu/bfloat.hpp"
#include "cpu/linear_results.hpp"

namespace foresay::linear {
namespace {

// Rows that share what is read of the weights, and vectors of sums that fit into registers beside what they are made of.
constexpr size_t kRows = FORESAY_FUSED ? (kWidth == 8 ? 6 : 8) : 4, kSums = 2 * kRows;
constexpr size_t kVecs = kPanel / kWidth;            // of a panel
constexpr size_t kKept = size_t{512} << 10;          // bytes of rows that stay in the second cache while panels pass
// A packed row is made of floats, or of pairs of bfloat16 as they are. Four of these stand beside each other.
constexpr size_t kInputs = FORESAY_DOTS == 2 ? 2 : 1;                            // in one of them
constexpr size_t kFour = 4, kFours = kDepth / kInputs / kFour, kPacked = kDepth / kInputs;  // how often in a tile, and all of it

/// The rows of a block: all have as many, or one more.
struct Blocks {
    size_t count, rows, more;  // the first `more` blocks have one row more
    explicit Blocks(size_t all) : count((all + kRows - 1) / kRows), rows(all / count), more(all % count) {}
    size_t first(size_t block) const { return block * rows + least(block, more); }
    size_t rows_of(size_t block) const { return rows + (block < more ? 1 : 0); }
};

/// Of each block, for every four inputs, these of its rows one after the other.
void pack(const uint16_t* x, ptrdiff_t step, size_t rows, size_t ins, size_t depth, float* to) noexcept {
    const Blocks blocks(rows);
    for (size_t block = 0; block < blocks.count; ++block) {
        const size_t count = blocks.rows_of(block), first = blocks.first(block);
        float* const begin = to + first * depth * kPacked;
        for (size_t row = 0; row < count; ++row) {
            const uint16_t* const from = x + static_cast<ptrdiff_t>(first + row) * step;
            const auto input = [&](size_t i) -> uint32_t { return i < ins ? from[i] : 0; };
            for (size_t i = 0; i < depth * kPacked; i += kFour)
                for (size_t j = 0; j < kFour; ++j) {
                    const size_t at = kInputs * (i + j);
                    const uint32_t bits = kInputs == 2 ? input(at) | input(at + 1) << 16 : input(at) << 16;
                    __builtin_memcpy(begin + i * count + row * kFour + j, &bits, sizeof bits);
                }
        }
    }
}

/// Of a pair of inputs, whose weights for some vectors of outputs begin at `weight`: those of number kPair among the four of `x`.
template <int kPair, size_t kCount, size_t kTaken>
FORESAY_INLINE void add_pair(Vec (&sums)[kCount][kTaken], const uint32_t* weight, const float* x) {
    Words words[kTaken];
#pragma GCC unroll 8
    for (size_t i = 0; i < kTaken; ++i) words[i] = load<Words>(weight + i * kWidth / 16 * (kTile / 2) + i * kWidth % 16);
#if FORESAY_DOTS == 2
#pragma GCC unroll 8
    for (size_t i = 0; i < kTaken; ++i)
#pragma GCC unroll 8
        for (size_t row = 0; row < kCount; ++row) {
            const auto pairs = vreinterpretq_bf16_f32(vld1q_f32(x + row * kFour));
            sums[row][i] = reinterpret_cast<Vec>(vbfdotq_laneq_f32(reinterpret_cast<float32x4_t>(sums[row][i]), reinterpret_cast<bfloat16x8_t>(words[i]), pairs, kPair));
        }
#else
#pragma GCC unroll 8
    for (size_t i = 0; i < kTaken; ++i) {
        const Vec low = low_of(words[i]);
#pragma GCC unroll 8
        for (size_t row = 0; row < kCount; ++row) sums[row][i] = multiply_add<2 * kPair>(low, x + row * kFour, sums[row][i]);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kTaken; ++i) {
        const Vec high = high_of(words[i]);
#pragma GCC unroll 8
        for (size_t row = 0; row < kCount; ++row) sums[row][i] = multiply_add<2 * kPair + 1>(high, x + row * kFour, sums[row][i]);
    }
#endif
}

/// The sums of kCount rows with one panel, into rows of kPanel.
template <size_t kCount>
FORESAY_INLINE void sum(const uint16_t* panel, const float* rows, size_t depth, float* to) {
    constexpr size_t kFit = kSums / kCount, kTaken = kFit >= 8 ? least(kVecs, 8) : kFit >= 4 ? least(kVecs, 4) : least(kVecs, 2);
    for (size_t first = 0; first < kVecs; first += kTaken) {
        Vec sums[kCount][kTaken] = {};
        const size_t column = first * kWidth;
        const uint16_t* weight = panel + column / 16 * kTile + column % 16 * 2;
        const float* x = rows;
        for (size_t i = 0; i < depth; ++i, weight += 2 * kTile)
            for (size_t four = 0; four < kFours; ++four, x += kCount * kFour) {
                const auto* const words = reinterpret_cast<const uint32_t*>(weight) + four * kInputs * 32;
                add_pair<0>(sums, words, x), add_pair<1>(sums, words + 16, x);
                if constexpr (kInputs == 2) add_pair<2>(sums, words + 32, x), add_pair<3>(sums, words + 48, x);
            }
#pragma GCC unroll 8
        for (size_t row = 0; row < kCount; ++row)
#pragma GCC unroll 8
            for (size_t i = 0; i < kTaken; ++i) store(to + row * kPanel + column + i * kWidth, sums[row][i]);
    }
}

void sum_rows(size_t count, const uint16_t* panel, const float* rows, size_t depth, float* to) {
    switch (count) {
#define FORESAY_CASE(n) \
    case n: if constexpr (n <= kRows) sum<n>(panel, rows, depth, to); break;
        FORESAY_CASE(1) FORESAY_CASE(2) FORESAY_CASE(3) FORESAY_CASE(4) FORESAY_CASE(5) FORESAY_CASE(6) FORESAY_CASE(7) FORESAY_CASE(8)
#undef FORESAY_CASE
    }
}

void multiply(const Job& job, size_t first, size_t end) noexcept {
    alignas(64) float sums[kRows * kPanel], ups[kRows * kPanel];
    const Blocks blocks(job.rows);
    const size_t fit = kKept / (job.depth * kPacked * sizeof(float)) / kRows, step = fit ? fit : 1;
    for (size_t begin = 0; begin < blocks.count; begin += step)
        for (size_t panel = first; panel < end; ++panel) {
            const size_t place = panel * job.depth * 2 * kTile;
            for (size_t block = begin; block < least(blocks.count, begin + step); ++block) {
                const size_t row = blocks.first(block), rows = blocks.rows_of(block);
                const float* const x = job.packed + row * job.depth * kPacked;
                sum_rows(rows, job.layer.weight + place, x, job.depth, sums);
                if (job.up.weight) sum_rows(rows, job.up.weight + place, x, job.depth, ups);
                write_panel(job, panel, row, rows, sums, job.up.weight ? ups : nullptr);
            }
        }
}

constexpr Kernel kKernel = {kRows, pack, multiply};

}  // namespace
}  // namespace foresay::linear
