#include "sampling/residual.hpp"

#include <algorithm>
#include <cmath>
#include <string>


namespace foresay {
namespace {

constexpr size_t kBlock = 512;  // tokens that a draw looks at together

RowStatus::Value softmax_row(const residual::Kernel& kernel, const float* row, size_t width, float temperature, double* residual, double& total) {
    const bool greedy = temperature == 0;
    const float top = kernel.highest(row, width), scaled = greedy ? top : top / temperature;  // a division keeps the order
    if (!std::isfinite(scaled)) {
        std::fill_n(residual, width, 1.0), total = static_cast<double>(width);
        return std::isnan(scaled) ? RowStatus::kNan : scaled > 0 ? RowStatus::kInfinite : RowStatus::kEmpty;
    }
    if (greedy)
        std::fill_n(residual, width, 0.0), *(residual + (std::find(row, row + width, top) - row)) = total = 1;
    else
        total = kernel.exponentials(row, width, temperature, scaled, residual);
    return RowStatus::kGood;
}

/// In place and in one pass: tokens are looked at alone only up to the first block that leaves something.
double subtract_row(const residual::Kernel& kernel, double* residual, const float* probs, size_t width, double total, double factor) {
    for (size_t first = 0; first < width; first += kBlock) {
        if (!kernel.some_left(residual + first, probs + first, std::min(kBlock, width - first), factor)) continue;
        std::fill_n(residual, first, 0.0);
        return kernel.subtract(residual + first, probs + first, width - first, factor);
    }
    return total;
}

/// The running sum is one of blocks, and within the block that decides one of tokens.
int64_t draw_row(const residual::Kernel& kernel, const double* residual, size_t width, double coin, size_t row) {
    std::vector<double> blocks;
    double total = 0;
    for (size_t first = 0; first < width; first += kBlock)
        total += blocks.emplace_back(kernel.total(residual + first, std::min(kBlock, width - first)));
    if (!(total > 0) || std::isinf(total))
        throw InputError("the residual of row ", row, " sums to ", total, "; expected a positive finite number");
    const double goal = coin * total;
    double sum = 0;
    size_t block = 0;
    while (block + 1 < blocks.size() && sum + blocks[block] <= goal) sum += blocks[block++];
    size_t found = width;
    for (size_t i = block * kBlock; i < std::min(width, (block + 1) * kBlock); ++i) {
        if (residual[i] > 0) found = i;
        if ((sum += residual[i]) > goal) break;
    }
    // Roundings may keep the running sum below its goal to the end: then it is the last token that can be drawn.
    while (found == width || !(residual[found] > 0)) --found;
    return static_cast<int64_t>(found);
}

// ---- what is checked -----------------------------------------------------------------------------------------------

/// Threads must not write to one row.
void check_walks(std::span<const int64_t> walks, size_t count) {
    check_rows("walks", walks, count);
    std::vector<bool> seen(count);
    for (const int64_t walk : walks) {
        if (seen[static_cast<size_t>(walk)]) throw InputError("walks has row ", walk, " twice");
        seen[static_cast<size_t>(walk)] = true;
    }
}

void check_widths(size_t width, size_t other) {
    if (width != other) throw InputError("rows of ", width, " values do not fit a residual of ", other);
    if (width == 0) throw InputError("a row has 0 values; expected at least 1");
}

}  // namespace

Softmax unnormalised_softmax(const FloatRows& scores, std::span<const int64_t> rows, std::span<const float> temperatures,
                             const ResidualRows& residual, std::span<const int64_t> walks, uint32_t threads, const Kernels& level) {
    check_widths(scores.width, residual.width);
    check_size("rows", rows.size(), walks.size());
    check_size("temperatures", temperatures.size(), walks.size());
    check_rows("rows", rows, scores.count);
    check_walks(walks, residual.count);
    check_temperatures(temperatures);
    Softmax out{std::vector<double>(walks.size()), std::vector<uint8_t>(walks.size())};
    for_each(walks.size(), threads, [&](size_t i) {
        out.statuses[i] = softmax_row(level.residual, scores.row(static_cast<size_t>(rows[i])), scores.width, temperatures[i], residual.row(static_cast<size_t>(walks[i])), out.totals[i]);
    });
    return out;
}

Sums sums(const FloatRows& probs, std::span<const int64_t> rows, uint32_t threads, const Kernels& level) {
    check_rows("rows", rows, probs.count);
    Sums out{std::vector<double>(rows.size()), std::vector<float>(rows.size())};
    for_each(rows.size(), threads, [&](size_t i) { level.residual.sum(probs.row(static_cast<size_t>(rows[i])), probs.width, out.sums[i], out.least[i]); });
    return out;
}

std::vector<double> subtract(const ResidualRows& residual, std::span<const int64_t> walks, std::span<const double> totals,
                             const FloatRows& probs, std::span<const int64_t> rows, std::span<const double> sums, uint32_t threads,
                             const Kernels& level) {
    check_widths(probs.width, residual.width);
    check_size("totals", totals.size(), walks.size());
    check_size("rows", rows.size(), walks.size());
    check_size("sums", sums.size(), walks.size());
    check_walks(walks, residual.count);
    check_rows("rows", rows, probs.count);
    for (const double sum : sums)
        if (!(sum > 0) || std::isinf(sum)) throw InputError("sum ", sum, " of probs is not valid; expected a positive finite number");
    std::vector<double> out(walks.size());
    for_each(walks.size(), threads, [&](size_t i) {
        out[i] = subtract_row(level.residual, residual.row(static_cast<size_t>(walks[i])), probs.row(static_cast<size_t>(rows[i])), residual.width, totals[i], totals[i] / sums[i]);
    });
    return out;
}

std::vector<int64_t> draw(const ResidualRows& residual, std::span<const double> coins, uint32_t threads, const Kernels& level) {
    check_size("coins", coins.size(), residual.count);
    check_widths(residual.width, residual.width);
    for (const double coin : coins)
        if (!(coin >= 0 && coin < 1)) throw InputError("coin ", coin, " is not valid; expected 0 or more, and below 1");
    std::vector<int64_t> out(coins.size());
    for_each(coins.size(), threads, [&](size_t i) {
        out[i] = draw_row(level.residual, residual.row(i), residual.width, coins[i], i);
    });
    return out;
}

}  // namespace foresay
