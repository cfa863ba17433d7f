// The text drafter for Python, and the rows of an engine's batch.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.hpp"
#include "errors.hpp"
#include "suffix/rows.hpp"
#include "suffix/text.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

using States = nb::typed<nb::list, Request>;

/// The requests of a list of states, which are kept alive whatever happens to the list meanwhile.
struct Requests {
    explicit Requests(const States& states) : held(nb::steal<nb::tuple>(PyList_AsTuple(states.ptr()))) {
        const nb::handle type = nb::type<Request>();
        requests.reserve(held.size());
        for (const nb::handle state : held) {
            if (!state.type().is(type) || !nb::inst_ready(state))
                throw StateError("state " + std::to_string(requests.size()) + " is no state; expected one that begin() returned");
            requests.push_back(nb::inst_ptr<Request>(state));
        }
    }
    nb::tuple held;
    std::vector<Request*> requests;
};

using Texts = nb::ndarray<const int32_t, nb::ndim<2>, nb::device::cpu>;
using Read = std::tuple<Array<int32_t>, Array<int32_t>, Array<int32_t>, Array<int32_t>, Array<int64_t>, Array<int64_t>>;
using Lists = nb::typed<nb::list, nb::typed<nb::list, nb::int_>>;
using Drafted = std::tuple<Array<int32_t>, Array<int32_t>, Array<int32_t>, Array<float>>;

std::vector<int32_t> budgets_of(const nb::object& budgets) {
    Tokens array;
    if (nb::try_cast(budgets, array, false)) return {array.data(), array.data() + array.size()};
    std::vector<int32_t> out;
    for (const nb::handle budget : nb::iter(budgets)) {
        int32_t value = 0;
        if (nb::isinstance<nb::bool_>(budget) || !nb::try_cast(budget, value))
            throw InputError("budgets[" + std::to_string(out.size()) + "] is " + nb::repr(budget).c_str() +
                             "; expected a whole number from 0 to 4096");
        out.push_back(value);
    }
    return out;
}

/// The rows of an engine's batch; `sampled` has a list of new tokens for each.
Read read(const Lists& sampled, const Tokens& lengths, const Texts& texts) {
    std::vector<uint32_t> counts;
    counts.reserve(sampled.size());
    const nb::tuple held(sampled);  // a length may be Python, which may change the list
    for (const nb::handle tokens : held) counts.push_back(static_cast<uint32_t>(nb::len(tokens)));
    if (texts.shape(1) > 0 && texts.stride(1) != 1) throw InputError("the tokens of a row are not next to each other");
    Rows rows = read_rows(counts, view(lengths),
                          {texts.data(), texts.shape(0), texts.shape(1), static_cast<size_t>(texts.stride(0))});
    return Read(own(std::move(rows.numbers)), own(std::move(rows.lengths)), own(std::move(rows.tokens)),
                own(std::move(rows.offsets)), own(std::move(rows.before)), own(std::move(rows.after)));
}

/// values[offsets[i] .. offsets[i + 1]) as a list, for each i.
Lists lists(const Tokens& values, const Tokens& offsets) {
    const std::span<const int32_t> bounds = view(offsets);
    if (bounds.empty()) throw InputError("there are no offsets; they run from 0 to " + std::to_string(values.size()));
    for (size_t i = 0; i < bounds.size(); ++i)
        if (bounds[i] < (i == 0 ? 0 : bounds[i - 1]) || static_cast<size_t>(bounds[i]) > values.size())
            throw InputError("offsets[" + std::to_string(i) + "] is " + std::to_string(bounds[i]) + "; they rise from 0 to " +
                             std::to_string(values.size()));
    // By hand, as there may be thousands: a new list owns what is put into it, and None stands for what is not there yet.
    const auto made = [](PyObject* object) { return object ? object : throw nb::python_error(); };
    Lists out = nb::steal<Lists>(made(PyList_New(static_cast<Py_ssize_t>(bounds.size()) - 1)));
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
        PyObject* const inner = made(PyList_New(bounds[i + 1] - bounds[i]));
        PyList_SetItem(out.ptr(), static_cast<Py_ssize_t>(i), inner);
        for (int32_t v = bounds[i]; v < bounds[i + 1]; ++v)
            PyList_SetItem(inner, v - bounds[i], made(PyLong_FromLong(values.data()[v])));
    }
    return out;
}

Drafted packed(PackedTrees&& trees) {
    return Drafted(own(std::move(trees.tokens)), own(std::move(trees.parents)), own(std::move(trees.offsets)),
                   own(std::move(trees.scores)));
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
            if (threads == 0 || threads > 256) throw InputError("threads is " + std::to_string(threads) + "; expected 1 to 256");
            TextOptions options{own, history, history_bytes, tenant_bytes, group_bytes, own_bytes, max_tenants, max_tokens,
                                threads, {}, sam};
            options.growth.chain = chain;
            new (self) TextDrafter(options, std::move(corpora));
        }, "corpora"_a, nb::kw_only(), "own"_a, "history"_a, "history_bytes"_a, "tenant_bytes"_a, "group_bytes"_a,
           "own_bytes"_a, "max_tenants"_a, "max_tokens"_a, "threads"_a, "chain"_a, "sam"_a.none())
        .def("begin", [](TextDrafter& self, const Tokens& prompt, const std::optional<std::string>& group,
                         const std::optional<std::string>& tenant) {
            const std::vector<int32_t> tokens = copy(prompt);
            const nb::gil_scoped_release released;
            return self.begin(tokens, group, tenant);
        }, "prompt"_a.noconvert(), "group"_a.none(), "tenant"_a.none(), nb::keep_alive<0, 1>())
        .def("propose", [](TextDrafter& self, const States& states, const nb::object& budgets, float least) -> Drafted {
            const std::vector<int32_t> most = budgets_of(budgets);
            const Requests batch(states);
            PackedTrees out;
            {
                const nb::gil_scoped_release released;
                self.propose(batch.requests, most, least, out);
            }
            return packed(std::move(out));
        }, "states"_a, "budgets"_a, "least"_a = 0.f, "(tokens, parents, offsets, scores)")
        .def("observe", [](TextDrafter& self, const States& states, const Tokens& tokens, const Tokens& offsets) {
            const Requests batch(states);
            const std::vector<int32_t> values = copy(tokens), bounds = copy(offsets);
            const nb::gil_scoped_release released;
            self.observe(batch.requests, values, bounds);
        }, "states"_a, "tokens"_a.noconvert(), "offsets"_a.noconvert())
        .def("step", [](TextDrafter& self, const States& states, const Tokens& tokens, const Tokens& offsets,
                        const nb::object& budgets, float least) -> Drafted {
            const std::vector<int32_t> most = budgets_of(budgets);
            const Requests batch(states);
            const std::vector<int32_t> values = copy(tokens), bounds = copy(offsets);
            PackedTrees out;
            {
                const nb::gil_scoped_release released;
                self.step(batch.requests, values, bounds, most, least, &out);
            }
            try {
                return packed(std::move(out));
            } catch (...) {  // the tokens are committed, and the caller cannot know
                self.fail("out of memory");
                throw;
            }
        }, "states"_a, "tokens"_a.noconvert(), "offsets"_a.noconvert(), "budgets"_a, "least"_a = 0.f,
           "observe() and propose() in one.")
        .def("finish", &TextDrafter::finish, "state"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("text", [](const TextDrafter& self, const Request& state) { return own(self.text(state)); }, "state"_a)
        .def("kinds", &TextDrafter::kinds, "state"_a, "Of source that had seen each node of the state's last draft: a bit set.")
        .def("add_to_group", [](TextDrafter& self, const std::string& group, const std::optional<std::string>& tenant,
                                const Tokens& prompt, const Tokens& answer) {
            const std::vector<int32_t> before = copy(prompt), after = copy(answer);
            const nb::gil_scoped_release released;
            self.add_to_group(group, tenant, before, after);
        }, "group"_a, "tenant"_a.none(), "prompt"_a.noconvert(), "answer"_a.noconvert())
        .def("new_version", &TextDrafter::new_version, "tenant"_a.none(), "keep"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("drop_group", &TextDrafter::drop_group, "group"_a, "tenant"_a.none(), nb::call_guard<nb::gil_scoped_release>())
        .def("drop_tenant", &TextDrafter::drop_tenant, "tenant"_a, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("bytes", &TextDrafter::bytes)
        .def("bytes_of", &TextDrafter::bytes_of, "tenant"_a.none(), nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("tokens", &TextDrafter::tokens)
        .def_prop_ro("groups", &TextDrafter::groups)
        .def("check_integrity", &TextDrafter::check_integrity, nb::call_guard<nb::gil_scoped_release>());
    m.def("read_rows", &read, "sampled"_a, "lengths"_a.noconvert(), "texts"_a.noconvert(),
          "(numbers, lengths, tokens, offsets, keys before, keys after) of the rows that got tokens.");
    m.def("lists", &lists, "values"_a.noconvert(), "offsets"_a.noconvert(),
          "[values[offsets[i] : offsets[i + 1]].tolist()] for each i.");
}

}  // namespace foresay
