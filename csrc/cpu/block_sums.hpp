// The sums of linear layers with weights in blocks, for one level; see csrc/cpu/level.cpp.
//
// One output of one row is one chain of sums: block after block, the integer sum of its products times both scales, then its
// minimum times the sum of its inputs; at last the bias. A sum of integers is the same in any order, and a row is quantised by
// itself. So the bits depend on that row alone, and are the same on all levels that multiply and add with one rounding.
// Weights that are not quantised have four chains, by input modulo 4.
#pragma once

#include "cpu/block_kernel.hpp"
#include "cpu/bytes.hpp"

namespace foresay::blocks {
namespace {

constexpr size_t kAlone = kWidth > 4 ? 3 : 0;  // rows up to which each has two chains of products: those of x86 take 5 cycles each
constexpr size_t kVectors = kBlock / 4;        // of a panel's block: four inputs each
constexpr size_t kBytes = sizeof(Bytes);

/// The integers of a panel's block, four inputs a vector.
template <Format kFormat>
FORESAY_INLINE void unpack(const uint8_t* block, Bytes (&w)[kVectors]) {
    constexpr Facts f = facts_of(kFormat);
    constexpr Places p = places_of(kFormat, kWidth);
    if constexpr (f.low == 8) {
#pragma GCC unroll 8
        for (size_t i = 0; i < kVectors; ++i) w[i] = load<Bytes>(block + i * kBytes);
        return;
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kVectors / 2; ++i) {
        const Bytes both = load<Bytes>(block + i * kBytes);
        w[i] = both & 15, w[i + kVectors / 2] = both >> 4;
    }
    if constexpr (f.high == 1) {
        const Bytes bits = load<Bytes>(block + p.high);
#pragma GCC unroll 8
        for (size_t i = 0; i < kVectors; ++i) w[i] |= (bits >> i & 1) << 4;
    }
    if constexpr (f.high == 2) {
#pragma GCC unroll 8
        for (size_t i = 0; i < kVectors; ++i) w[i] |= (load<Bytes>(block + p.high + i / 4 * kBytes) >> 2 * (i % 4) & 3) << 4;
    }
    if constexpr (!kUnsigned && f.offset != 0) {
#pragma GCC unroll 8
        for (size_t i = 0; i < kVectors; ++i) w[i] -= static_cast<uint8_t>(f.offset);
    }
}

template <Format kFormat, int kPlace>
FORESAY_INLINE Ints add(Ints sum, Bytes w, const Inputs& x) {
    if constexpr (facts_of(kFormat).low == 8) return add_byte_products<kPlace>(sum, w, x);
    else return add_products<kPlace>(sum, w, x);
}
template <Format kFormat>
FORESAY_INLINE Ints add_half(Ints sum, const Bytes* w, const int8_t* from) {
    const Inputs x(from);
    sum = add<kFormat, 0>(sum, w[0], x);
    sum = add<kFormat, 1>(sum, w[1], x);
    sum = add<kFormat, 2>(sum, w[2], x);
    return add<kFormat, 3>(sum, w[3], x);
}
/// Four vectors of weights and 16 inputs of each row, row beside row: a product waits for the one before it in its row.
template <Format kFormat, size_t kCount>
FORESAY_INLINE void add_side_by_side(Ints (&sums)[kCount], const Bytes* w, const int8_t* x) {
    if constexpr (kCount == 1) {
        sums[0] = add_half<kFormat>(sums[0], w, x);
    } else {
#pragma GCC unroll 8
        for (size_t row = 0; row < kCount; ++row) sums[row] = add<kFormat, 0>(sums[row], w[0], Inputs(x + row * kBlock));
#pragma GCC unroll 8
        for (size_t row = 0; row < kCount; ++row) sums[row] = add<kFormat, 1>(sums[row], w[1], Inputs(x + row * kBlock));
#pragma GCC unroll 8
        for (size_t row = 0; row < kCount; ++row) sums[row] = add<kFormat, 2>(sums[row], w[2], Inputs(x + row * kBlock));
#pragma GCC unroll 8
        for (size_t row = 0; row < kCount; ++row) sums[row] = add<kFormat, 3>(sums[row], w[3], Inputs(x + row * kBlock));
    }
}

/// The scales of a panel's blocks, one block after the other.
template <Format kFormat>
struct Scales {
    static constexpr Facts f = facts_of(kFormat);
    static constexpr Places p = places_of(kFormat, kWidth);
    Vec scale{}, minimum{}, fine[2]{};
    Vec of_scales{}, of_minimums{};  // of K formats

    /// Where block `index` is; `panel` is where the one before ends, or the panel's beginning.
    FORESAY_INLINE const uint8_t* read(const uint8_t* panel, size_t index) {
        if constexpr (f.super)
            if (index % kSuper == 0) {
                of_scales = load_halves(panel);
                if constexpr (f.minimum) of_minimums = load_halves(panel + 2 * kWidth);
                panel += p.header;
            }
        if constexpr (f.fine) {
            scale = of_scales;
            fine[0] = load_bytes<int8_t>(panel + p.scale), fine[1] = load_bytes<int8_t>(panel + p.minimum);
        } else if constexpr (f.super) {
            scale = of_scales * load_bytes<uint8_t>(panel + p.scale);
            minimum = -(of_minimums * load_bytes<uint8_t>(panel + p.minimum));
        } else {
            scale = load_halves(panel + p.scale);
            if constexpr (f.minimum) minimum = load_halves(panel + p.minimum);
        }
        return panel;
    }
    /// `sum` with what a row's integer products give.
    FORESAY_INLINE Vec add(Vec sum, Vec products, float row_scale, float row_sum) const {
        sum = multiply_add(products, scale * all(row_scale), sum);
        if constexpr (f.minimum) sum = multiply_add(minimum, all(row_sum), sum);
        return sum;
    }
};

/// What the products of a block begin with, for weights that are stored above their value.
template <Format kFormat>
constexpr int32_t kOffset = facts_of(kFormat).low == 8 ? (kUnsignedBytes ? 128 : 0) : kUnsigned ? facts_of(kFormat).offset : 0;

/// The sums of kCount rows, a whole group, with one panel. Not inlined: one copy of it serves a layer and its `up`.
template <Format kFormat, size_t kCount>
__attribute__((noinline)) void sum(const uint8_t* panel, Rows x, size_t blocks, Vec (&out)[kCount]) {
    constexpr Facts f = facts_of(kFormat);
    constexpr int32_t kFrom = -kOffset<kFormat>;
    Vec sums[kCount];
#pragma GCC unroll 8
    for (size_t row = 0; row < kCount; ++row) sums[row] = Vec{};
    Scales<kFormat> scales;
    for (size_t i = 0; i < blocks; ++i) {
        panel = scales.read(panel, i);
        Bytes w[kVectors];
        unpack<kFormat>(panel, w);
        panel += scales.p.bytes;
        const auto scaled = [&](size_t row, Vec found) __attribute__((always_inline)) { sums[row] = scales.add(sums[row], found, x.scales[row], x.sums[row]); };
        if constexpr (kFours && !f.fine && kCount >= 4) {
            constexpr size_t kTogether = kCount / 4 * 4;
#pragma GCC unroll 2
            for (size_t row = 0; row < kTogether; row += 4)
                add_four_rows<f.minimum>(sums + row, w, scales.scale, scales.minimum, x.q + row * kBlock, x.scales + row, x.sums + row);
#pragma GCC unroll 4
            for (size_t row = kTogether; row < kCount; ++row) scaled(row, as_floats(add_half<kFormat>(add_half<kFormat>(start(0), w, x.q + row * kBlock), w + 4, x.q + row * kBlock + 16)));
        } else if constexpr (f.fine) {  // exact: a sum and a scale have 24 bits together
            Vec found[kCount];
            Ints products[kCount];
#pragma GCC unroll 8
            for (size_t row = 0; row < kCount; ++row) products[row] = start(kFrom * x.halves[2 * row]);
            add_side_by_side<kFormat>(products, w, x.q);
#pragma GCC unroll 8
            for (size_t row = 0; row < kCount; ++row) found[row] = as_floats(products[row]) * scales.fine[0], products[row] = start(kFrom * x.halves[2 * row + 1]);
            add_side_by_side<kFormat>(products, w + kVectors / 2, x.q + kBlock / 2);
#pragma GCC unroll 8
            for (size_t row = 0; row < kCount; ++row) scaled(row, multiply_add(as_floats(products[row]), scales.fine[1], found[row]));
        } else {
            Ints low[kCount], high[kCount];
#pragma GCC unroll 8
            for (size_t row = 0; row < kCount; ++row) low[row] = start(kFrom ? kFrom * (x.halves[2 * row] + x.halves[2 * row + 1]) : 0);
            add_side_by_side<kFormat>(low, w, x.q);
            if constexpr (kCount <= kAlone) {  // too few rows to wait for each other: two chains each
#pragma GCC unroll 8
                for (size_t row = 0; row < kCount; ++row) high[row] = Ints{};
                add_side_by_side<kFormat>(high, w + kVectors / 2, x.q + kBlock / 2);
#pragma GCC unroll 8
                for (size_t row = 0; row < kCount; ++row) low[row] += high[row];
            } else {
                add_side_by_side<kFormat>(low, w + kVectors / 2, x.q + kBlock / 2);
            }
#pragma GCC unroll 8
            for (size_t row = 0; row < kCount; ++row) scaled(row, as_floats(low[row]));
        }
        x.q += kCount * kBlock, x.scales += kCount, x.sums += kCount, x.halves += 2 * kCount;
    }
#pragma GCC unroll 8
    for (size_t row = 0; row < kCount; ++row) out[row] = sums[row];
}

/// Numbers `at` of a panel's row of weights that are not quantised.
template <Format kFormat>
FORESAY_INLINE Vec numbers(const uint8_t* from) {
    if constexpr (kFormat == Format::f32) return load<Vec>(from);
    else if constexpr (kFormat == Format::f16) return load_halves(from);
    else return widened(load<Halves>(from));
}

template <Format kFormat, size_t kCount>
__attribute__((noinline)) void sum(const uint8_t* panel, const float* x, size_t ins, Vec (&sums)[kCount]) {
    constexpr size_t kChains = 4, kStep = kWidth * bytes_of_number(kFormat);
    Vec chains[kCount][kChains];
#pragma GCC unroll 8
    for (size_t row = 0; row < kCount; ++row)
#pragma GCC unroll 4
        for (size_t chain = 0; chain < kChains; ++chain) chains[row][chain] = Vec{};
    size_t i = 0;
    for (; i + kChains <= ins; i += kChains)
#pragma GCC unroll 4
        for (size_t chain = 0; chain < kChains; ++chain) {
            const Vec w = numbers<kFormat>(panel + (i + chain) * kStep);
#pragma GCC unroll 8
            for (size_t row = 0; row < kCount; ++row) chains[row][chain] = multiply_add(w, all(x[row * ins + i + chain]), chains[row][chain]);
        }
    for (; i < ins; ++i) {
        const Vec w = numbers<kFormat>(panel + i * kStep);
#pragma GCC unroll 8
        for (size_t row = 0; row < kCount; ++row) chains[row][0] = multiply_add(w, all(x[row * ins + i]), chains[row][0]);
    }
#pragma GCC unroll 8
    for (size_t row = 0; row < kCount; ++row) sums[row] = (chains[row][0] + chains[row][1]) + (chains[row][2] + chains[row][3]);
}

}  // namespace
}  // namespace foresay::blocks
