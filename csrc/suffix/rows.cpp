#include "suffix/rows.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "errors.hpp"
#include "prefetch.hpp"

namespace foresay {
namespace {

constexpr std::array<uint32_t, 8> kBack{1, 2, 3, 5, 9, 21, 60, 200};
constexpr size_t kAhead = 8;  // rows whose memory is asked for in advance

// Odd, so that each place changes the key; sums wrap around.
constexpr std::array<uint64_t, kBack.size() + 1> kWeights = [] {
    std::array<uint64_t, kBack.size() + 1> out{};
    uint64_t state = 5;
    for (uint64_t& weight : out) {
        uint64_t mixed = state += 0x9E3779B97F4A7C15ull;
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
        weight = (mixed ^ (mixed >> 31)) | 1;
    }
    return out;
}();

int64_t key_of(const int32_t* text, uint32_t length) noexcept {
    uint64_t key = length * kWeights.back();
    for (size_t i = 0; i < kBack.size(); ++i)
        key += static_cast<uint32_t>(text[std::max(length, kBack[i]) - kBack[i]]) * kWeights[i];
    return static_cast<int64_t>(key);
}

}  // namespace

Rows read_rows(std::span<const uint32_t> counts, std::span<const int32_t> lengths, const RowTexts& texts) {
    if (counts.size() > lengths.size() || counts.size() > texts.rows)
        throw InputError(counts.size(), " rows got tokens or none; there are ", lengths.size(), " lengths and ", texts.rows, " texts");
    Rows out;
    for (std::vector<int32_t>* values : {&out.numbers, &out.lengths, &out.tokens, &out.offsets}) values->reserve(2 * counts.size() + 1);
    out.before.reserve(counts.size());
    out.after.reserve(counts.size());
    for (size_t row = 0; row < counts.size(); ++row) {
        if (row + kAhead < counts.size() && lengths[row + kAhead] > 0 && static_cast<size_t>(lengths[row + kAhead]) <= texts.width) {
            const int32_t* const end = texts.tokens + (row + kAhead) * texts.stride + lengths[row + kAhead];
            for (const uint32_t back : {1u, 21u, 60u, 200u}) foresay::prefetch(end - back);
        }
        const uint32_t count = counts[row];
        if (count == 0) continue;
        const int32_t length = lengths[row];
        if (length < 0 || static_cast<size_t>(length) > texts.width || static_cast<uint32_t>(length) < count)
            throw InputError("row ", row, " has ", length, " tokens, of which ", count, " are new; there is room for ", texts.width);
        const int32_t* const text = texts.tokens + row * texts.stride;
        out.numbers.push_back(static_cast<int32_t>(row));
        out.lengths.push_back(length);
        out.tokens.insert(out.tokens.end(), text + length - count, text + length);
        out.offsets.push_back(static_cast<int32_t>(out.tokens.size()));
        out.before.push_back(key_of(text, static_cast<uint32_t>(length) - count));
        out.after.push_back(key_of(text, static_cast<uint32_t>(length)));
    }
    return out;
}

}  // namespace foresay
