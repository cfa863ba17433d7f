#include "noise.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <string>

#include "errors.hpp"
#include "levels.hpp"
#include "parallel.hpp"

#if FORESAY_LEVELS
#include <immintrin.h>
#endif

namespace foresay {
namespace {

constexpr size_t kLanes = 128;        // tokens that are looked at together
constexpr float kMaxGumbel = 36.74f;  // no noise is larger
constexpr uint32_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

struct Words {
    uint32_t first, second;
};

/// Philox 4x32-10 of the counter (position, token, stream, 0): the two words that are used.
inline Words philox(const NoiseKey& key, uint32_t token) {
    uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    uint32_t c0 = key.position, c1 = token, c2 = key.stream, c3 = 0;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round, k0 += kWeyl0, k1 += kWeyl1) {
        const uint64_t product0 = uint64_t{kMultiply0} * c0, product1 = uint64_t{kMultiply1} * c2;
        c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0, c1 = static_cast<uint32_t>(product1);
        c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1, c3 = static_cast<uint32_t>(product0);
    }
    return {c0, c1};
}

/// The first words of kLanes tokens.
FORESAY_LEVEL("default") void first_words(const NoiseKey& key, uint32_t token, uint32_t* words) {
    for (uint32_t i = 0; i < kLanes; ++i) words[i] = philox(key, token + i).first;
}

// The same, twice as fast as what GCC makes of that loop: it does not find the instruction that multiplies the low halves of
// 64-bit lanes, where the words can stay for all rounds (what is in the high halves does not matter). The lanes hold the even
// tokens, then the odd ones, and are zipped at the end. A macro, because a template would be compiled for the lowest level.
#define FORESAY_FIRST_WORDS(level, Vector, multiply)                                                            \
    FORESAY_LEVEL(level) void first_words(const NoiseKey& key, uint32_t token, uint32_t* words) {               \
        typedef uint64_t Lanes __attribute__((vector_size(sizeof(Vector))));                                    \
        constexpr uint32_t kWidth = sizeof(Lanes) / sizeof(uint64_t);                                           \
        const Lanes zero = {}, multiply0 = zero + kMultiply0, multiply1 = zero + kMultiply1;                    \
        Lanes even;                                                                                             \
        for (uint32_t i = 0; i < kWidth; ++i) even[i] = token + 2 * i;                                          \
        for (size_t i = 0; i < kLanes; i += 2 * kWidth, even += 2 * kWidth) {                                   \
            Lanes found[2];                                                                                     \
            for (uint32_t odd = 0; odd < 2; ++odd) {                                                            \
                uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);      \
                Lanes c0 = zero + key.position, c1 = even + odd, c2 = zero + key.stream, c3 = zero;             \
                _Pragma("GCC unroll 10") for (int round = 0; round < 10; ++round, k0 += kWeyl0, k1 += kWeyl1) { \
                    const Lanes product0 = reinterpret_cast<Lanes>(multiply((Vector)multiply0, (Vector)c0));    \
                    const Lanes product1 = reinterpret_cast<Lanes>(multiply((Vector)multiply1, (Vector)c2));    \
                    c0 = (product1 >> 32) ^ c1 ^ k0, c1 = product1;                                             \
                    c2 = (product0 >> 32) ^ c3 ^ k1, c3 = product0;                                             \
                }                                                                                               \
                found[odd] = c0;                                                                                \
            }                                                                                                   \
            found[0] = (found[0] & UINT32_MAX) | found[1] << 32;                                                \
            std::memcpy(words + i, &found[0], sizeof(Lanes));                                                   \
        }                                                                                                       \
    }
#if FORESAY_LEVELS
FORESAY_FIRST_WORDS("arch=x86-64-v3", __m256i, _mm256_mul_epu32)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own header
FORESAY_FIRST_WORDS("arch=x86-64-v4", __m512i, _mm512_mul_epu32)
#pragma GCC diagnostic pop
#endif

/// No less than the Gumbel noise of any uniform whose first word this is, without a logarithm.
///
/// As -log(u) >= 1 - u, the noise is at most -log(1 - u). With h the first 31 bits of the word's complement, 1 - u is at
/// least h / 2^31. And log2((1 + f) 2^e) >= e + f, which is what the bits of a float say when they are read as an integer:
/// 2^23 (e + f + 127). So the noise is at most ln 2 (31 + 127 - bits / 2^23), 88 or more where h is 0.
///
/// The rounding of h (relative 2^-24), of bits, of the product and of the difference (each at most 158 ln 2 2^-24) and of
/// the constants come to less than 4e-5, and the logarithms of gumbel() to less than 1e-13: kSlack has room for them.
inline float most_gumbel(uint32_t first_word) {
    constexpr float kSlack = 1e-3f, kLn2 = 0.69314718f;
    const float rest = static_cast<float>(static_cast<int32_t>(~first_word >> 1));
    return (158 * kLn2 + kSlack) - kLn2 / (1 << 23) * static_cast<float>(std::bit_cast<int32_t>(rest));
}

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

/// The logits from `first` on, filled up with -inf in `space` where the row ends earlier.
inline const float* lanes_of(std::span<const float> row, size_t first, float* space) {
    if (row.size() - first >= kLanes) return &row[first];
    std::fill(std::copy(row.begin() + static_cast<ptrdiff_t>(first), row.end(), space), space + kLanes, -INFINITY);
    return space;
}

FORESAY_EACH_LEVEL void choose_greedily(std::span<const float> row, Best& best) {
    float space[kLanes];
    for (size_t first = 0; first < row.size(); first += kLanes) {
        const float* lanes = lanes_of(row, first, space);
        const float least = static_cast<float>(best.value);  // exact: it was a float
        int any = 0;
        for (size_t i = 0; i < kLanes; ++i) any |= !(lanes[i] <= least);
        if (any == 0) continue;
        for (size_t i = 0; i < kLanes; ++i) best.offer(static_cast<int32_t>(first + i), lanes[i]);
        if (std::isnan(best.value)) return;
    }
}

/// Token by token this is best.offer(token, double(logit / temperature) + gumbel(token)), and has its result exactly; but
/// the noise of a token that could not win with all of the noise there is, and the logarithms of one that cannot win with
/// the noise that its first word allows, are not computed. A NaN is never below the floor and so gets through.
FORESAY_EACH_LEVEL void choose_with_noise(std::span<const float> row, float temperature, const NoiseKey& key, Best& best) {
    float space[kLanes], scaled[kLanes], most[kLanes];
    uint32_t words[kLanes];
    for (size_t first = 0; first < row.size(); first += kLanes) {
        const float* lanes = lanes_of(row, first, space);
        int any = 0;
        for (size_t i = 0; i < kLanes; ++i) {
            scaled[i] = lanes[i] / temperature;
            any |= !(scaled[i] + kMaxGumbel < best.floor);
        }
        if (any == 0) continue;
        first_words(key, static_cast<uint32_t>(first), words);
        any = 0;
        for (size_t i = 0; i < kLanes; ++i) {
            most[i] = scaled[i] + most_gumbel(words[i]);
            any |= !(most[i] < best.floor);
        }
        if (any == 0) continue;
        for (size_t i = 0; i < kLanes; ++i) {
            if (most[i] < best.floor) continue;
            const auto token = static_cast<uint32_t>(first + i);
            best.offer(static_cast<int32_t>(token), double{scaled[i]} + gumbel(key, token));
        }
        if (std::isnan(best.value)) return;
    }
}

void check(const LogitRows& rows, uint32_t threads) {
    const size_t count = rows.count;
    const auto check_size = [&](const char* name, size_t size) {
        if (size != count)
            throw InputError(std::string(name) + " has " + std::to_string(size) + " values, but there are " +
                             std::to_string(count) + " rows");
    };
    check_size("temperatures", rows.temperatures.size());
    check_size("seeds", rows.seeds.size());
    check_size("positions", rows.positions.size());
    check_size("gates", rows.gates.size());
    check_size("tokens", rows.tokens.size());
    if (rows.width == 0 || rows.width > INT32_MAX)
        throw InputError("a row has " + std::to_string(rows.width) + " logits; valid are 1 to 2147483647");
    if (threads == 0 || threads > 256) throw InputError("threads is " + std::to_string(threads) + "; it is from 1 to 256");
    for (const float temperature : rows.temperatures)
        if (!(temperature >= 0) || std::isinf(temperature))
            throw InputError("temperature " + std::to_string(temperature) + " is not valid; it is 0 or more, and finite");
    if (rows.offsets.empty() || rows.offsets.front() != 0 || static_cast<size_t>(rows.offsets.back()) != count ||
        !std::is_sorted(rows.offsets.begin(), rows.offsets.end()))
        throw InputError("the offsets do not rise from 0 to the number of rows, " + std::to_string(count));
    for (size_t b = 0; b + 1 < rows.offsets.size(); ++b)
        for (int32_t row = rows.offsets[b]; row < rows.offsets[b + 1]; ++row) {
            const int32_t gate = rows.gates[static_cast<size_t>(row)];
            if (gate != -1 && (gate < rows.offsets[b] || gate >= row))
                throw InputError("the gate of row " + std::to_string(row) + " is " + std::to_string(gate) +
                                 "; valid are -1 and earlier rows of its request, which begins at " + std::to_string(rows.offsets[b]));
        }
}

FORESAY_EACH_LEVEL void widen(const uint16_t* from, size_t count, float* to) noexcept {
    for (size_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
}

/// A row in float32, in memory that the thread uses again for its next row.
const float* widened(const LogitRows& rows, size_t row) {
    thread_local std::vector<float> space;
    if (space.size() < rows.width) space.resize(rows.width);
    widen(rows.small + row * rows.width, rows.width, space.data());
    return space.data();
}

void choose_row(const LogitRows& rows, size_t row, Choices& out) {
    if (rows.gates[row] >= 0) {
        const auto gate = static_cast<size_t>(rows.gates[row]);
        // The status is asked as well: a row without a choice has token -1, and so may whoever asks for it.
        if (out.statuses[gate] != RowStatus::kGood || out.tokens[gate] != rows.tokens[row]) return;
    }
    const std::span<const float> logits(rows.logits ? rows.logits + row * rows.width : widened(rows, row), rows.width);
    Best best;
    if (rows.temperatures[row] == 0)
        choose_greedily(logits, best);
    else
        choose_with_noise(logits, rows.temperatures[row], {rows.seeds[row], rows.positions[row], rows.stream}, best);
    uint8_t& status = out.statuses[row];
    if (std::isnan(best.value)) status = RowStatus::kNan;
    else if (best.value == INFINITY) status = RowStatus::kInfinite;
    else if (best.token < 0) status = RowStatus::kEmpty;
    else status = RowStatus::kGood, out.tokens[row] = best.token, out.values[row] = best.value;
}

}  // namespace

double uniform(const NoiseKey& key, uint32_t token) {
    const Words words = philox(key, token);
    const uint64_t r = uint64_t{words.first} << 20 | words.second >> 12;
    return (static_cast<double>(r) + 0.5) * 0x1p-52;
}

double gumbel(const NoiseKey& key, uint32_t token) { return -std::log(-std::log(uniform(key, token))); }

Choices choose(const LogitRows& rows, uint32_t threads) {
    check(rows, threads);
    const size_t count = rows.count, requests = rows.offsets.size() - 1;
    Choices out{std::vector<int32_t>(count, -1), std::vector<double>(count, NAN),
                std::vector<uint8_t>(count, RowStatus::kNotReached)};
    std::atomic<bool> stop = false;
    std::atomic<size_t> next = 0;
    in_parallel(static_cast<uint32_t>(std::clamp<size_t>(requests, 1, threads)), stop, [&](uint32_t) {
        for (size_t b; !stop && (b = next++) < requests;)
            for (int32_t row = rows.offsets[b]; row < rows.offsets[b + 1]; ++row) choose_row(rows, static_cast<size_t>(row), out);
    });
    return out;
}

}  // namespace foresay
