// Recycled top-k tables and merged trees for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.hpp"
#include "merge/merge.hpp"
#include "recycle/recycle.hpp"

using namespace nanobind::literals;

template <>
struct nanobind::detail::type_caster<foresay::TopKArrays>
    : nanobind::detail::arrays_caster<foresay::TopKArrays, &foresay::TopKArrays::keys, &foresay::TopKArrays::tokens, &foresay::TopKArrays::levels> {};

namespace foresay {
namespace {

using Requests = std::span<RecycleRequest* const>;
using Tenant = std::optional<std::string>;

void bind_recycle_drafter(nb::module_& m) {
    nb::class_<RecycleRequest>(m, "RecycleRequest", "One request's state in a RecycleDrafter.");
    nb::class_<RecycleDrafter>(m, "RecycleDrafter", "Drafts from what the target found likely before. Each call locks it.")
        .def("__init__", [](RecycleDrafter* self, uint32_t k, uint32_t orders, size_t bytes, size_t max_tenants, bool fixed,
                            bool chain) {
            new (self) RecycleDrafter({k, orders, bytes, max_tenants, fixed, chain});
        }, nb::kw_only(), "k"_a, "orders"_a, "bytes"_a, "max_tenants"_a, "fixed"_a, "chain"_a)
        .def("begin", [](RecycleDrafter& self, Tokens prompt, const Tenant& tenant, uint64_t seed, float temperature) {
            return self.begin(prompt, tenant, {seed, temperature});
        }, "prompt"_a, "tenant"_a.none(), "seed"_a, "temperature"_a, nb::keep_alive<0, 1>(), Released())
        .def("propose", &RecycleDrafter::propose, "states"_a, "budgets"_a, "least"_a = 0.f, Released(), "(tokens, parents, offsets, scores)")
        .def("adopt", &RecycleDrafter::adopt, "states"_a, "tokens"_a, "parents"_a, "offsets"_a, Released())
        .def("observe", [](RecycleDrafter& self, Requests states, Tokens tokens, Tokens offsets, const Matrix<const int32_t>& likeliest,
                           const Matrix<const float>& logprobs, Tokens row_offsets) {
            const std::vector<int32_t> likely(likeliest.row(0), likeliest.row(likeliest.count));
            const std::vector<float> logs(logprobs.row(0), logprobs.row(logprobs.count));
            released([&] { self.observe(states, tokens, offsets, likely, logs, row_offsets); });
        }, "states"_a, "tokens"_a, "offsets"_a, "likeliest"_a, "logprobs"_a, "row_offsets"_a)
        .def("finish", &RecycleDrafter::finish, "state"_a, Released())
        .def("text", [](const RecycleDrafter& self, const RecycleRequest& state) { return own(self.text(state)); }, "state"_a)
        .def("drafted", &RecycleDrafter::drafted, "state"_a, Released(), "Nodes of its own last draft, until that is observed.")
        .def("table", &RecycleDrafter::table, "tenant"_a.none(), Released(), "(keys, tokens, levels) of a tenant's table")
        .def("add_table", [](RecycleDrafter& self, const Tenant& tenant, std::span<const uint64_t> keys, Tokens tokens, std::span<const uint8_t> levels) {
            self.add_table(tenant, {{keys.begin(), keys.end()}, {tokens.begin(), tokens.end()}, {levels.begin(), levels.end()}});
        }, "tenant"_a.none(), "keys"_a, "tokens"_a, "levels"_a, Released())
        .def("forget", &RecycleDrafter::forget, "tenant"_a.none(), Released())
        .def_prop_ro("bytes", &RecycleDrafter::bytes)
        .def("bytes_of", &RecycleDrafter::bytes_of, "tenant"_a.none(), Released());
}

using Batch = std::tuple<Given<int32_t>, Given<int32_t>, Given<int32_t>, std::optional<Given<float>>>;

auto merge(TreeMerge& self, const std::vector<Batch>& batches, Tokens budgets, std::span<const uint64_t> seeds, std::span<const float> temperatures,
           std::span<const int64_t> positions, std::span<MergeMemory* const> memories) {
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
    MergedTrees out;
    released([&] { self.merge(drafts, budgets, {seeds, temperatures, positions}, memories, out); });
    std::vector<Array<int32_t>> homes;
    for (auto& home : out.homes) homes.push_back(own(std::move(home)));
    return std::tuple(own(std::move(out.tokens)), own(std::move(out.parents)), own(std::move(out.offsets)), own(std::move(out.scores)),
                      std::move(homes));
}

void bind_merge(nb::module_& m) {
    nb::class_<MergeMemory>(m, "MergeMemory", "What one request's last merge considered.");
    nb::class_<TreeMerge>(m, "TreeMerge", "Several drafters' trees in one. Each call locks it.")
        .def(nb::init<size_t, float>(), "drafters"_a, "prior"_a)
        .def("begin", &TreeMerge::begin, "tenant"_a.none(), Released())
        .def("forget", &TreeMerge::forget, "tenant"_a.none(), Released())
        .def("merge", &merge, "batches"_a, "budgets"_a, "seeds"_a, "temperatures"_a, "positions"_a, "memories"_a,
             "(tokens, parents, offsets, scores, [where each drafter's nodes went])")
        .def("learn", &TreeMerge::learn, "memories"_a, "tokens"_a, "offsets"_a, Released());
}

}  // namespace

void bind_recycle(nb::module_& m) {
    bind_recycle_drafter(m);
    bind_merge(m);
}

}  // namespace foresay
