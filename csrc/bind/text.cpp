// The text drafter for Python, and the rows of an engine's batch.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.hpp"
#include "checks.hpp"
#include "suffix/rows.hpp"
#include "suffix/text.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

using Texts = nb::ndarray<const int32_t, nb::ndim<2>, nb::device::cpu>;
using Lists = nb::typed<nb::list, nb::typed<nb::list, nb::int_>>;
using Requests = std::span<Request* const>;

std::vector<int32_t> budgets_of(const nb::object& budgets) {
    nb::detail::make_caster<Tokens> array;
    if (array.from_python(budgets, 0, nullptr)) return {array.value.begin(), array.value.end()};
    std::vector<int32_t> out;
    for (const nb::handle budget : nb::iter(budgets)) {
        int32_t value = 0;
        if (nb::isinstance<nb::bool_>(budget) || !nb::try_cast(budget, value))
            throw InputError("budgets[", out.size(), "] is ", nb::repr(budget).c_str(), "; expected a whole number from 0 to 4096");
        out.push_back(value);
    }
    return out;
}

/// The rows of an engine's batch; `sampled` has a list of new tokens for each.
auto read(const Lists& sampled, Tokens lengths, const Texts& texts) {
    std::vector<uint32_t> counts;
    counts.reserve(sampled.size());
    const nb::tuple held(sampled);  // a length may be Python, which may change the list
    for (const nb::handle tokens : held) counts.push_back(static_cast<uint32_t>(nb::len(tokens)));
    if (texts.shape(1) > 0 && texts.stride(1) != 1) throw InputError("the tokens of a row are not next to each other");
    Rows rows = read_rows(counts, lengths, {texts.data(), texts.shape(0), texts.shape(1), static_cast<size_t>(texts.stride(0))});
    return owned(std::move(rows.numbers), std::move(rows.lengths), std::move(rows.tokens), std::move(rows.offsets), std::move(rows.before),
                 std::move(rows.after));
}

/// values[offsets[i] .. offsets[i + 1]) as a list, for each i.
Lists lists(Tokens values, Tokens bounds) {
    if (bounds.empty()) throw InputError("there are no offsets; they run from 0 to ", values.size());
    for (size_t i = 0; i < bounds.size(); ++i)
        if (bounds[i] < (i == 0 ? 0 : bounds[i - 1]) || static_cast<size_t>(bounds[i]) > values.size())
            throw InputError("offsets[", i, "] is ", bounds[i], "; they rise from 0 to ", values.size());
    // By hand, as there may be thousands: a new list owns what is put into it, and None stands for what is not there yet.
    const auto made = [](PyObject* object) { return object ? object : throw nb::python_error(); };
    Lists out = nb::steal<Lists>(made(PyList_New(static_cast<Py_ssize_t>(bounds.size()) - 1)));
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
        PyObject* const inner = made(PyList_New(bounds[i + 1] - bounds[i]));
        PyList_SetItem(out.ptr(), static_cast<Py_ssize_t>(i), inner);
        for (int32_t v = bounds[i]; v < bounds[i + 1]; ++v)
            PyList_SetItem(inner, v - bounds[i], made(PyLong_FromLong(values[static_cast<size_t>(v)])));
    }
    return out;
}

}  // namespace

void bind_drafter(nb::module_& m) {
    nb::class_<Request>(m, "Request", "One request's state in a TextDrafter.")
        .def_prop_ro("prompt_length", &Request::prompt_length)
        .def_prop_ro("finished", &Request::finished);

    nb::class_<SamRule>(m, "SamRule")
        .def("__init__", [](SamRule* self, uint32_t l_threshold, uint32_t l_bias, bool latest, uint32_t topk_succ,
                            double length_factor, uint32_t max_predicts, bool to_anc) {
            new (self) SamRule{l_threshold, l_bias, latest, topk_succ, length_factor, max_predicts, to_anc};
        }, nb::kw_only(), "l_threshold"_a, "l_bias"_a, "latest"_a, "topk_succ"_a, "length_factor"_a, "max_predicts"_a,
           "to_anc"_a);

    nb::class_<TextDrafter>(m, "TextDrafter", "Drafts from text that exists. Each call locks it, so threads may share it.")
        .def("__init__", [](TextDrafter* self, std::vector<std::shared_ptr<const FrozenIndex>> corpora, bool own, bool history,
                            size_t history_bytes, size_t tenant_bytes, size_t group_bytes, size_t own_bytes,
                            size_t max_tenants, uint32_t max_tokens, uint32_t threads, bool chain,
                            const std::optional<SamRule>& sam) {
            check_threads(threads);
            TextOptions options{own, history, history_bytes, tenant_bytes, group_bytes, own_bytes, max_tenants, max_tokens,
                                threads, {}, sam};
            options.growth.chain = chain;
            new (self) TextDrafter(options, std::move(corpora));
        }, "corpora"_a, nb::kw_only(), "own"_a, "history"_a, "history_bytes"_a, "tenant_bytes"_a, "group_bytes"_a,
           "own_bytes"_a, "max_tenants"_a, "max_tokens"_a, "threads"_a, "chain"_a, "sam"_a.none())
        .def("begin", &TextDrafter::begin, "prompt"_a, "group"_a.none(), "tenant"_a.none(), nb::keep_alive<0, 1>(), Released())
        .def("propose", [](TextDrafter& self, Requests states, const nb::object& budgets, float least) {
            const std::vector<int32_t> most = budgets_of(budgets);
            return released([&] { return self.propose(states, most, least); });
        }, "states"_a, "budgets"_a, "least"_a = 0.f, "(tokens, parents, offsets, scores)")
        .def("observe", &TextDrafter::observe, "states"_a, "tokens"_a, "offsets"_a, Released())
        .def("step", [](TextDrafter& self, Requests states, Tokens tokens, Tokens offsets, const nb::object& budgets, float least) {
            const std::vector<int32_t> most = budgets_of(budgets);
            DraftTrees out = released([&] { return self.step(states, tokens, offsets, most, least); });
            try {
                return owned(std::move(out.tokens), std::move(out.parents), std::move(out.offsets), std::move(out.scores));
            } catch (...) {  // the tokens are committed, and the caller cannot know
                self.fail("out of memory");
                throw;
            }
        }, "states"_a, "tokens"_a, "offsets"_a, "budgets"_a, "least"_a = 0.f, "observe() and propose() in one.")
        .def("finish", &TextDrafter::finish, "state"_a, Released())
        .def("text", [](const TextDrafter& self, const Request& state) { return own(self.text(state)); }, "state"_a)
        .def("kinds", &TextDrafter::kinds, "state"_a, "Of source that had seen each node of the state's last draft: a bit set.")
        .def("add_to_group", &TextDrafter::add_to_group, "group"_a, "tenant"_a.none(), "prompt"_a, "answer"_a, Released())
        .def("new_version", &TextDrafter::new_version, "tenant"_a.none(), "keep"_a, Released())
        .def("drop_group", &TextDrafter::drop_group, "group"_a, "tenant"_a.none(), Released())
        .def("drop_tenant", &TextDrafter::drop_tenant, "tenant"_a, Released())
        .def_prop_ro("bytes", &TextDrafter::bytes)
        .def("bytes_of", &TextDrafter::bytes_of, "tenant"_a.none(), Released())
        .def_prop_ro("tokens", &TextDrafter::tokens)
        .def_prop_ro("groups", &TextDrafter::groups)
        .def("check_integrity", &TextDrafter::check_integrity, Released());
    m.def("read_rows", &read, "sampled"_a, "lengths"_a, "texts"_a.noconvert(),
          "(numbers, lengths, tokens, offsets, keys before, keys after) of the rows that got tokens.");
    m.def("lists", &lists, "values"_a, "offsets"_a,
          "[values[offsets[i] : offsets[i + 1]].tolist()] for each i.");
}

}  // namespace foresay
