// Recycled laws and merged trees for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.hpp"
#include "errors.hpp"
#include "merge/merge.hpp"
#include "recycle/recycle.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

template <class T>
using Rows = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Drafted = std::tuple<Array<int32_t>, Array<int32_t>, Array<int32_t>, Array<float>>;
using Laws = std::tuple<Array<uint64_t>, Array<int32_t>, Array<uint8_t>>;

/// The states of a list, which are kept alive whatever happens to the list meanwhile.
template <class State>
struct StateList {
    explicit StateList(const nb::typed<nb::list, State>& states) : held(nb::steal<nb::tuple>(PyList_AsTuple(states.ptr()))) {
        const nb::handle type = nb::type<State>();
        for (const nb::handle state : held) {
            if (!state.type().is(type) || !nb::inst_ready(state))
                throw StateError("state " + std::to_string(items.size()) + " is no state; expected one that begin() returned");
            items.push_back(nb::inst_ptr<State>(state));
        }
    }
    nb::tuple held;
    std::vector<State*> items;
};

void bind_recycle_drafter(nb::module_& m) {
    nb::class_<RecycleRequest>(m, "RecycleRequest", "One request's state in a RecycleDrafter.");
    nb::class_<RecycleDrafter>(m, "RecycleDrafter", "Drafts from what the target found likely before. Each call locks it.")
        .def("__init__", [](RecycleDrafter* self, uint32_t k, uint32_t orders, size_t bytes, size_t max_tenants, bool fixed,
                            bool chain) {
            new (self) RecycleDrafter({k, orders, bytes, max_tenants, fixed, chain});
        }, nb::kw_only(), "k"_a, "orders"_a, "bytes"_a, "max_tenants"_a, "fixed"_a, "chain"_a)
        .def("begin", [](RecycleDrafter& self, const Tokens& prompt, const std::optional<std::string>& tenant, uint64_t seed, float temperature) {
            const std::vector<int32_t> tokens = copy(prompt);
            const nb::gil_scoped_release released;
            return self.begin(tokens, tenant, {seed, temperature});
        }, "prompt"_a.noconvert(), "tenant"_a.none(), "seed"_a, "temperature"_a, nb::keep_alive<0, 1>())
        .def("propose", [](RecycleDrafter& self, const nb::typed<nb::list, RecycleRequest>& states, const Tokens& budgets, float least) -> Drafted {
            const std::vector<int32_t> most = copy(budgets);
            const StateList<RecycleRequest> batch(states);
            RecycledTrees out;
            {
                const nb::gil_scoped_release released;
                self.propose(batch.items, most, least, out);
            }
            return Drafted(own(std::move(out.tokens)), own(std::move(out.parents)), own(std::move(out.offsets)), own(std::move(out.scores)));
        }, "states"_a, "budgets"_a.noconvert(), "least"_a = 0.f, "(tokens, parents, offsets, scores)")
        .def("adopt", [](RecycleDrafter& self, const nb::typed<nb::list, RecycleRequest>& states, const Tokens& tokens, const Tokens& parents,
                         const Tokens& offsets) {
            const StateList<RecycleRequest> batch(states);
            const std::vector<int32_t> values = copy(tokens), above = copy(parents), bounds = copy(offsets);
            const nb::gil_scoped_release released;
            self.adopt(batch.items, values, above, bounds);
        }, "states"_a, "tokens"_a.noconvert(), "parents"_a.noconvert(), "offsets"_a.noconvert())
        .def("observe", [](RecycleDrafter& self, const nb::typed<nb::list, RecycleRequest>& states, const Tokens& tokens, const Tokens& offsets,
                           const Rows<int32_t>& likeliest, const Rows<float>& logprobs, const Tokens& law_offsets) {
            const StateList<RecycleRequest> batch(states);
            const std::vector<int32_t> values = copy(tokens), bounds = copy(offsets), starts = copy(law_offsets);
            const std::vector<int32_t> likely(likeliest.data(), likeliest.data() + likeliest.size());
            const std::vector<float> logs(logprobs.data(), logprobs.data() + logprobs.size());
            const nb::gil_scoped_release released;
            self.observe(batch.items, values, bounds, likely, logs, starts);
        }, "states"_a, "tokens"_a.noconvert(), "offsets"_a.noconvert(), "likeliest"_a.noconvert(), "logprobs"_a.noconvert(),
           "law_offsets"_a.noconvert())
        .def("finish", &RecycleDrafter::finish, "state"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("text", [](const RecycleDrafter& self, const RecycleRequest& state) { return own(self.text(state)); }, "state"_a)
        .def("drafted", &RecycleDrafter::drafted, "state"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Nodes of its own last draft, until that is observed.")
        .def("laws", [](const RecycleDrafter& self, const std::optional<std::string>& tenant) -> Laws {
            LawArrays out = self.laws(tenant);
            return Laws(own(std::move(out.keys)), own(std::move(out.tokens)), own(std::move(out.levels)));
        }, "tenant"_a.none(), "(keys, tokens, levels) of a tenant's laws")
        .def("add_laws", [](RecycleDrafter& self, const std::optional<std::string>& tenant, const Given<uint64_t>& keys, const Tokens& tokens,
                            const Given<uint8_t>& levels) {
            const LawArrays arrays{copy(keys), copy(tokens), copy(levels)};
            const nb::gil_scoped_release released;
            self.add_laws(tenant, arrays);
        }, "tenant"_a.none(), "keys"_a.noconvert(), "tokens"_a.noconvert(), "levels"_a.noconvert())
        .def("forget", &RecycleDrafter::forget, "tenant"_a.none(), nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("bytes", &RecycleDrafter::bytes)
        .def("bytes_of", &RecycleDrafter::bytes_of, "tenant"_a.none(), nb::call_guard<nb::gil_scoped_release>());
}

using Batch = std::tuple<Tokens, Tokens, Tokens, std::optional<Given<float>>>;
using Merged = std::tuple<Array<int32_t>, Array<int32_t>, Array<int32_t>, Array<float>, std::vector<Array<int32_t>>>;

void bind_merge(nb::module_& m) {
    nb::class_<MergeMemory>(m, "MergeMemory", "What one request's last merge considered.");
    nb::class_<TreeMerge>(m, "TreeMerge", "Several drafters' trees in one. Each call locks it.")
        .def(nb::init<size_t, float>(), "drafters"_a, "prior"_a)
        .def("begin", &TreeMerge::begin, "tenant"_a.none(), nb::call_guard<nb::gil_scoped_release>())
        .def("forget", &TreeMerge::forget, "tenant"_a.none(), nb::call_guard<nb::gil_scoped_release>())
        .def("merge", [](TreeMerge& self, const std::vector<Batch>& batches, const Tokens& budgets, const Given<uint64_t>& seeds,
                         const Given<float>& temperatures, const Given<int64_t>& positions,
                         const nb::typed<nb::list, MergeMemory>& memories) -> Merged {
            const StateList<MergeMemory> states(memories);
            std::vector<std::vector<int32_t>> held;
            std::vector<std::vector<float>> scores;
            std::vector<Drafts> drafts;
            held.reserve(3 * batches.size()), scores.reserve(batches.size());
            for (const auto& [tokens, parents, offsets, given] : batches) {
                held.push_back(copy(tokens)), held.push_back(copy(parents)), held.push_back(copy(offsets));
                scores.push_back(given ? copy(*given) : std::vector<float>{});
                if (given && scores.back().size() != tokens.size()) throw InputError("a batch has scores for some of its nodes only");
                drafts.push_back({held[held.size() - 3], held[held.size() - 2], held.back(), given ? scores.back().data() : nullptr});
            }
            const std::vector<int32_t> most = copy(budgets);
            const std::vector<uint64_t> keys = copy(seeds);
            const std::vector<float> heats = copy(temperatures);
            const std::vector<int64_t> places = copy(positions);
            MergedTrees out;
            {
                const nb::gil_scoped_release released;
                self.merge(drafts, most, {keys, heats, places}, states.items, out);
            }
            std::vector<Array<int32_t>> homes;
            for (auto& home : out.homes) homes.push_back(own(std::move(home)));
            return Merged(own(std::move(out.tokens)), own(std::move(out.parents)), own(std::move(out.offsets)), own(std::move(out.scores)),
                          std::move(homes));
        }, "batches"_a, "budgets"_a.noconvert(), "seeds"_a.noconvert(), "temperatures"_a.noconvert(), "positions"_a.noconvert(), "memories"_a,
           "(tokens, parents, offsets, scores, [where each drafter's nodes went])")
        .def("learn", [](TreeMerge& self, const nb::typed<nb::list, MergeMemory>& memories, const Tokens& tokens, const Tokens& offsets) {
            const StateList<MergeMemory> states(memories);
            const std::vector<int32_t> values = copy(tokens), bounds = copy(offsets);
            const nb::gil_scoped_release released;
            self.learn(states.items, values, bounds);
        }, "memories"_a, "tokens"_a.noconvert(), "offsets"_a.noconvert());
}

}  // namespace

void bind_recycle(nb::module_& m) {
    bind_recycle_drafter(m);
    bind_merge(m);
}

}  // namespace foresay
