// The keys and values of one text, of all layers, as the attention kernels read them.
//
// Memory is made of 32-bit words: a float, or two bfloat16 (the first in the low half). Keys stand in blocks of 16 tokens,
// token beside token, so that a score needs no sum across a vector: word w of token t is at [t / 16][w][t % 16]; those of
// bfloat16 are filled up with zeros to a multiple of 16 words. Values stand in rows, filled up with zeros to whole vectors;
// a row is one token or, of bfloat16, two, the even one in the low halves. So one shift or mask makes a vector of floats,
// and both are what matrix tiles want.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slab.hpp"

namespace foresay {

enum class Dtype : uint8_t { float32, bfloat16 };

struct KvLayer {
    uint32_t heads, key_dim, value_dim;
    bool operator==(const KvLayer&) const = default;
};

class Kv {
public:
    static constexpr uint32_t kKeyBlock = 16;              // tokens
    static constexpr uint32_t kStep = 64;                  // a capacity is a multiple of it
    static constexpr uint32_t kMaxTokens = 1u << 30;

    /// Throws InputError for layers that no memory could hold.
    Kv(std::vector<KvLayer> layers, Dtype dtype);
    Kv(const Kv&) = delete;
    Kv& operator=(const Kv&) = delete;

    Dtype dtype() const noexcept { return dtype_; }
    std::span<const KvLayer> layers() const noexcept { return layers_; }
    uint32_t length() const noexcept { return length_; }
    uint32_t capacity() const noexcept { return capacity_; }
    size_t bytes() const noexcept { return words_ * sizeof(uint32_t) * capacity_; }
    /// Changes with everything that ends a step: keep, cut, copy_from, the beginning of another step.
    uint64_t version() const noexcept { return version_; }

    /// Room for `tokens` tokens; at least doubles. Throws CapacityError and std::bad_alloc, and has changed nothing then.
    void reserve(uint64_t tokens);
    /// The rows `path` of the last step, strictly increasing, become the text's next tokens.
    void keep(std::span<const int32_t> path);
    void cut(uint32_t length);
    void copy_from(const Kv& other, uint32_t length);
    /// Throws std::logic_error.
    void check_integrity() const;

    /// The stored tokens and the last step's rows in `layer`, [heads, tokens, dim], as floats or bfloat16 bits.
    template <class Number>
    std::vector<Number> plain(uint32_t layer, bool values) const;
    uint32_t rows(uint32_t layer) const;

    // ---- for AttentionStep, which has checked what it asks for ----

    /// Ends the step that was; returns the version of the one that begins.
    uint64_t begin_step() noexcept { return end_step(), version_; }
    /// Writes row `row` of one head: `key_dim` and `value_dim` numbers.
    void put(uint32_t layer, uint32_t head, uint32_t row, const void* key, const void* value) noexcept;
    void mark(uint32_t layer, uint32_t rows) noexcept { tails_[layer] = rows; }
    const uint32_t* keys(uint32_t layer, uint32_t head) const noexcept { return at(places_[layer].keys, head, places_[layer].key_words); }
    const uint32_t* values(uint32_t layer, uint32_t head) const noexcept { return at(places_[layer].values, head, places_[layer].value_words); }
    uint32_t key_words(uint32_t layer) const noexcept { return places_[layer].key_words; }
    uint32_t value_words(uint32_t layer) const noexcept { return places_[layer].value_words; }

    /// While it lives, no other thread may use the Kv; throws StateError if one does.
    class Use {
    public:
        explicit Use(const Kv& kv);
        Use(Use&& other) noexcept : kv_(std::exchange(other.kv_, nullptr)) {}
        Use(const Use&) = delete;
        ~Use() { if (kv_) kv_->used_.store(false, std::memory_order_release); }

    private:
        const Kv* kv_;
    };

private:
    struct Place {
        size_t keys, values;              // words before it, for each token of capacity
        uint32_t key_words, value_words;  // of one token and head, on average
    };
    const uint32_t* at(size_t before, uint32_t head, uint32_t words) const noexcept {
        return memory_.get() + capacity_ * (before + size_t{head} * words);
    }
    uint32_t* at(size_t before, uint32_t head, uint32_t words) noexcept {
        return memory_.get() + capacity_ * (before + size_t{head} * words);
    }
    slab::Array<uint32_t> room_for(uint32_t capacity) const;
    /// The first `tokens` tokens of every head of `source`, which has the same layout, into `memory`.
    void copy_tokens(const Kv& source, uint32_t tokens, uint32_t* memory, uint32_t capacity) const noexcept;
    uint32_t grown(uint64_t tokens) const;
    uint32_t longest_tail() const noexcept;
    void end_step() noexcept;

    std::vector<KvLayer> layers_;
    std::vector<Place> places_;
    std::vector<uint32_t> tails_;  // of each layer: rows that the step has written
    size_t words_ = 0;             // of one token
    slab::Array<uint32_t> memory_;
    uint64_t version_ = 0;
    uint32_t length_ = 0, capacity_ = 0;
    Dtype dtype_;
    mutable std::atomic<bool> used_ = false;
};

}  // namespace foresay
