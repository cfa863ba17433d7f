#include "sampling/noise.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace foresay {
namespace {

using noise::kLanes;

/// The best token so far.
struct Best {
    int32_t token = -1;
    double value = -INFINITY;  // NaN: the row holds a NaN
    /// The value as the nearest finite float. No sum of floats whose exact value is above `value` comes out below this, as
    /// rounding keeps order; -inf always does.
    float floor = -FLT_MAX;

    void offer(int32_t other, double its_value) {
        if (its_value <= value || std::isnan(value)) return;  // it comes later, so an equal loses; NaN stays
        token = other, value = its_value;
        floor = static_cast<float>(std::clamp<double>(value, -FLT_MAX, FLT_MAX));
    }
};

void choose_greedily(const noise::Kernel& kernel, const noise::Row& row, Best& best) {
    // The value is a float's, so as a float it is exact.
    for (size_t first = 0; (first = kernel.above(row, first, static_cast<float>(best.value))) < row.width; first += kLanes) {
        for (size_t i = first; i < std::min(row.width, first + kLanes); ++i) best.offer(static_cast<int32_t>(i), row.logits[i]);
        if (std::isnan(best.value)) return;
    }
}

/// Token by token this is best.offer(token, double(logit / temperature) + gumbel(token)), and has its result exactly; but
/// the noise of a token that could not win with all of the noise there is, and the logarithms of one that cannot win with
/// the noise that its first word allows, are not computed. A NaN is never below the floor and so gets through.
void choose_with_noise(const noise::Kernel& kernel, const noise::Row& row, float temperature, const NoiseKey& key, Best& best) {
    noise::Lanes lanes;
    for (size_t first = 0; (first = kernel.above_with_noise(row, first, temperature, key, best.floor, lanes)) < row.width; first += kLanes) {
        for (size_t i = 0; i < std::min(kLanes, row.width - first); ++i) {
            if (lanes.most[i] < best.floor) continue;
            const auto token = static_cast<uint32_t>(first + i);
            best.offer(static_cast<int32_t>(token), double{lanes.scaled[i]} + gumbel(key, token));
        }
        if (std::isnan(best.value)) return;
    }
}

/// A row in float32, in memory that the thread uses again for its next row.
const float* widened(const Kernels& level, const uint16_t* row, size_t width) {
    thread_local std::vector<float> space;
    if (space.size() < width) space.resize(width);
    level.layer.widen(row, width, space.data());
    return space.data();
}

}  // namespace

double uniform(const NoiseKey& key, uint32_t token) {
    const noise::TwoWords words = noise::philox(key, token);
    const uint64_t r = uint64_t{words.first} << 20 | words.second >> 12;
    return (static_cast<double>(r) + 0.5) * 0x1p-52;
}

double gumbel(const NoiseKey& key, uint32_t token) { return -std::log(-std::log(uniform(key, token))); }

Choice choose_row(const logprobs::Row& from, float temperature, const NoiseKey& key, const Kernels& level) {
    const noise::Row row{from.logits ? from.logits : widened(level, from.small, from.width), from.width};
    Best best;
    if (temperature == 0) choose_greedily(level.noise, row, best);
    else choose_with_noise(level.noise, row, temperature, key, best);
    if (std::isnan(best.value)) return {-1, NAN, RowStatus::kNan};
    if (best.value == INFINITY) return {-1, NAN, RowStatus::kInfinite};
    if (best.token < 0) return {-1, NAN, RowStatus::kEmpty};
    return {best.token, best.value, RowStatus::kGood};
}

Choices choose(const LogitRows& rows, std::span<const float> temperatures, std::span<const uint64_t> seeds, std::span<const uint32_t> positions,
               uint32_t stream, uint32_t threads, const Kernels& level) {
    check_size("temperatures", temperatures.size(), rows.count);
    check_size("seeds", seeds.size(), rows.count);
    check_size("positions", positions.size(), rows.count);
    check_width(rows);
    check_temperatures(temperatures);
    Choices out{std::vector<int32_t>(rows.count), std::vector<double>(rows.count), std::vector<uint8_t>(rows.count)};
    for_each(rows.count, threads, [&](size_t row) {
        const Choice found = choose_row(rows.row(row), temperatures[row], {seeds[row], positions[row], stream}, level);
        out.tokens[row] = found.token, out.values[row] = found.value, out.statuses[row] = found.status;
    });
    return out;
}

}  // namespace foresay
