// Paged keys and values for Python. All of it is short work, done with the GIL held: texts of several threads share a pool.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <unordered_set>

#include "bind/bind.hpp"
#include "checks.hpp"
#include "errors.hpp"
#include "paged/step.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

/// A tuple: what is in it lives as long as it does.
using Texts = nb::typed<nb::tuple, PagedText, nb::ellipsis>;

std::vector<PagedText*> pointers(const Texts& texts) {
    std::vector<PagedText*> found;
    found.reserve(texts.size());
    for (const nb::handle text : texts) {
        PagedText* pointer = nullptr;
        if (text.is_none() || !nb::try_cast(text, pointer)) throw InputError("text ", found.size(), " is no PagedText; expected texts alone");
        found.push_back(pointer);
    }
    return found;
}

}  // namespace

void bind_paged(nb::module_& m) {
    nb::class_<PagePool>(m, "PagePool", "Which pages of a device's memory are free; see csrc/paged/pages.hpp.")
        .def(nb::init<uint32_t>(), "pages"_a)
        .def_prop_ro("pages", &PagePool::pages)
        .def_prop_ro("free", &PagePool::free)
        .def("next_copies", [](const PagePool& self) -> std::optional<std::tuple<Array<int32_t>, Array<int32_t>, Array<int32_t>>> {
            const SlotCopies* next = self.next_copies();
            if (!next) return std::nullopt;
            SlotCopies batch = *next;
            return owned(std::move(batch.from), std::move(batch.to), std::move(batch.offsets));
        }, nb::rv_policy::automatic, "The next batch of slots that the device has to copy: from, to, offsets of groups.")
        .def("copied", &PagePool::copied, "The device was given that batch.")
        .attr("PAGE") = PagePool::kPage;
    nb::class_<PagedText>(m, "PagedText", "The pages of one text's keys and values. Not for several threads at a time.")
        .def(nb::init<std::shared_ptr<PagePool>>(), "pool"_a)
        .def_prop_ro("length", &PagedText::length)
        .def_prop_ro("capacity", &PagedText::capacity)
        .def("slots", [](const PagedText& self) {
            std::vector<int32_t> slots(self.length() + self.rows());
            for (uint32_t i = 0; i < slots.size(); ++i) slots[i] = self.slot(i);
            return own(std::move(slots));
        }, nb::rv_policy::automatic, "Of the stored tokens, then of the last step's rows.")
        .def("keep", &PagedText::keep, "path"_a, "The rows of the last step that become the text's next tokens.")
        .def("cut", &PagedText::cut, "length"_a)
        .def("copy_from", &PagedText::copy_from, "other"_a, "length"_a, "Full pages are shared.")
        .def("begin_step", &PagedText::begin_step, "rows"_a)
        .def("end_step", &PagedText::end_step, "rows"_a)
        .def("check_integrity", &PagedText::check_integrity);
    m.def("keep_together", [](const Texts& given, Tokens rows, Tokens offsets) {
        const std::vector<PagedText*> texts = pointers(given);
        check_parts("the paths", offsets, texts.size(), rows.size());
        const auto path = [&](size_t i) { return rows.subspan(offsets[i], offsets[i + 1] - offsets[i]); };
        std::unordered_set<const PagedText*> seen;
        for (size_t i = 0; i < texts.size(); ++i) {
            if (!seen.insert(texts[i]).second) throw InputError("text ", i, " is given twice; expected each once");
            texts[i]->check_path(path(i));
        }
        for (size_t i = 0; i < texts.size(); ++i) texts[i]->keep(path(i));
    }, "texts"_a, "rows"_a, "offsets"_a, "Each text keeps its rows, as its `keep` does; if one cannot, none does.");
    nb::class_<PagedStep>(m, "PagedStep", "What a device must know of a step; see csrc/paged/step.hpp.")
        .def("__init__", [](PagedStep* self, const Texts& texts, Tokens offsets, Tokens parents, uint32_t tile_rows,
                           uint32_t least_items, uint32_t chunk) {
            new (self) PagedStep(pointers(texts), {offsets.begin(), offsets.end()}, parents, tile_rows, least_items, chunk);
        }, "texts"_a, "offsets"_a, "parents"_a, "tile_rows"_a, "least_items"_a = 0, "chunk"_a = 2, nb::keep_alive<1, 2>())
        .def_prop_ro("rows", &PagedStep::rows)
        .def_prop_ro("items", &PagedStep::items)
        .def_prop_ro("by_span", &PagedStep::by_span)
        .def_prop_ro("results", &PagedStep::results)
        .def("size", &PagedStep::size, "row_capacity"_a, "item_capacity"_a)
        .def("fill", [](const PagedStep& self, Tokens tokens, uint32_t row_capacity, uint32_t item_capacity,
                        nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) {
            self.fill(tokens, row_capacity, item_capacity, {out.data(), out.size()});
        }, "tokens"_a, "row_capacity"_a, "item_capacity"_a, "out"_a.noconvert(), "Writes into out.")
        .def("end", &PagedStep::end)
        .attr("ROW_FIELDS") = PagedStep::kRowFields;
    m.attr("PagedStep").attr("ITEM_FIELDS") = PagedStep::kItemFields;
}

}  // namespace foresay
