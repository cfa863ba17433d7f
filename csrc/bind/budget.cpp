// Draft trees for Python: their checks, what their nodes are worth and in which order they are taken.
#include <optional>

#include "bind/bind.hpp"
#include "budget/ranking.hpp"
#include "drafts.hpp"
#include "step/rows.hpp"

using namespace nanobind::literals;

template <>
struct nanobind::detail::type_caster<foresay::Ranked>
    : nanobind::detail::arrays_caster<foresay::Ranked, &foresay::Ranked::order, &foresay::Ranked::gains> {};
template <>
struct nanobind::detail::type_caster<foresay::Expected>
    : nanobind::detail::arrays_caster<foresay::Expected, &foresay::Expected::tokens, &foresay::Expected::seconds> {};
template <>
struct nanobind::detail::type_caster<foresay::Lessons>
    : nanobind::detail::arrays_caster<foresay::Lessons, &foresay::Lessons::counts, &foresay::Lessons::beyond, &foresay::Lessons::roots,
                                      &foresay::Lessons::expected, &foresay::Lessons::accepted> {};
template <>
struct nanobind::detail::type_caster<foresay::StepRows>
    : nanobind::detail::arrays_caster<foresay::StepRows, &foresay::StepRows::tokens, &foresay::StepRows::parents, &foresay::StepRows::offsets,
                                      &foresay::StepRows::needed, &foresay::StepRows::prefill> {};

namespace foresay {
namespace {

using Doubles = std::span<const double>;
using Flags = Given<bool>;

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
    m.def("lessons", [](Tokens tokens, Tokens parents, Tokens offsets, std::span<const float> scores, Doubles edges, Doubles gaps, Flags accepted,
                        Tokens tables) {
        return lessons(drafts_of(tokens, parents, offsets, scores), edges, gaps, {accepted.data(), accepted.size()}, tables);
    }, "tokens"_a, "parents"_a, "offsets"_a, "scores"_a, "edges"_a, "gaps"_a, "accepted"_a.noconvert(), "tables"_a,
       "(counts, beyond, roots, expected, accepted); see csrc/budget/ranking.hpp.");
    m.def("step_rows", [](Tokens tokens, Tokens offsets, Tokens draft_tokens, Tokens draft_parents, Tokens draft_offsets, Flags needs_logits,
                          Tokens prefill, Tokens prefill_logits) {
        return step_rows({tokens, offsets, {draft_tokens, draft_parents, draft_offsets, nullptr}, {needs_logits.data(), needs_logits.size()}, prefill,
                          prefill_logits});
    }, "tokens"_a, "offsets"_a, "draft_tokens"_a, "draft_parents"_a, "draft_offsets"_a, "needs_logits"_a.noconvert(), "prefill"_a,
       "prefill_logits"_a, "(tokens, parents, offsets, needed, prefill); see csrc/step/rows.hpp.");
    m.def("kept_rows", [](Tokens tokens, Tokens path, Tokens path_offsets, Tokens parents, Tokens offsets) {
        return own(kept_rows(tokens, path, path_offsets, parents, offsets));
    }, "tokens"_a, "path"_a, "path_offsets"_a, "parents"_a, "offsets"_a, "The rows of each text that are stored; see csrc/step/rows.hpp.");
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
