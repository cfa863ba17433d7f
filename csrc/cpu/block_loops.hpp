// Linear layers with weights in blocks, for one level; see csrc/cpu/level.cpp. The bits of an output are those of its sum in
// csrc/cpu/block_sums.hpp.
#pragma once

#include "cpu/block_kernel.hpp"
#include "cpu/block_sums.hpp"

namespace foresay::blocks {
namespace {

// Rows that share what is read of the weights, as many as fit into registers; fewer of those that are not quantised. Why there are
// no matrix tiles: benchmarks/README.md.
#ifdef FORESAY_SANITIZE
constexpr size_t kRows = kFours ? 5 : 2, kFloatRows = 2;  // the same loops; with more of them the compiler takes a quarter of an hour
#else
constexpr size_t kRows = kWidth == 8 ? 4 : 8, kFloatRows = 4;
#endif
constexpr size_t kKept = size_t{512} << 10;  // bytes of rows that stay in the second cache while panels pass

// ---- what comes after the sums: the bias, an activation, a product, a sum, all of float32

/// x * sigmoid(t): silu for t = x.
FORESAY_INLINE Vec activated(Vec x, Activation kind) {
    if (kind == Activation::silu) return gated(x, x);
    return gated(x, all(1.5957691216f) * multiply_add(x * x * x, all(0.044715f), x));  // 2 sqrt(2 / pi): tanh as a sigmoid
}

/// A vector of columns of one row, of which those beyond the last output are not there.
FORESAY_INLINE void write(const Job& job, size_t panel, size_t row, Vec sums, const Vec* ups) {
    const size_t column = panel * kWidth, at = row * job.outs + column;
    const size_t present = job.outs - column < kWidth ? job.outs - column : kWidth;
    Vec result = sums + load<Vec>(job.layer.bias + column);
    if (ups) result = activated(result, job.activation) * (*ups + load<Vec>(job.up.bias + column));
    if (present == kWidth) {
        if (job.added) result = load<Vec>(job.added + at) + result;
        return store(job.out + at, result);
    }
    for (size_t i = 0; i < present; ++i) job.out[at + i] = job.added ? job.added[at + i] + result[i] : result[i];
}

// ---- the products

/// Bytes of a panel.
template <Format kFormat>
constexpr size_t panel_bytes(size_t ins) {
    constexpr Places p = places_of(kFormat, kWidth);
    return is_quantised(kFormat) ? ins / kBlock / p.supers * p.super_bytes : ins * kWidth * bytes_of_number(kFormat);
}

/// Rows `first` up to `first + kCount` of one panel: a whole group, if they are quantised.
template <Format kFormat, size_t kCount>
void multiply_rows(const Job& job, size_t panel, size_t first) {
    const auto found = [&](const Layer& layer, Vec (&sums)[kCount]) __attribute__((always_inline)) {
        const uint8_t* const weights = layer.panels + panel * panel_bytes<kFormat>(job.ins);
        if constexpr (is_quantised(kFormat)) sum<kFormat, kCount>(weights, from_row(job.quantised, first, job.ins), job.ins / kBlock, sums);
        else sum<kFormat, kCount>(weights, job.x + first * job.ins, job.ins, sums);
    };
    Vec sums[kCount], ups[kCount];
    found(job.layer, sums);
    if (job.up.panels) found(job.up, ups);
#pragma GCC unroll 8
    for (size_t row = 0; row < kCount; ++row) write(job, panel, first + row, sums[row], job.up.panels ? &ups[row] : nullptr);
}

/// Rows `first` up to `first + count` of one panel, a whole group.
template <Format kFormat>
void multiply_group(const Job& job, size_t panel, size_t first, size_t count) {
    if constexpr (!is_quantised(kFormat))
        for (; count > kFloatRows; first += kFloatRows, count -= kFloatRows) multiply_rows<kFormat, kFloatRows>(job, panel, first);
    constexpr size_t kMost = is_quantised(kFormat) ? kRows : kFloatRows;
    switch (count) {
#define FORESAY_CASE(n) \
    case n: if constexpr (n <= kMost) multiply_rows<kFormat, n>(job, panel, first); break;
        FORESAY_CASE(1) FORESAY_CASE(2) FORESAY_CASE(3) FORESAY_CASE(4) FORESAY_CASE(5) FORESAY_CASE(6) FORESAY_CASE(7) FORESAY_CASE(8)
#undef FORESAY_CASE
    }
}

template <Format kFormat>
void multiply(const Job& job, size_t first, size_t end) noexcept {
    const Groups groups(job.rows, kRows);
    const size_t fit = kKept / ((is_quantised(kFormat) ? 1 : 4) * job.ins) / kRows, step = fit ? fit : 1;
    for (size_t begin = 0; begin < groups.count; begin += step)
        for (size_t panel = first; panel < end; ++panel)
            for (size_t group = begin; group < groups.count && group < begin + step; ++group)
                multiply_group<kFormat>(job, panel, groups.first(group), groups.size(group));
}

/// A block's largest number becomes 127; halves go to the even integer. What is no number, or too large, gives a block of none.
void quantise(const float* x, size_t ins, const Rows& group, size_t row, size_t count) noexcept {
    for (size_t i = 0; i < ins / kBlock; ++i, x += kBlock) {
        const size_t at = i * count + row;
        Ints sizes{};  // without its sign a number is as large as its bits
        for (size_t j = 0; j < kBlock; j += kWidth) {
            const Ints size = load<Ints>(x + j) & 0x7fffffff;
            sizes = size > sizes ? size : sizes;
        }
        const float largest = __builtin_bit_cast(float, largest_of(sizes));
        const float scale = largest * (1.0f / 127.0f), inverse = largest > 0x1p-100f ? 127.0f / largest : 0.0f;
        int32_t halves[2];
        for (size_t half = 0; half < 2; ++half) {
            Ints values[16 / kWidth], sum{};
            for (size_t j = 0; j < 16 / kWidth; ++j) {
                const Vec shifted = load<Vec>(x + half * 16 + j * kWidth) * all(inverse) + all(0x1.8p23f);  // rounds: its lower bits are the integer
                values[j] = (reinterpret_cast<Ints>(shifted) - 0x4B400000) << 24 >> 24;
                sum += values[j];
            }
            store_bytes(group.q + at * kBlock + half * 16, values);
            halves[half] = sum_of(sum);
        }
        group.scales[at] = scale;
        group.sums[at] = scale * static_cast<float>(halves[0] + halves[1]);
        group.halves[2 * at] = halves[0], group.halves[2 * at + 1] = halves[1];
    }
}

constexpr Kernel kKernel = {
    kRows, kWidth, kUnsignedBytes, quantise,
    {multiply<Format::f32>, multiply<Format::f16>, multiply<Format::bf16>, multiply<Format::q8_0>, multiply<Format::q4_0>, multiply<Format::q4_1>,
     multiply<Format::q5_0>, multiply<Format::q5_1>, multiply<Format::q4_k>, multiply<Format::q5_k>, multiply<Format::q6_k>},
};

}  // namespace
}  // namespace foresay::blocks
