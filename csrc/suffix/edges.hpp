// The outgoing edges of every inner state.
//
// Most states have one or two; these are kept in the state itself, so that a state and its edges are one cache line. Longer
// lists are size-classed blocks: a block of capacity C holds C tokens, then C targets, then C counts, so that looking for a
// token reads one short run of memory. Edges stay sorted by count, so the best continuations of a context come first.
// Blocks of kIndexed entries and more carry a hash index behind the counts, so that a context with a hundred thousand
// continuations still finds one in a few loads.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "inline.hpp"
#include "prefetch.hpp"
#include "slab.hpp"

namespace foresay {

using Token = int32_t;

/// The edges of one state: here if there are few, else in a block of the Edges arena.
struct EdgeList {
    static constexpr uint32_t kInline = 2;

    uint32_t size = 0;
    uint32_t block = 0;
    std::array<Token, kInline> tokens;
    std::array<uint32_t, kInline> targets;
    std::array<uint32_t, kInline> counts;
};

class Edges {
public:
    static constexpr uint32_t kNone = UINT32_MAX;

    template <class Id, class Number>
    struct Arrays {
        Id* tokens;
        Number *targets, *counts;
        uint32_t size;
    };
    using View = Arrays<Token, uint32_t>;
    using ConstView = Arrays<const Token, const uint32_t>;

    FORESAY_INLINE View view(EdgeList& list) const noexcept {
        if (list.size <= EdgeList::kInline) return {list.tokens.data(), list.targets.data(), list.counts.data(), list.size};
        uint32_t* words = address(list.block);
        const uint32_t capacity = capacity_of(list.size);
        return {reinterpret_cast<Token*>(words), words + capacity, words + 2 * capacity, list.size};
    }
    FORESAY_INLINE ConstView view(const EdgeList& list) const noexcept {
        const View edges = view(const_cast<EdgeList&>(list));
        return {edges.tokens, edges.targets, edges.counts, edges.size};
    }

    /// Slot of `token` in the list, or kNone.
    FORESAY_INLINE uint32_t find(const EdgeList& list, Token token) const noexcept {
        if (list.size >= kIndexed) return find_indexed(list, token);
        const Token* const tokens = list.size <= EdgeList::kInline ? list.tokens.data() : reinterpret_cast<const Token*>(address(list.block));
        for (uint32_t slot = 0; slot < list.size; ++slot)
            if (tokens[slot] == token) return slot;
        return kNone;
    }

    /// The edge that was counted most often; there must be one.
    struct First {
        Token token;
        uint32_t target, count;
    };
    First first(const EdgeList& list) const noexcept {
        if (list.size <= EdgeList::kInline) return {list.tokens[0], list.targets[0], list.counts[0]};
        const uint32_t* const words = address(list.block);
        const uint32_t capacity = capacity_of(list.size);
        return {static_cast<Token>(words[0]), words[capacity], words[2 * capacity]};
    }

    /// Adds an edge that is not there yet, counted once, behind the others. The list's block may move. Throws std::bad_alloc or
    /// CapacityError; the list is as it was then.
    void add(EdgeList& list, Token token, uint32_t target) {
        const bool full = list.size > EdgeList::kInline && list.size == capacity_of(list.size);
        if (list.size == EdgeList::kInline) move_out(list);
        else if (full) grow(list);
        const uint32_t slot = list.size++;
        const View edges = view(list);
        edges.tokens[slot] = token;
        edges.targets[slot] = target;
        edges.counts[slot] = 1;
        if (slot + 1 == kIndexed || (full && slot >= kIndexed)) reindex(list);
        else if (slot >= kIndexed) enter(list, slot);
    }

    /// Counts one more use of the edge at `slot` and moves it forward past the edges it has overtaken.
    void count(EdgeList& list, uint32_t slot) noexcept {
        ++view(list).counts[slot];
        raise(list, slot);
    }

    EdgeList copy(const EdgeList& from) {
        EdgeList to = from;
        if (from.size <= EdgeList::kInline) return to;
        const uint32_t words = words_of(capacity_of(from.size));
        to.block = allocate(words);
        std::memcpy(address(to.block), address(from.block), size_t{words} * sizeof(uint32_t));
        return to;
    }

    /// Asks for the memory of the first edge, and for what find() reads first; false if it is there already.
    bool prefetch(const EdgeList& list) const noexcept {
        if (list.size <= EdgeList::kInline) return false;
        const uint32_t* const words = address(list.block);
        const uint32_t capacity = capacity_of(list.size);
        foresay::prefetch(words);
        foresay::prefetch(words + capacity);
        foresay::prefetch(words + 2 * capacity);
        return true;
    }
    bool prefetch(const EdgeList& list, Token token) const noexcept {
        if (list.size < kIndexed) return prefetch(list);
        foresay::prefetch(index_of(list) + (hash(token) & (2 * capacity_of(list.size) - 1)));
        return true;
    }

    /// Bytes of memory in use, freed blocks included.
    size_t bytes() const noexcept { return reserved_words_ * sizeof(uint32_t) + pages_.size() * sizeof(pages_[0]); }

    static uint32_t capacity_of(uint32_t size) noexcept { return std::max(kSmallest, std::bit_ceil(size)); }

private:
    static constexpr uint32_t kSmallest = 2 * EdgeList::kInline;
    static constexpr uint32_t kIndexed = 32;  // lists this long carry a hash index
    static constexpr uint32_t kPageBits = 16;
    static constexpr uint32_t kPageWords = uint32_t{1} << kPageBits;

    uint32_t find_indexed(const EdgeList& list, Token token) const noexcept {
        const ConstView edges = view(list);
        const uint32_t mask = 2 * capacity_of(list.size) - 1;
        const uint32_t* index = index_of(list);
        for (uint32_t probe = hash(token) & mask;; probe = (probe + 1) & mask) {
            const uint32_t slot = index[probe];
            if (slot == kNone) return kNone;
            if (edges.tokens[slot] == token) return slot;
        }
    }

    // New in every process, so that no client can choose tokens that collide. Results do not depend on it.
    static inline const uint64_t kSeed = (uint64_t{std::random_device{}()} << 32 | std::random_device{}()) | 1;
    static uint32_t hash(Token token) noexcept {
        uint64_t mixed = (static_cast<uint32_t>(token) ^ (kSeed >> 32)) * kSeed;
        mixed ^= mixed >> 29;
        return static_cast<uint32_t>((mixed * 0x9E3779B97F4A7C15ull) >> 32);
    }

    // The index belongs to capacities that can hold kIndexed entries, whether or not it is in use yet.
    static uint32_t words_of(uint32_t capacity) noexcept { return (capacity >= kIndexed ? 5u : 3u) * capacity; }

    uint32_t* address(uint32_t block) const noexcept {
        const uint32_t page = block >> kPageBits;
        return (page < kNear ? near_[page] : pages_[page].get()) + (block & (kPageWords - 1));
    }

    uint32_t* index_of(const EdgeList& list) const noexcept {
        return address(list.block) + size_t{3} * capacity_of(list.size);
    }

    void enter(EdgeList& list, uint32_t slot) noexcept {
        const uint32_t mask = 2 * capacity_of(list.size) - 1;
        uint32_t* index = index_of(list);
        uint32_t probe = hash(view(list).tokens[slot]) & mask;
        while (index[probe] != kNone) probe = (probe + 1) & mask;
        index[probe] = slot;
    }

    void reindex(EdgeList& list) noexcept {
        std::memset(index_of(list), 0xff, size_t{2} * capacity_of(list.size) * sizeof(uint32_t));
        for (uint32_t slot = 0; slot < list.size; ++slot) enter(list, slot);
    }

    /// Points the index entry of `token` at another slot.
    void repoint(EdgeList& list, Token token, uint32_t from, uint32_t to) noexcept {
        const uint32_t mask = 2 * capacity_of(list.size) - 1;
        uint32_t* index = index_of(list);
        uint32_t probe = hash(token) & mask;
        while (index[probe] != from) probe = (probe + 1) & mask;
        index[probe] = to;
    }

    /// Restores the order by count after the count at `slot` has grown by one: swap with the head of the overtaken run.
    void raise(EdgeList& list, uint32_t slot) noexcept {
        const View edges = view(list);
        const uint32_t count = edges.counts[slot];
        if (slot == 0 || edges.counts[slot - 1] >= count) return;
        uint32_t head = slot - 1;
        if (slot < 16) {
            while (head > 0 && edges.counts[head - 1] < count) --head;
        } else {
            head = static_cast<uint32_t>(
                std::partition_point(edges.counts, edges.counts + slot, [count](uint32_t c) { return c >= count; }) -
                edges.counts);
        }
        if (edges.size >= kIndexed) {
            repoint(list, edges.tokens[slot], slot, kNone - 1);
            repoint(list, edges.tokens[head], head, slot);
            repoint(list, edges.tokens[slot], kNone - 1, head);
        }
        std::swap(edges.tokens[slot], edges.tokens[head]);
        std::swap(edges.targets[slot], edges.targets[head]);
        std::swap(edges.counts[slot], edges.counts[head]);
    }

    void move_out(EdgeList& list) {
        list.block = allocate(words_of(kSmallest));
        uint32_t* words = address(list.block);
        for (uint32_t slot = 0; slot < EdgeList::kInline; ++slot) {
            words[slot] = static_cast<uint32_t>(list.tokens[slot]);
            words[kSmallest + slot] = list.targets[slot];
            words[2 * kSmallest + slot] = list.counts[slot];
        }
    }

    /// Into a block of twice the capacity, whose index is not made yet.
    void grow(EdgeList& list) {
        const uint32_t capacity = list.size;  // full, so the size is the capacity
        const uint32_t block = allocate(words_of(2 * capacity));
        const uint32_t* from = address(list.block);
        uint32_t* to = address(block);
        for (uint32_t part = 0; part < 3; ++part)
            std::memcpy(to + size_t{2} * part * capacity, from + size_t{part} * capacity, capacity * sizeof(uint32_t));
        release(list.block, words_of(capacity));
        list.block = block;
    }

    uint32_t allocate(uint32_t words) {
        uint32_t& free = free_[class_of(words)];
        if (free != kNone) return std::exchange(free, *address(free));
        if (pages_.empty() || page_used_ + words > page_size_) new_page(words);
        const uint32_t block = static_cast<uint32_t>((pages_.size() - 1) << kPageBits) | page_used_;
        page_used_ += words;
        // A block longer than a page has a page of its own: nothing may be placed at an offset that a handle cannot name.
        if (page_used_ >= kPageWords) page_used_ = page_size_ = kPageWords;
        return block;
    }

    void release(uint32_t block, uint32_t words) noexcept { *address(block) = std::exchange(free_[class_of(words)], block); }

    void new_page(uint32_t words) {
        if (pages_.size() >= (size_t{1} << (32 - kPageBits)))
            throw CapacityError("an automaton holds at most 65536 pages of edges; start a new one");
        const uint32_t wanted = std::max(words, std::min(kPageWords, uint32_t{256} << std::min<size_t>(pages_.size(), 8)));
        pages_.push_back(slab::make<uint32_t>(wanted));
        if (pages_.size() <= kNear) near_[pages_.size() - 1] = pages_.back().get();
        page_size_ = wanted;
        page_used_ = 0;
        reserved_words_ += page_size_;
    }

    static unsigned class_of(uint32_t words) noexcept { return static_cast<unsigned>(std::bit_width(words)); }

    // Where the first pages are, all that a text of 32,000 tokens has: asking the vector would be one more miss for each block.
    static constexpr uint32_t kNear = 12;
    std::array<uint32_t*, kNear> near_;
    std::vector<slab::Array<uint32_t>> pages_;
    uint32_t page_used_ = 0;
    uint32_t page_size_ = 0;
    size_t reserved_words_ = 0;
    // The first free block of each class; its first word names the next.
    std::array<uint32_t, 33> free_ = [] {
        std::array<uint32_t, 33> none;
        none.fill(kNone);
        return none;
    }();
};

}  // namespace foresay
