// Draft trees for Python: their checks, what their nodes are worth and in which order they are taken.
#include <optional>

#include "bind/bind.hpp"
#include "budget/ranking.hpp"
#include "drafts.hpp"

using namespace nanobind::literals;

template <>
struct nanobind::detail::type_caster<foresay::Ranked>
    : nanobind::detail::arrays_caster<foresay::Ranked, &foresay::Ranked::order, &foresay::Ranked::gains> {};
template <>
struct nanobind::detail::type_caster<foresay::Expected>
    : nanobind::detail::arrays_caster<foresay::Expected, &foresay::Expected::tokens, &foresay::Expected::seconds> {};

namespace foresay {
namespace {

using Doubles = std::span<const double>;

Drafts drafts_of(Tokens tokens, Tokens parents, Tokens offsets, std::span<const float> scores) {
    if (scores.data() && scores.size() != tokens.size())
        throw InputError("there are ", tokens.size(), " tokens but ", scores.size(), " scores; expected one each");
    return {tokens, parents, offsets, scores.data()};
}

}  // namespace

void bind_budget(nb::module_& m) {
    m.def("check_drafts", [](Tokens tokens, Tokens parents, Tokens offsets, std::span<const float> scores) {
        check_drafts(drafts_of(tokens, parents, offsets, scores));
    }, "tokens"_a, "parents"_a, "offsets"_a, "scores"_a.none(), "Refuses what are no draft trees.");
    m.def("calibrated", [](Tokens tokens, Tokens parents, Tokens offsets, std::span<const float> scores, Doubles edges, Doubles gaps) {
        return own(calibrated(drafts_of(tokens, parents, offsets, scores), edges, gaps));
    }, "tokens"_a, "parents"_a, "offsets"_a, "scores"_a, "edges"_a, "gaps"_a, "The chance of each node; see csrc/budget/ranking.hpp.");
    m.def("ranked", [](Doubles chances, Tokens offsets, Doubles worth, std::span<const int64_t> nodes) {
        return ranked(chances, offsets, worth, nodes.data() ? std::optional(nodes) : std::nullopt);
    }, "chances"_a, "offsets"_a, "worth"_a, "nodes"_a.none(), "(order, gains); see csrc/budget/ranking.hpp.");
    m.def("expected", [](std::span<const int64_t> order, Doubles gains, Tokens offsets, std::span<const int64_t> contexts, Doubles knots, Doubles shape,
                         const std::tuple<double, double, double>& extras, double level, int64_t other_rows, int64_t other_reads, double tokens,
                         double seconds) {
        const auto [per_read, per_key, per_request] = extras;
        return expected(order, gains, offsets, contexts, {knots, shape, per_read, per_key, per_request, level}, other_rows, other_reads, tokens, seconds);
    }, "order"_a, "gains"_a, "offsets"_a, "contexts"_a, nb::kw_only(), "knots"_a, "shape"_a, "extras"_a, "level"_a, "other_rows"_a, "other_reads"_a,
       "tokens"_a, "seconds"_a, "(tokens, seconds) by nodes verified; see csrc/budget/ranking.hpp.");
}

}  // namespace foresay
