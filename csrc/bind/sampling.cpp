// Sampling for Python: keyed noise, choices, masks, log probabilities, the residual. Logits, masks, probs and the residual are too large to
// copy: they are read, and masked logits and the residual written, while the GIL is released, so the caller keeps other threads from
// them. All else is copied first.
#include "bind/bind.hpp"
#include "sampling/logprobs.hpp"
#include "sampling/masks.hpp"
#include "sampling/match.hpp"
#include "sampling/noise.hpp"
#include "sampling/residual.hpp"

using namespace nanobind::literals;

namespace nanobind::detail {

/// Logits in float32, or in bfloat16, whose bits come as uint16.
template <>
struct type_caster<foresay::LogitRows> {
    using Floats = make_caster<foresay::Matrix<const float>>;
    using Halves = make_caster<foresay::Matrix<const uint16_t>>;
    NB_TYPE_CASTER(foresay::LogitRows, Floats::Name + const_name(" | ") + Halves::Name)

    bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
        if (floats_.from_python(source, flags, cleanup)) value = {floats_.value.values, nullptr, floats_.value.count, floats_.value.width};
        else if (halves_.from_python(source, flags, cleanup)) value = {nullptr, halves_.value.values, halves_.value.count, halves_.value.width};
        else return false;
        return true;
    }

private:
    Floats floats_;
    Halves halves_;
};

template <>
struct type_caster<foresay::Choices> : arrays_caster<foresay::Choices, &foresay::Choices::tokens, &foresay::Choices::values, &foresay::Choices::statuses> {};
template <>
struct type_caster<foresay::Matched> : arrays_caster<foresay::Matched, &foresay::Matched::tokens, &foresay::Matched::offsets, &foresay::Matched::path,
                                                     &foresay::Matched::path_offsets, &foresay::Matched::rows, &foresay::Matched::statuses> {};
template <>
struct type_caster<foresay::Softmax> : arrays_caster<foresay::Softmax, &foresay::Softmax::totals, &foresay::Softmax::statuses> {};
template <>
struct type_caster<foresay::Sums> : arrays_caster<foresay::Sums, &foresay::Sums::sums, &foresay::Sums::least> {};

}  // namespace nanobind::detail

namespace foresay {
namespace {

/// One kind of noise for each token.
template <double noise(const NoiseKey&, uint32_t)>
Array<double> noise_of(uint64_t seed, uint32_t position, Tokens tokens, uint32_t stream) {
    std::vector<double> values;
    values.reserve(tokens.size());
    for (const int32_t token : tokens) {
        if (token < 0) throw InputError("token ", token, " is not a token id; expected 0 to 2147483647");
        values.push_back(noise({seed, position, stream}, static_cast<uint32_t>(token)));
    }
    return own(std::move(values));
}

void bind_choices(nb::module_& m) {
    m.def("forbid", &forbid, "logits"_a, nb::kw_only(), "rows"_a, "masks"_a, "threads"_a, Released(),
          "Writes -inf where a row's mask has no bit; see csrc/sampling/masks.hpp.");
    m.def("uniforms", &noise_of<uniform>, "seed"_a, "position"_a, "tokens"_a, "stream"_a = 0);
    m.def("gumbels", &noise_of<gumbel>, "seed"_a, "position"_a, "tokens"_a, "stream"_a = 0);
    m.def("choose", &choose, "logits"_a, nb::kw_only(), "temperatures"_a, "seeds"_a, "positions"_a, "stream"_a, "threads"_a, "level"_a = "",
          Released(), "(chosen, values, statuses) of each row; see csrc/sampling/noise.hpp.");
    m.def("match", [](const LogitRows& logits, Tokens offsets, Tokens tokens, Tokens parents, std::span<const float> temperatures,
                      std::span<const uint64_t> seeds, std::span<const int64_t> positions, std::span<const int64_t> room,
                      std::span<const int64_t> stop_owners, std::span<const int64_t> stops, uint32_t stream, uint32_t threads, const Kernels& level) {
        return match({{offsets, tokens, parents, room, stop_owners, stops}, logits, temperatures, seeds, positions, stream}, threads, level);
    }, "logits"_a, nb::kw_only(), "offsets"_a, "tokens"_a, "parents"_a, "temperatures"_a, "seeds"_a, "positions"_a, "room"_a, "stop_owners"_a,
       "stops"_a, "stream"_a, "threads"_a, "level"_a = "", Released(),
       "(tokens, offsets, path, path_offsets, rows, statuses); see csrc/sampling/match.hpp.");
    m.def("follow", [](std::span<const int64_t> codes, Tokens offsets, Tokens tokens, Tokens parents, std::span<const int64_t> room,
                       std::span<const int64_t> stop_owners, std::span<const int64_t> stops) {
        return follow({offsets, tokens, parents, room, stop_owners, stops}, codes);
    }, "codes"_a, nb::kw_only(), "offsets"_a, "tokens"_a, "parents"_a, "room"_a, "stop_owners"_a, "stops"_a, Released(),
       "The same from each row's token, or -1 - its status, chosen elsewhere.");
}

void bind_logprobs(nb::module_& m) {
    m.def("topk", [](const LogitRows& logits, size_t k, uint32_t threads, const Kernels& level) {
        TopTokens out = released([&] { return topk(logits, k, threads, level); });
        return std::tuple(own(std::move(out.tokens), logits.count, k), own(std::move(out.logprobs), logits.count, k));
    }, "logits"_a, "k"_a, nb::kw_only(), "threads"_a, "level"_a = "",
       "(tokens, logprobs) of each row, the likeliest first; see csrc/sampling/logprobs.hpp.");
    m.def("token_logprobs", [](const LogitRows& logits, std::span<const int64_t> rows, Tokens tokens, std::span<const float> temperatures, size_t top,
                               uint32_t threads, const Kernels& level) {
        TokenLogprobs out = released([&] { return token_logprobs(logits, {rows, tokens, temperatures, top}, threads, level); });
        return std::tuple(own(std::move(out.logprobs)), own(std::move(out.top_tokens), rows.size(), top),
                          own(std::move(out.top_logprobs), rows.size(), top));
    }, "logits"_a, nb::kw_only(), "rows"_a, "tokens"_a, "temperatures"_a, "top"_a = 0, "threads"_a, "level"_a = "",
       "(logprobs, top_tokens, top_logprobs) of each token; see csrc/sampling/logprobs.hpp.");
}

void bind_residual(nb::module_& m) {
    m.def("unnormalised_softmax", &unnormalised_softmax, "scores"_a, nb::kw_only(), "rows"_a, "temperatures"_a, "residual"_a, "walks"_a,
          "threads"_a, "level"_a = "", Released(), "Writes into the residual. (totals, statuses) of each walk; see csrc/sampling/residual.hpp.");
    m.def("sums", &sums, "probs"_a, nb::kw_only(), "rows"_a, "threads"_a, "level"_a = "", Released(),
          "(sums, least) of each row; a NaN makes the sum NaN.");
    m.def("subtract", [](const ResidualRows& residual, std::span<const int64_t> walks, std::span<const double> totals, const FloatRows& probs,
                         std::span<const int64_t> rows, std::span<const double> sums, uint32_t threads, const Kernels& level) {
        return own(released([&] { return subtract(residual, walks, totals, probs, rows, sums, threads, level); }));
    }, "residual"_a, nb::kw_only(), "walks"_a, "totals"_a, "probs"_a, "rows"_a, "sums"_a, "threads"_a, "level"_a = "",
       "Writes into the residual. The new totals; see csrc/sampling/residual.hpp.");
    m.def("draw", [](const ResidualRows& residual, std::span<const double> coins, uint32_t threads, const Kernels& level) {
        return own(released([&] { return draw(residual, coins, threads, level); }));
    }, "residual"_a, "coins"_a, nb::kw_only(), "threads"_a, "level"_a = "", "A token of each row of the residual.");
}

}  // namespace

void bind_sampling(nb::module_& m) {
    bind_choices(m);
    bind_logprobs(m);
    bind_residual(m);
}

}  // namespace foresay
