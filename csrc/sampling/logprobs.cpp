#include "sampling/logprobs.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "cpu/bfloat.hpp"

namespace foresay {
namespace {

using logprobs::kBlock;
using logprobs::Row;

struct Scored {
    float value;
    int32_t token;
};
bool likelier(const Scored& one, const Scored& other) {
    return one.value > other.value || (one.value == other.value && one.token < other.token);
}

/// The k likeliest tokens of a row, the likeliest first; nothing if it is invalid. `k` is 1 to the width.
///
/// While k are not known everything is looked at, since no logit is at or below NaN; then only blocks that have one above
/// the least of the k. Tokens come in the order of their ids, so an equal one comes too late. A NaN is never at or below.
void find_likeliest(const logprobs::Kernel& kernel, const Row& row, size_t k, std::vector<Scored>& found) {
    found.clear();
    float block[kBlock], least = NAN;
    for (size_t first = 0; (first = kernel.above(row, first, least, block)) < row.width; first += kBlock) {
        for (size_t i = 0; i < std::min(kBlock, row.width - first); ++i) {
            if (block[i] <= least) continue;
            if (std::isnan(block[i])) return found.clear();
            if (found.size() == k) std::pop_heap(found.begin(), found.end(), likelier), found.pop_back();
            found.push_back({block[i], static_cast<int32_t>(first + i)});
            std::push_heap(found.begin(), found.end(), likelier);  // the least likely is in front
            if (found.size() == k) least = found.front().value;
        }
    }
    std::sort_heap(found.begin(), found.end(), likelier);
    if (std::isinf(found.front().value)) found.clear();
}

/// Memory that the thread uses again for its next row.
std::vector<Scored>& space() {
    thread_local std::vector<Scored> found;
    return found;
}

void check(const LogitRows& rows, const char* name, size_t k) {
    check_width(rows);
    if (k > rows.width) throw InputError(name, " is ", k, "; expected 0 to the ", rows.width, " logits of a row");
}

void find_topk(const LogitRows& rows, size_t row, size_t k, const Kernels& level, TopTokens& out) {
    std::vector<Scored>& found = space();
    find_likeliest(level.logprobs, rows.row(row), k, found);
    if (found.empty()) return;
    const float top = found.front().value;
    const double rest = std::log(level.logprobs.rough_sum(rows.row(row), top));
    for (size_t i = 0; i < k; ++i)
        out.tokens[row * k + i] = found[i].token, out.logprobs[row * k + i] = static_cast<float>(double{found[i].value} - double{top} - rest);
}

void find_logprobs(const LogitRows& rows, const Wanted& wanted, size_t i, const Kernels& level, TokenLogprobs& out) {
    const Row row = rows.row(static_cast<size_t>(wanted.rows[i]));
    const float temperature = wanted.temperatures[i];
    const bool greedy = temperature == 0;
    std::vector<Scored>& found = space();
    find_likeliest(level.logprobs, row, std::max<size_t>(wanted.top, 1), found);
    int32_t* const tokens = out.top_tokens.data() + i * wanted.top;
    const auto scaled = [&](float value) { return double{greedy ? value : value / temperature}; };
    const double top = found.empty() ? NAN : scaled(found.front().value);
    if (!std::isfinite(top)) return std::iota(tokens, tokens + wanted.top, 0);
    const int32_t first = found.front().token;
    const double rest = greedy ? 0 : std::log(level.logprobs.sum(row, temperature, top));
    const auto logprob = [&](float value, int32_t token) {
        return greedy ? (token == first ? 0 : -INFINITY) : scaled(value) - top - rest;
    };
    const auto own = static_cast<size_t>(wanted.tokens[i]);
    out.logprobs[i] = logprob(row.logits ? row.logits[own] : wide(row.small[own]), wanted.tokens[i]);
    for (size_t j = 0; j < wanted.top; ++j)
        tokens[j] = found[j].token, out.top_logprobs[i * wanted.top + j] = logprob(found[j].value, found[j].token);
}

}  // namespace

TopTokens topk(const LogitRows& rows, size_t k, uint32_t threads, const Kernels& level) {
    check(rows, "k", k);
    TopTokens out{std::vector<int32_t>(rows.count * k, -1), std::vector<float>(rows.count * k, -INFINITY)};
    for_each(k ? rows.count : 0, threads, [&](size_t row) { find_topk(rows, row, k, level, out); });
    return out;
}

TokenLogprobs token_logprobs(const LogitRows& rows, const Wanted& wanted, uint32_t threads, const Kernels& level) {
    const size_t count = wanted.rows.size();
    check(rows, "top", wanted.top);
    check_size("tokens", wanted.tokens.size(), count);
    check_size("temperatures", wanted.temperatures.size(), count);
    check_rows("rows", wanted.rows, rows.count);
    check_temperatures(wanted.temperatures);
    for (const int32_t token : wanted.tokens)
        if (token < 0 || static_cast<size_t>(token) >= rows.width)
            throw InputError("token ", token, " has no logit; expected 0 to ", rows.width - 1);
    TokenLogprobs out{std::vector<double>(count, NAN), std::vector<int32_t>(count * wanted.top), std::vector<double>(count * wanted.top, NAN)};
    for_each(count, threads, [&](size_t i) { find_logprobs(rows, wanted, i, level, out); });
    return out;
}

}  // namespace foresay
