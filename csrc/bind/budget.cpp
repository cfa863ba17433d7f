// Draft trees for Python: their checks, what their nodes are worth and in which order they are taken.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include "bind/bind.hpp"
#include "budget/ranking.hpp"
#include "drafts.hpp"
#include "errors.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

/// Nothing here releases the GIL, so that no array can change meanwhile.
Drafts drafts_of(const Tokens& tokens, const Tokens& parents, const Tokens& offsets, const std::optional<Given<float>>& scores) {
    if (scores && scores->size() != tokens.size())
        throw InputError("there are " + std::to_string(tokens.size()) + " tokens but " + std::to_string(scores->size()) + " scores; expected one each");
    return {view(tokens), view(parents), view(offsets), scores ? scores->data() : nullptr};
}

}  // namespace

void bind_budget(nb::module_& m) {
    m.def("check_drafts", [](const Tokens& tokens, const Tokens& parents, const Tokens& offsets, const std::optional<Given<float>>& scores) {
        check_drafts(drafts_of(tokens, parents, offsets, scores));
    }, "tokens"_a.noconvert(), "parents"_a.noconvert(), "offsets"_a.noconvert(), "scores"_a.noconvert().none(), "Refuses what are no draft trees.");
    m.def("calibrated", [](const Tokens& tokens, const Tokens& parents, const Tokens& offsets, const Given<float>& scores, const Given<double>& edges,
                           const Given<double>& gaps) { return own(calibrated(drafts_of(tokens, parents, offsets, scores), view(edges), view(gaps))); },
          "tokens"_a.noconvert(), "parents"_a.noconvert(), "offsets"_a.noconvert(), "scores"_a.noconvert(), "edges"_a.noconvert(), "gaps"_a.noconvert(),
          "The chance of each node; see csrc/budget/ranking.hpp.");
    m.def("ranked", [](const Given<double>& chances, const Tokens& offsets, const Given<double>& worth, const std::optional<Given<int64_t>>& nodes) {
        Ranked out = ranked(view(chances), view(offsets), view(worth), nodes ? std::optional(view(*nodes)) : std::nullopt);
        return std::tuple(own(std::move(out.order)), own(std::move(out.gains)));
    }, "chances"_a.noconvert(), "offsets"_a.noconvert(), "worth"_a.noconvert(), "nodes"_a.noconvert().none(), "(order, gains); see csrc/budget/ranking.hpp.");
    m.def("expected", [](const Given<int64_t>& order, const Given<double>& gains, const Tokens& offsets, const Given<int64_t>& contexts, const Given<double>& knots,
                         const Given<double>& shape, const std::tuple<double, double, double>& extras, double level, int64_t other_rows, int64_t other_reads,
                         double tokens, double seconds) {
        const auto [per_read, per_key, per_request] = extras;
        const StepCost cost{view(knots), view(shape), per_read, per_key, per_request, level};
        Expected out = expected(view(order), view(gains), view(offsets), view(contexts), cost, other_rows, other_reads, tokens, seconds);
        return std::tuple(own(std::move(out.tokens)), own(std::move(out.seconds)));
    }, "order"_a.noconvert(), "gains"_a.noconvert(), "offsets"_a.noconvert(), "contexts"_a.noconvert(), nb::kw_only(), "knots"_a.noconvert(),
       "shape"_a.noconvert(), "extras"_a, "level"_a, "other_rows"_a, "other_reads"_a, "tokens"_a, "seconds"_a,
       "(tokens, seconds) by nodes verified; see csrc/budget/ranking.hpp.");
}

}  // namespace foresay
