// Attention of one forward: rows of several requests, each over its own text and its own path through a tree of drafts.
//
// The bits of a row and head depend on the query and on the visible keys and values in text order, and on nothing else:
// not on other rows or requests, on where in the tree its path lies, on chunks, threads or what was forgotten before.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/attention_kernel.hpp"
#include "cpu/kv.hpp"
#include "cpu/levels.hpp"

namespace foresay {

/// An array of four dimensions that the caller owns. Strides count numbers.
struct Numbers {
    void* data;
    size_t shape[4];
    int64_t strides[4];

    /// Rows of heads, one row after the other, as [1, heads, rows, width] or as [1, rows, heads, width].
    static Numbers by_heads(void* data, size_t rows, size_t heads, size_t width) {
        const auto head = static_cast<int64_t>(width), row = static_cast<int64_t>(heads * width);
        return {data, {1, heads, rows, width}, {static_cast<int64_t>(rows) * row, head, row, 1}};
    }
    static Numbers by_rows(void* data, size_t rows, size_t heads, size_t width) {
        const auto head = static_cast<int64_t>(width), row = static_cast<int64_t>(heads * width);
        return {data, {1, rows, heads, width}, {static_cast<int64_t>(rows) * row, row, head, 1}};
    }
};

struct AttentionInput {
    uint32_t layer;
    Numbers query, key, value, out;  // [1, heads, T, dim] of the Kv's dtype; out [1, T, heads, dim], contiguous
    float scaling;
    uint32_t window = 0, chunk = 0;  // 0: none
    float softcap = 0;               // 0: none
    const float* sinks = nullptr;    // [sink_count]
    size_t sink_count = 0;
    uint32_t threads = 1;
};

class AttentionStep {
public:
    /// Request i has the rows offsets[i] up to offsets[i + 1]; parents count within a request's rows, -1 is the text's last
    /// token. `kept`: the pass skips all other layers, and
    /// layer i of `attend` is kept[i] of the Kvs; what the others have of the new rows is not defined. Empty: it has all layers.
    /// Throws InputError, CapacityError, std::bad_alloc.
    AttentionStep(std::vector<std::shared_ptr<Kv>> kvs, std::vector<int32_t> offsets, std::span<const int32_t> parents, const Kernels& level,
                  std::vector<uint32_t> kept = {});

    Dtype dtype() const noexcept { return kvs_[0]->dtype(); }
    std::span<const int64_t> positions() const noexcept { return positions_; }

    /// Stores keys and values, writes `out`; rows of the arrays beyond the step's are zeroed. Nothing is touched before
    /// everything is checked. Throws InputError, and StateError if a Kv has changed since the step began.
    void attend(const AttentionInput& input);

private:
    struct Place {
        uint32_t request, depth, run;
        size_t rest;  // the beginning of its slots in rests_
    };
    struct Piece {  // neighbouring rows of a request
        uint32_t request, first, end, first_segment, end_segment;
        size_t partials;  // where its results begin, in lanes of a head, counted in segments
        uint32_t parts;
    };
    struct Item {
        uint32_t piece, first_segment, end_segment;
    };
    struct Plan {  // what is to be done, which layers of one kind share
        uint32_t window, chunk, group, heads, threads;
        bool operator==(const Plan&) const = default;
    };
    struct Call;

    void check(const AttentionInput& input) const;
    void attend_in(const AttentionInput& input);
    /// The Kvs' layer that the pass calls `layer`.
    uint32_t place_of(uint32_t layer) const noexcept { return kept_.empty() ? layer : kept_[layer]; }
    void plan(const Plan& wanted);
    /// The keys and values of rows `first` up to `end`.
    void store(const AttentionInput& input, size_t first, size_t end) noexcept;

    std::vector<std::shared_ptr<Kv>> kvs_;
    std::vector<uint64_t> versions_;
    std::vector<int32_t> offsets_;
    std::vector<int64_t> positions_;
    std::vector<Place> places_;
    std::vector<uint32_t> rests_;
    std::vector<uint32_t> kept_;
    const attention::Kernel* kernel_;

    Plan plan_{};
    std::vector<attention::Row> rows_;
    std::vector<Piece> pieces_;
    std::vector<Item> items_;
    std::unique_ptr<std::atomic<uint32_t>[]> left_;  // of each piece and head: items to do
    size_t partials_ = 0;                            // lanes, over all pieces and segments, of a head
    uint64_t seen_ = 0;                              // lanes times keys, of a head
};

}  // namespace foresay
