#include "paged/step.hpp"

#include <algorithm>

#include "checks.hpp"
#include "errors.hpp"

namespace foresay {
namespace {

constexpr uint32_t kBlock = PagePool::kPage;  // keys that are read at once

// Chunks by position: short ones first, so that a short text keeps many processors busy, then longer ones, whose results cost less.
struct Range {
    uint32_t blocks, size;  // up to so many blocks, chunks of this size
};

/// The chunk that a block is in, and its first block and the one behind its last.
struct Chunk {
    uint32_t number, begin, end;
};
Chunk chunk_of(uint32_t block, uint32_t first) {
    uint32_t before = 0, from = 0;
    for (const Range range : {Range{16, first}, Range{32, 4}, Range{UINT32_MAX, 16}}) {
        if (block < range.blocks) {
            const uint32_t inner = (block - from) / range.size;
            return {before + inner, from + inner * range.size, from + (inner + 1) * range.size};
        }
        before += (range.blocks - from) / range.size, from = range.blocks;
    }
    return {};
}

}  // namespace

PagedStep::PagedStep(std::vector<PagedText*> texts, std::vector<int32_t> offsets, std::span<const int32_t> parents, uint32_t tile_rows,
                     uint32_t chunk)
    : texts_(std::move(texts)), offsets_(std::move(offsets)) {
    check_parts("the step", offsets_, texts_.size(), parents.size());
    if (texts_.empty() || !tile_rows) throw InputError("the step has ", texts_.size(), " texts in tiles of ", tile_rows, " rows; expected at least 1 of each");
    if (!chunk || 16 % chunk) throw InputError("the first chunks have ", chunk, " blocks; expected 1, 2, 4, 8 or 16");
    for (size_t i = 0; i < texts_.size(); ++i)
        if (!texts_[i] || &texts_[i]->pool() != &texts_[0]->pool()) throw InputError("text ", i, " is of another memory; expected texts of one target");
    std::vector<PagedText*> sorted = texts_;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) throw InputError("a text is in the step twice; expected each once");
    for (size_t i = 0; i < texts_.size(); ++i)
        for (int32_t row = offsets_[i]; row < offsets_[i + 1]; ++row)
            if (const int32_t parent = parents[row]; parent < -1 || parent >= row - offsets_[i])
                throw InputError("parent ", parent, " of row ", row - offsets_[i], " is none; expected -1 or an earlier row");
    try {
        for (size_t i = 0; i < texts_.size(); ++i) texts_[i]->begin_step(static_cast<uint32_t>(offsets_[i + 1] - offsets_[i]));
    } catch (...) {
        for (PagedText* text : texts_) text->cut(text->length());  // gives back what it has taken
        throw;
    }
    size_t stored = 0;
    for (const PagedText* text : texts_) stored += text->length() / kBlock + 2 * kBlock;
    heap_.reserve(stored + parents.size()), items_.reserve(stored / 4 * kItemFields);
    for (auto* column : {&positions_, &slots_, &row_paths_, &first_results_, &strides_, &counts_}) column->resize(parents.size());
    for (size_t i = 0; i < texts_.size(); ++i) {
        const auto first = static_cast<uint32_t>(offsets_[i]), count = static_cast<uint32_t>(offsets_[i + 1] - offsets_[i]);
        add_paths(*texts_[i], parents.subspan(first, count), first);
        add_items(*texts_[i], first, count, tile_rows, chunk);
    }
}

void PagedStep::add_paths(const PagedText& text, std::span<const int32_t> parents, uint32_t first) {
    const uint32_t stored = text.length(), begin = stored / kBlock * kBlock;
    const auto count = static_cast<int32_t>(parents.size());
    std::vector<uint8_t> inner(parents.size());
    for (int32_t row = 0; row < count; ++row) {
        const int32_t parent = parents[row];
        if (parent >= 0) inner[parent] = 1;
        positions_[first + row] = parent < 0 ? static_cast<int32_t>(stored) : positions_[first + parent] + 1;
        slots_[first + row] = text.slot(stored + static_cast<uint32_t>(row));
        row_paths_[first + row] = -1;
    }
    for (int32_t leaf = 0; leaf < count; ++leaf) {
        if (inner[leaf]) continue;
        const auto path = static_cast<int32_t>(path_ends_.size());
        const int32_t end = positions_[first + leaf] + 1;
        const size_t at = heap_.size();
        heap_.resize(at + static_cast<size_t>(end) - begin);
        for (uint32_t position = begin; position < stored; ++position) heap_[at + position - begin] = text.slot(position);
        for (int32_t row = leaf; row >= 0; row = parents[row]) {
            heap_[at + static_cast<size_t>(positions_[first + row]) - begin] = slots_[first + row];
            if (row_paths_[first + row] < 0) row_paths_[first + row] = path;
        }
        path_slots_.push_back(static_cast<int32_t>(at)), path_ends_.push_back(end);
    }
}

void PagedStep::add_items(const PagedText& text, uint32_t first, uint32_t rows, uint32_t tile_rows, uint32_t chunk) {
    const uint32_t stored = text.length();
    const auto pages = static_cast<int32_t>(heap_.size());
    for (uint32_t block = 0; block < stored / kBlock; ++block) heap_.push_back(text.slot(block * kBlock) / static_cast<int32_t>(kBlock));
    for (uint32_t begin = first, size; begin < first + rows; begin += size) {
        size = std::min(tile_rows, first + rows - begin);
        const auto [low, high] = std::minmax_element(positions_.begin() + begin, positions_.begin() + begin + size);
        const auto [from, to] = std::minmax_element(row_paths_.begin() + begin, row_paths_.begin() + begin + size);
        const uint32_t last = static_cast<uint32_t>(*high) / kBlock, chunks = chunk_of(last, chunk).number + 1;
        for (uint32_t row = begin; row < begin + size; ++row) {
            first_results_[row] = static_cast<int32_t>(results_ + row - begin);
            strides_[row] = static_cast<int32_t>(size);
            counts_[row] = static_cast<int32_t>(chunks);
        }
        for (uint32_t block = 0; block <= last;) {
            const Chunk its = chunk_of(block, chunk);
            for (const uint32_t field : {begin, size, static_cast<uint32_t>(pages), stored, static_cast<uint32_t>(*from), static_cast<uint32_t>(*to) + 1,
                                         its.begin, std::min(its.end, last + 1), results_, static_cast<uint32_t>(*low)})
                items_.push_back(static_cast<int32_t>(field));
            results_ += size, block = its.end;
        }
    }
}

size_t PagedStep::size(uint32_t row_capacity, uint32_t item_capacity) const noexcept {
    return size_t{row_capacity} * (kRowFields + kPathFields) + size_t{item_capacity} * kItemFields + heap_.size();
}

void PagedStep::fill(std::span<const int32_t> tokens, uint32_t row_capacity, uint32_t item_capacity, std::span<int32_t> out) const {
    if (tokens.size() != rows() || rows() > row_capacity || items() > item_capacity || size(row_capacity, item_capacity) > out.size())
        throw InputError("a step of ", rows(), " rows and ", items(), " items, ", size(row_capacity, item_capacity), " numbers, and ", tokens.size(),
                         " tokens does not fit into ", row_capacity, " rows, ", item_capacity, " items and ", out.size(), " numbers");
    int32_t* at = out.data();
    const auto column = [&](std::span<const int32_t> values, uint32_t capacity, auto&& filler) {
        std::copy(values.begin(), values.end(), at);
        for (size_t i = values.size(); i < capacity; ++i) at[i] = filler(i);
        at += capacity;
    };
    const auto nothing = [](size_t) { return 0; };
    column(tokens, row_capacity, nothing);
    column(positions_, row_capacity, nothing);
    column(slots_, row_capacity, [](size_t i) { return static_cast<int32_t>(i % kBlock); });
    column(row_paths_, row_capacity, [](size_t) { return -1; });
    column(first_results_, row_capacity, nothing);
    column(strides_, row_capacity, nothing);
    column(counts_, row_capacity, nothing);
    column(items_, item_capacity * kItemFields, nothing);
    column(path_slots_, row_capacity, nothing);
    column(path_ends_, row_capacity, nothing);
    std::copy(heap_.begin(), heap_.end(), at);
}

void PagedStep::end() {
    for (size_t i = 0; i < texts_.size(); ++i) texts_[i]->end_step(static_cast<uint32_t>(offsets_[i + 1] - offsets_[i]));
}

}  // namespace foresay
