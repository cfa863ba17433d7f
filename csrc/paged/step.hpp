// What a device must know of a step: for each row its place, for each tile of rows which keys it sees.
//
// A draft tree is its paths from root to leaf. A row belongs to the first path that has it, and sees that path as if it were
// the text: so its keys stand where they would stand if the path had been generated token by token, and its sums have the same
// order. Blocks of 64 keys that are stored whole are read by page, for all rows at once; from the block on where the text ends,
// keys are read by path, from a list of slots.
//
// Keys are divided into chunks, by position alone. The results of a row's chunks are added in their order within each span of
// 1,024 positions, and then the spans. So an item of work may be a tile and a chunk, or a tile and a span, whose chunks it adds
// by itself: the results have the same bits. A few texts are many items by chunks; of many texts spans are enough.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "paged/pages.hpp"

namespace foresay {

class PagedStep {
public:
    /// Numbers for each row: token, position, slot, path, and where its results are: the first, their distance, how many.
    static constexpr uint32_t kRowFields = 7;
    /// Numbers for each item: first row, rows, where its pages begin in the heap, tokens stored, paths from and to, blocks from
    /// and to, where its results begin, the lowest position of its rows.
    static constexpr uint32_t kItemFields = 10;
    /// Numbers for each path: where its slots begin in the heap, the position behind its last token.
    static constexpr uint32_t kPathFields = 2;

    /// Text i has the rows offsets[i] up to offsets[i + 1]; parents count within a text's rows, -1 follows what is stored. Makes
    /// room in the texts, which must live as long as the step. Throws InputError, and std::bad_alloc where the pool has too few
    /// pages; then texts keep what is stored.
    ///
    /// least_items  so many keep a device busy: items are spans where these are that many, else chunks; and where chunks are
    ///              fewer, those in which a text ends are an item for each path
    /// chunk        blocks of the chunks in the first span: 1, 2, 4, 8 or 16
    PagedStep(std::vector<PagedText*> texts, std::vector<int32_t> offsets, std::span<const int32_t> parents, uint32_t tile_rows,
              uint32_t least_items = 0, uint32_t chunk = 2);

    uint32_t rows() const noexcept { return static_cast<uint32_t>(positions_.size()); }
    uint32_t items() const noexcept { return static_cast<uint32_t>(items_.size() / kItemFields); }
    /// Whether items are spans.
    bool by_span() const noexcept { return by_span_; }
    /// Rows of all items' results together.
    uint32_t results() const noexcept { return results_; }
    /// Numbers that `fill` writes.
    size_t size(uint32_t row_capacity, uint32_t item_capacity) const noexcept;

    /// Writes rows, items and paths, each field behind the other, for so many rows and items; then the heap. Rows that only fill
    /// up write to page 0 and see nothing. Throws InputError if something does not fit.
    void fill(std::span<const int32_t> tokens, uint32_t row_capacity, uint32_t item_capacity, std::span<int32_t> out) const;
    /// The rows were computed: the texts may keep them. Throws InputError if a text has changed since.
    void end();

private:
    /// Rows that share their products, and what they see: up to block `last`, by path from and to.
    struct Tile {
        uint32_t text, first, rows, low, last, results;
        int32_t pages, path_begin, path_end;
    };
    void add_paths(const PagedText& text, std::span<const int32_t> parents, uint32_t first);
    void add_tiles(uint32_t text, uint32_t first, uint32_t rows, uint32_t tile_rows);
    void add_items(uint32_t least_items, uint32_t chunk);
    void add_item(const Tile& tile, uint32_t begin, uint32_t end, uint32_t results, bool by_path);

    std::vector<PagedText*> texts_;
    std::vector<int32_t> offsets_;
    std::vector<int32_t> positions_, slots_, row_paths_, first_results_, strides_, counts_;  // of rows
    std::vector<Tile> tiles_;
    std::vector<int32_t> items_, path_slots_, path_ends_, heap_;
    uint32_t results_ = 0;
    bool by_span_ = false;
};

}  // namespace foresay
