#include "paged/step.hpp"

#include <algorithm>

#include "checks.hpp"
#include "errors.hpp"

namespace foresay {
namespace {

constexpr uint32_t kBlock = PagePool::kPage;  // keys that are read at once
constexpr uint32_t kSpan = 16;                // blocks whose chunks are added first

/// Its first block, the one behind its last, and how many are before it.
struct Range {
    uint32_t begin, end, number;
};
Range span_of(uint32_t block) { return {block / kSpan * kSpan, (block / kSpan + 1) * kSpan, block / kSpan}; }
/// Chunks are shorter in the first spans, so that a short text keeps many processors busy; `first`: blocks of those in the first.
Range chunk_of(uint32_t block, uint32_t first) {
    const uint32_t size = block < kSpan ? first : block < 2 * kSpan ? 4 : kSpan;
    const uint32_t before = block < kSpan ? 0 : block < 2 * kSpan ? kSpan / first : kSpan / first + 4 + (block / kSpan - 2);
    const uint32_t inner = block % kSpan / size, begin = block / kSpan * kSpan + inner * size;
    return {begin, begin + size, before + inner};
}

}  // namespace

PagedStep::PagedStep(std::vector<PagedText*> texts, std::vector<int32_t> offsets, std::span<const int32_t> parents, uint32_t tile_rows,
                     uint32_t least_items, uint32_t chunk)
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
        add_tiles(static_cast<uint32_t>(i), first, count, tile_rows);
    }
    add_items(least_items, chunk);
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

void PagedStep::add_tiles(uint32_t text, uint32_t first, uint32_t rows, uint32_t tile_rows) {
    const uint32_t whole = texts_[text]->length() / kBlock;
    const auto pages = static_cast<int32_t>(heap_.size());
    for (uint32_t block = 0; block < whole; ++block) heap_.push_back(texts_[text]->slot(block * kBlock) / static_cast<int32_t>(kBlock));
    for (uint32_t begin = first, size; begin < first + rows; begin += size) {
        size = std::min(tile_rows, first + rows - begin);
        const auto [low, high] = std::minmax_element(positions_.begin() + begin, positions_.begin() + begin + size);
        const auto [from, to] = std::minmax_element(row_paths_.begin() + begin, row_paths_.begin() + begin + size);
        tiles_.push_back({text, begin, size, static_cast<uint32_t>(*low), static_cast<uint32_t>(*high) / kBlock, 0, pages, *from, *to + 1});
    }
}

void PagedStep::add_items(uint32_t least_items, uint32_t chunk) {
    uint32_t spans = 0, chunks = 0;
    for (const Tile& tile : tiles_) spans += span_of(tile.last).number + 1, chunks += chunk_of(tile.last, chunk).number + 1;
    by_span_ = spans >= least_items;
    const bool by_path = chunks < least_items;
    const auto range_of = [&](uint32_t block) { return by_span_ ? span_of(block) : chunk_of(block, chunk); };
    for (Tile& tile : tiles_) {
        const uint32_t count = range_of(tile.last).number + 1;
        tile.results = results_, results_ += count * tile.rows;
        for (uint32_t row = tile.first; row < tile.first + tile.rows; ++row) {
            first_results_[row] = static_cast<int32_t>(tile.results + row - tile.first);
            strides_[row] = static_cast<int32_t>(tile.rows);
            counts_[row] = static_cast<int32_t>(count);
        }
    }
    // The longest first, so that none of them begins last. Tiles of one text stand together: the second finds the keys in the cache.
    for (const bool longest : {true, false})
        for (size_t begin = 0, end = 0; begin < tiles_.size(); begin = end) {
            uint32_t last = 0;
            for (; end < tiles_.size() && tiles_[end].text == tiles_[begin].text; ++end) last = std::max(last, tiles_[end].last);
            for (Range range = range_of(0); range.begin <= last; range = range_of(range.end)) {
                if (longest != (range.end - range.begin == kSpan && range.end <= last)) continue;
                for (size_t i = begin; i < end; ++i)
                    if (const Tile& tile = tiles_[i]; range.begin <= tile.last)
                        add_item(tile, range.begin, std::min(range.end, tile.last + 1), tile.results + range.number * tile.rows, by_path);
            }
        }
}

void PagedStep::add_item(const Tile& tile, uint32_t begin, uint32_t end, uint32_t results, bool by_path) {
    const uint32_t stored = texts_[tile.text]->length();
    const int32_t paths = by_path && end > stored / kBlock ? 1 : tile.path_end - tile.path_begin;
    for (int32_t path = tile.path_begin; path < tile.path_end; path += paths)
        for (const uint32_t field : {tile.first, tile.rows, static_cast<uint32_t>(tile.pages), stored, static_cast<uint32_t>(path),
                                     static_cast<uint32_t>(path + paths), begin, end, results, tile.low})
            items_.push_back(static_cast<int32_t>(field));
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
