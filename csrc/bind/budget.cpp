// Draft trees for Python: their checks, what their nodes are worth and in which order they are taken.
#include <optional>

#include "bind/bind.hpp"
#include "budget/ranking.hpp"
#include "budget/selected.hpp"
#include "budget/worth.hpp"
#include "drafts.hpp"
#include "step/rows.hpp"

using namespace nanobind::literals;

template <>
struct nanobind::detail::type_caster<foresay::StepRows>
    : nanobind::detail::arrays_caster<foresay::StepRows, &foresay::StepRows::tokens, &foresay::StepRows::parents, &foresay::StepRows::offsets,
                                      &foresay::StepRows::needed, &foresay::StepRows::prefill> {};

namespace foresay {
namespace {

using Doubles = std::span<const double>;
using Flags = Given<bool>;
using Tables = nb::typed<nb::list, ClassTable>;

std::span<const bool> flags(const Flags& given) { return {given.data(), given.size()}; }

/// They live as long as the list, which is the caller's.
std::vector<ClassTable*> tables_of(const Tables& given) {
    std::vector<ClassTable*> tables;
    for (const nb::handle table : given) {
        // One of a class of Python's that left out __init__ is not there yet.
        if (!nb::isinstance<ClassTable>(table) || !nb::inst_ready(table))
            throw InputError("table ", tables.size(), " is ", nb::repr(table).c_str(), "; expected a ClassTable");
        tables.push_back(nb::inst_ptr<ClassTable>(table));
    }
    return tables;
}

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
    nb::class_<ClassTable>(m, "ClassTable", "What the verified nodes of one tenant taught; see csrc/budget/worth.hpp.")
        .def("__init__", [](ClassTable* self, Doubles edges, double prior, double memory) {
            new (self) ClassTable({edges.begin(), edges.end()}, prior, memory);
        }, "edges"_a, "prior"_a, "memory"_a);
    nb::class_<RequestFactors>(m, "RequestFactors", "What a request's last drafts were worth; see csrc/budget/worth.hpp.")
        .def(nb::init<double, double, size_t>(), "prior"_a, "memory"_a, "most"_a)
        .def("of", [](const RequestFactors& self, std::span<const int64_t> ids) { return own(self.of(ids)); }, "ids"_a);
    m.def("calibrated", [](Tokens tokens, Tokens parents, Tokens offsets, std::span<const float> scores, const Tables& tables, Tokens rows) {
        return own(calibrated(drafts_of(tokens, parents, offsets, scores), tables_of(tables), rows));
    }, "tokens"_a, "parents"_a, "offsets"_a, "scores"_a, "tables"_a, "rows"_a, "The chance of each node; see csrc/budget/worth.hpp.");
    m.def("learn", [](Tokens tokens, Tokens parents, Tokens offsets, std::span<const float> scores, Flags accepted, const Tables& tables, Tokens rows,
                      RequestFactors* factors, std::span<const int64_t> ids) {
        learn(drafts_of(tokens, parents, offsets, scores), flags(accepted), tables_of(tables), rows, factors, ids);
    }, "tokens"_a, "parents"_a, "offsets"_a, "scores"_a, "accepted"_a.noconvert(), "tables"_a, "rows"_a, "factors"_a.none(), "ids"_a.none(),
       "Learns from verified nodes; see csrc/budget/worth.hpp.");
    m.def("follow_places", [](Matrix<double> means, Tokens nodes, Flags accepted, size_t asked, size_t requests, double rate) {
        follow_places(means, nodes, flags(accepted), asked, requests, rate);
    }, "means"_a, "nodes"_a, "accepted"_a.noconvert(), "asked"_a, "requests"_a, "rate"_a, "Writes into `means`; see csrc/budget/worth.hpp.");
    m.def("packed", [](Tokens tokens, Tokens parents, Tokens offsets, std::span<const float> scores, Flags keep) {
        Packed out = packed(drafts_of(tokens, parents, offsets, scores), flags(keep));
        return owned(std::move(out.drafts.tokens), std::move(out.drafts.parents), std::move(out.drafts.offsets), std::move(out.drafts.scores),
                     std::move(out.nodes));
    }, "tokens"_a, "parents"_a, "offsets"_a, "scores"_a.none(), "keep"_a.noconvert(), "(tokens, parents, offsets, scores, nodes) of the kept nodes.");
    m.def("numbered", [](Tokens path, Tokens path_offsets, Tokens offsets, Tokens nodes) { return own(numbered(path, path_offsets, offsets, nodes)); },
          "path"_a, "path_offsets"_a, "offsets"_a, "nodes"_a, "Paths through packed drafts as paths through all nodes.");
    m.def("accepted", [](Tokens path, Tokens path_offsets, Tokens offsets, Flags keep) {
        return own(accepted(path, path_offsets, offsets, flags(keep)));
    }, "path"_a, "path_offsets"_a, "offsets"_a, "keep"_a.noconvert(), "Whether each kept node is on its draft's path.");
    m.def("step_rows", [](Tokens tokens, Tokens offsets, Tokens draft_tokens, Tokens draft_parents, Tokens draft_offsets, Flags needs_logits,
                          Tokens prefill, Tokens prefill_logits) {
        return step_rows({tokens, offsets, {draft_tokens, draft_parents, draft_offsets, nullptr}, flags(needs_logits), prefill,
                          prefill_logits});
    }, "tokens"_a, "offsets"_a, "draft_tokens"_a, "draft_parents"_a, "draft_offsets"_a, "needs_logits"_a.noconvert(), "prefill"_a,
       "prefill_logits"_a, "(tokens, parents, offsets, needed, prefill); see csrc/step/rows.hpp.");
    m.def("kept_rows", [](Tokens tokens, Tokens path, Tokens path_offsets, Tokens parents, Tokens offsets) {
        return own(kept_rows(tokens, path, path_offsets, parents, offsets));
    }, "tokens"_a, "path"_a, "path_offsets"_a, "parents"_a, "offsets"_a, "The rows of each text that are stored; see csrc/step/rows.hpp.");
    m.def("selection", [](Tokens parents, Tokens offsets, Doubles chances, Doubles worth, std::span<const int64_t> left, std::span<const int64_t> contexts,
                       Doubles knots, Doubles shape, const std::tuple<double, double, double>& extras, double level, int64_t other_rows,
                       int64_t other_reads, double tokens, double seconds, bool overlaps, double bearable) {
        const auto [per_read, per_key, per_request] = extras;
        Selection out = selection({parents, offsets, chances, worth, left, contexts}, {knots, shape, per_read, per_key, per_request, level},
                            {other_rows, other_reads, tokens, seconds, overlaps}, bearable);
        return std::tuple(own(std::move(out.order)), own(std::move(out.tokens)), own(std::move(out.seconds)), out.best, out.most);
    }, "parents"_a, "offsets"_a, "chances"_a, "worth"_a, "left"_a, "contexts"_a, nb::kw_only(), "knots"_a, "shape"_a, "extras"_a, "level"_a,
       "other_rows"_a, "other_reads"_a, "tokens"_a, "seconds"_a, "overlaps"_a, "bearable"_a,
       "(order, tokens, seconds, best, most); see csrc/budget/ranking.hpp.");
}

}  // namespace foresay
