// Sampling for Python: keyed noise, choices, log probabilities, the residual. Logits, probs and the residual are too large to copy: they
// are read, and the residual written, while the GIL is released, so the caller keeps other threads from them. All else is copied first.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <type_traits>

#include "bind/bind.hpp"
#include "errors.hpp"
#include "sampling/logprobs.hpp"
#include "sampling/match.hpp"
#include "sampling/noise.hpp"
#include "sampling/residual.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Residual = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Chosen = std::tuple<Array<int32_t>, Array<double>, Array<uint8_t>>;

FloatRows rows_of(const Logits& rows) { return {rows.data(), rows.shape(0), rows.shape(1)}; }
ResidualRows rows_of(const Residual& rows) { return {rows.data(), rows.shape(0), rows.shape(1)}; }

/// One kind of noise for each token.
template <double noise(const NoiseKey&, uint32_t)>
Array<double> noise_of(uint64_t seed, uint32_t position, const Tokens& tokens, uint32_t stream) {
    std::vector<double> values;
    values.reserve(tokens.size());
    for (const int32_t token : copy(tokens)) {
        if (token < 0) throw InputError("token " + std::to_string(token) + " is not a token id; expected 0 to 2147483647");
        values.push_back(noise({seed, position, stream}, static_cast<uint32_t>(token)));
    }
    return own(std::move(values));
}

/// `choose` over logits in float32, or in bfloat16, whose bits come as uint16.
template <class Number>
void def_choose(nb::module_& m) {
    using Rows = nb::ndarray<const Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
    m.def("choose", [](const Rows& logits, const Given<float>& temperatures, const Given<uint64_t>& seeds,
                       const Given<uint32_t>& positions, uint32_t stream, uint32_t threads, const std::string& level) -> Chosen {
        const Kernels& kernels = level_of(level);
        const auto heats = copy(temperatures);
        const auto keys = copy(seeds);
        const auto places = copy(positions);
        LogitRows rows{nullptr, nullptr, logits.shape(0), logits.shape(1), heats, keys, places, stream};
        if constexpr (std::is_same_v<Number, float>) rows.logits = logits.data();
        else rows.small = logits.data();
        Choices out;
        {
            const nb::gil_scoped_release released;
            out = choose(rows, threads, kernels);
        }
        return Chosen(own(std::move(out.tokens)), own(std::move(out.values)), own(std::move(out.statuses)));
    }, "logits"_a.noconvert(), nb::kw_only(), "temperatures"_a.noconvert(), "seeds"_a.noconvert(), "positions"_a.noconvert(),
       "stream"_a, "threads"_a, "level"_a = "",
       "(chosen, values, statuses) of each row; see csrc/sampling/noise.hpp.");
}

/// Rule match over logits of the same types.
template <class Number>
void def_match(nb::module_& m) {
    using Rows = nb::ndarray<const Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
    m.def("match", [](const Rows& logits, const Tokens& offsets, const Tokens& tokens, const Tokens& parents, const Given<float>& temperatures,
                      const Given<uint64_t>& seeds, const Given<int64_t>& positions, const Given<int64_t>& room, const Given<int64_t>& stop_owners,
                      const Given<int64_t>& stops, uint32_t stream, uint32_t threads, const std::string& level) {
        const Kernels& kernels = level_of(level);
        const auto bounds = copy(offsets), drafted = copy(tokens), above = copy(parents);
        const auto heats = copy(temperatures);
        const auto keys = copy(seeds);
        const auto places = copy(positions), left = copy(room), owners = copy(stop_owners), ends = copy(stops);
        MatchInput in{nullptr, nullptr, logits.shape(0), logits.shape(1), heats, bounds, drafted, above, keys, places, left, owners, ends, stream};
        if constexpr (std::is_same_v<Number, float>) in.logits = logits.data();
        else in.small = logits.data();
        Matched out;
        {
            const nb::gil_scoped_release released;
            out = match(in, threads, kernels);
        }
        return std::tuple(own(std::move(out.tokens)), own(std::move(out.offsets)), own(std::move(out.path)), own(std::move(out.path_offsets)),
                          own(std::move(out.rows)), own(std::move(out.statuses)));
    }, "logits"_a.noconvert(), nb::kw_only(), "offsets"_a.noconvert(), "tokens"_a.noconvert(), "parents"_a.noconvert(), "temperatures"_a.noconvert(),
       "seeds"_a.noconvert(), "positions"_a.noconvert(), "room"_a.noconvert(), "stop_owners"_a.noconvert(), "stops"_a.noconvert(), "stream"_a,
       "threads"_a, "level"_a = "", "(tokens, offsets, path, path_offsets, rows, statuses); see csrc/sampling/match.hpp.");
}

template <class Rows>
RawRows raw_rows(const Rows& logits) {
    RawRows rows{nullptr, nullptr, logits.shape(0), logits.shape(1)};
    if constexpr (std::is_same_v<typename Rows::Scalar, const float>) rows.logits = logits.data();
    else rows.small = logits.data();
    return rows;
}

/// The likeliest tokens, and log probabilities, of logits of the same types.
template <class Number>
void def_logprobs(nb::module_& m) {
    using Rows = nb::ndarray<const Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
    m.def("topk", [](const Rows& logits, size_t k, uint32_t threads, const std::string& level) {
        const Kernels& kernels = level_of(level);
        TopTokens out;
        {
            const nb::gil_scoped_release released;
            out = topk(raw_rows(logits), k, threads, kernels);
        }
        return std::tuple(own(std::move(out.tokens), logits.shape(0), k), own(std::move(out.logprobs), logits.shape(0), k));
    }, "logits"_a.noconvert(), "k"_a, nb::kw_only(), "threads"_a, "level"_a = "",
       "(tokens, logprobs) of each row, the likeliest first; see csrc/sampling/logprobs.hpp.");
    m.def("token_logprobs", [](const Rows& logits, const Given<int64_t>& rows, const Tokens& tokens, const Given<float>& temperatures, size_t top,
                               uint32_t threads, const std::string& level) {
        const Kernels& kernels = level_of(level);
        const auto places = copy(rows);
        const auto chosen = copy(tokens);
        const auto heats = copy(temperatures);
        TokenLogprobs out;
        {
            const nb::gil_scoped_release released;
            out = token_logprobs(raw_rows(logits), {places, chosen, heats, top}, threads, kernels);
        }
        return std::tuple(own(std::move(out.logprobs)), own(std::move(out.top_tokens), places.size(), top),
                          own(std::move(out.top_logprobs), places.size(), top));
    }, "logits"_a.noconvert(), nb::kw_only(), "rows"_a.noconvert(), "tokens"_a.noconvert(), "temperatures"_a.noconvert(), "top"_a = 0, "threads"_a,
       "level"_a = "", "(logprobs, top_tokens, top_logprobs) of each token; see csrc/sampling/logprobs.hpp.");
}

void bind_choices(nb::module_& m) {
    m.def("uniforms", &noise_of<uniform>, "seed"_a, "position"_a, "tokens"_a.noconvert(), "stream"_a = 0);
    m.def("gumbels", &noise_of<gumbel>, "seed"_a, "position"_a, "tokens"_a.noconvert(), "stream"_a = 0);
    def_choose<float>(m);
    def_choose<uint16_t>(m);
    def_match<float>(m);
    def_match<uint16_t>(m);
    def_logprobs<float>(m);
    def_logprobs<uint16_t>(m);
}

void bind_residual(nb::module_& m) {
    m.def("unnormalised_softmax", [](const Logits& scores, const Given<int64_t>& rows, const Given<float>& temperatures, const Residual& residual,
                                     const Given<int64_t>& walks, uint32_t threads, const std::string& level) {
        const Kernels& kernels = level_of(level);
        const auto sources = copy(rows), targets = copy(walks);
        const auto heats = copy(temperatures);
        Softmax out;
        {
            const nb::gil_scoped_release released;
            out = unnormalised_softmax(rows_of(scores), sources, heats, rows_of(residual), targets, threads, kernels);
        }
        return std::tuple(own(std::move(out.totals)), own(std::move(out.statuses)));
    }, "scores"_a.noconvert(), nb::kw_only(), "rows"_a.noconvert(), "temperatures"_a.noconvert(), "residual"_a.noconvert(),
       "walks"_a.noconvert(), "threads"_a, "level"_a = "", "Writes into the residual. (totals, statuses) of each walk; see csrc/sampling/residual.hpp.");
    m.def("sums", [](const Logits& probs, const Given<int64_t>& rows, uint32_t threads, const std::string& level) {
        const Kernels& kernels = level_of(level);
        const auto sources = copy(rows);
        Sums out;
        {
            const nb::gil_scoped_release released;
            out = sums(rows_of(probs), sources, threads, kernels);
        }
        return std::tuple(own(std::move(out.sums)), own(std::move(out.least)));
    }, "probs"_a.noconvert(), nb::kw_only(), "rows"_a.noconvert(), "threads"_a, "level"_a = "",
       "(sums, least) of each row; a NaN makes the sum NaN.");
    m.def("subtract", [](const Residual& residual, const Given<int64_t>& walks, const Given<double>& totals, const Logits& probs,
                         const Given<int64_t>& rows, const Given<double>& sums, uint32_t threads, const std::string& level) {
        const Kernels& kernels = level_of(level);
        const auto targets = copy(walks), sources = copy(rows);
        const auto before = copy(totals), divisors = copy(sums);
        std::vector<double> out;
        {
            const nb::gil_scoped_release released;
            out = subtract(rows_of(residual), targets, before, rows_of(probs), sources, divisors, threads, kernels);
        }
        return own(std::move(out));
    }, "residual"_a.noconvert(), nb::kw_only(), "walks"_a.noconvert(), "totals"_a.noconvert(), "probs"_a.noconvert(),
       "rows"_a.noconvert(), "sums"_a.noconvert(), "threads"_a, "level"_a = "", "Writes into the residual. The new totals; see csrc/sampling/residual.hpp.");
    m.def("draw", [](const Residual& residual, const Given<double>& coins, uint32_t threads, const std::string& level) {
        const Kernels& kernels = level_of(level);
        const auto chances = copy(coins);
        std::vector<int64_t> out;
        {
            const nb::gil_scoped_release released;
            out = draw(rows_of(residual), chances, threads, kernels);
        }
        return own(std::move(out));
    }, "residual"_a.noconvert(), "coins"_a.noconvert(), nb::kw_only(), "threads"_a, "level"_a = "", "A token of each row of the residual.");
}

}  // namespace

void bind_sampling(nb::module_& m) {
    bind_choices(m);
    bind_residual(m);
}

}  // namespace foresay
