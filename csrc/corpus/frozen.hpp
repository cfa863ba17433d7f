// An immutable index over a corpus of token documents, read from one memory-mapped file (see frozen_format.hpp).
//
// Many threads and processes may read one file at the same time. No method changes the index. Every index that is read
// from the file is checked before use: a damaged file gives CorpusError or a wrong draft, never a crash. So does a file
// that is truncated while it is mapped: what it lost reads as zeros (see mapped_file.hpp). Better replace it by rename.
//
// This file knows nothing of scores, trees, requests or tenants.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "errors.hpp"
#include "corpus/frozen_format.hpp"
#include "corpus/mapped_file.hpp"

namespace foresay {

using TokenizerHash = std::array<uint8_t, 32>;

class FrozenIndex {
public:
    static constexpr uint32_t kNoPosition = frozen::kNone;
    static constexpr uint32_t kMaxWidth = frozen::kTop;

    /// A context: the longest suffix of some text that occurs in the corpus. The default is the empty context.
    /// Valid for this index only, as long as the file.
    struct Cursor {
        uint32_t lo = 0, hi = 0;       // its occurrences, as ranks
        uint32_t length = 0;           // tokens, at most max_context
    };

    /// One context of the chain and what followed it. The span is valid until the visitor returns.
    struct Context {
        uint32_t length;
        uint32_t total;                // occurrences that a token of the same document follows
        uint32_t first, latest;        // text positions of the first and last of them in corpus order, or kNoPosition
        int32_t first_token, latest_token;  // what follows there, or -1
        std::span<const Continuation> top;  // by falling count, then token; at most the width asked for
    };

    /// Checks the header and the section table, in time that does not grow with the corpus. Throws CorpusError, and
    /// TokenizerMismatch where a hash is expected and the file has another.
    static FrozenIndex open(const std::string& path, const std::optional<TokenizerHash>& expected = std::nullopt);

    /// Moves the cursor to the longest suffix of (its context + token) that occurs within a document of the corpus.
    /// A token outside the vocabulary occurs nowhere. Returns how many entries of the file's tables were searched, in
    /// proportion to the logarithm of the corpus's size. Throws CorpusError only.
    uint32_t advance(Cursor& cursor, int32_t token) const;

    /// Drops tokens from the front of the cursor's context until at most `length` are left. Throws CorpusError only.
    void shorten(Cursor& cursor, uint32_t length) const;

    /// Calls visit(const Context&) -> bool for the cursor's context and for its suffixes that occur more often (each
    /// the longest with its occurrences), longest first, the empty one excluded, until it returns false.
    template <class Visit>
    void matches(const Cursor& cursor, uint32_t width, Visit&& visit) const;

    /// Positions (of the context's last token) of its first and last occurrence that a token follows, or kNoPosition.
    uint32_t first(const Cursor& cursor) const;
    uint32_t latest(const Cursor& cursor) const;

    /// The tokens after a position, up to the end of its document. Valid as long as the index.
    std::span<const int32_t> following(uint32_t position, uint32_t limit) const;

    /// Checks every byte: the checksums, then every promise of frozen_format.hpp. Throws CorpusError with the first
    /// that is broken. Takes seconds per 10M tokens and one bit of memory per token.
    void verify() const;

    const std::string& path() const noexcept { return path_; }
    const frozen::Header& header() const noexcept { return header_; }

private:
    FrozenIndex() = default;

    struct Interval {
        uint32_t lo, hi;
        uint64_t size() const { return uint64_t{hi} - lo; }
    };

    /// Counts the continuations of a light interval, which may grow while the chain is walked.
    class Counter;

    [[noreturn]] void damaged(const char* what, uint64_t found, uint64_t limit) const;
    uint32_t below(uint32_t value, uint64_t limit, const char* what) const {
        if (value >= limit) [[unlikely]] damaged(what, value, limit);
        return value;
    }
    void check_whole() const {
        if (file_.cut()) [[unlikely]] cut();
    }
    [[noreturn]] void cut() const;
    void check(const Cursor& cursor) const;
    uint32_t shared(uint64_t rank) const {
        return rank > 0 && rank < num_ranks_ ? std::min<uint32_t>(shared_[rank], header_.max_context) : 0;
    }
    uint32_t outer_depth(Interval interval) const { return std::max(shared(interval.lo), shared(interval.hi)); }

    Interval bucket(int32_t token) const;
    uint32_t first_origin_from(Interval within, uint32_t rank, uint32_t& searched) const;
    uint32_t common(uint32_t position, uint32_t context, uint32_t limit) const;
    Interval interval(uint32_t rank, uint32_t depth, uint32_t& searched) const;
    bool widen(Interval& light, uint32_t depth) const;
    uint32_t node_of(uint32_t rank, uint32_t depth, uint32_t& searched) const;
    uint32_t parent_of(uint32_t node) const;
    Context context_of(uint32_t node, uint32_t length, uint32_t width) const;

    template <class T>
    void attach(std::span<const T>& to, uint32_t section) const;
    void verify_text() const;
    void verify_ranks() const;
    void verify_origins() const;
    void verify_nodes() const;

    MappedFile file_;
    std::string path_;
    frozen::Header header_{};
    uint64_t num_ranks_ = 0;
    std::span<const int32_t> text_, next_;
    std::span<const uint32_t> starts_, positions_, origins_, landmarks_, directory_;
    std::span<const uint8_t> shared_;
    std::span<const frozen::Node> nodes_;
    std::span<const frozen::Tally> tallies_;
};

class FrozenIndex::Counter {
public:
    explicit Counter(const FrozenIndex& index);

    /// Counts ranks [lo, hi); together at most `heavy` ranks.
    void add(uint32_t lo, uint32_t hi);
    Context context(uint32_t length, uint32_t width);

private:
    const FrozenIndex& index_;
    uint32_t mask_;
    uint32_t total_ = 0, distinct_ = 0;
    uint32_t first_ = kNoPosition, latest_ = kNoPosition;
    int32_t first_token_ = frozen::kBoundary, latest_token_ = frozen::kBoundary;
    Continuation slots_[2 * frozen::kMostHeavy];  // a hash table; token -1: free
    uint16_t used_[frozen::kMostHeavy];
    Continuation best_[frozen::kTop];
};

template <class Visit>
void FrozenIndex::matches(const Cursor& cursor, uint32_t width, Visit&& visit) const {
    if (cursor.length == 0) return;
    check(cursor);
    width = std::min(width, kMaxWidth);
    Interval light{cursor.lo, cursor.hi};
    uint32_t length = cursor.length;
    if (light.size() <= header_.heavy) {
        Counter counter(*this);
        counter.add(light.lo, light.hi);
        while (true) {
            if (!visit(counter.context(length, width))) return;
            length = outer_depth(light);
            if (length == 0) return;
            const Interval inner = light;
            if (!widen(light, length)) break;
            counter.add(light.lo, inner.lo);
            counter.add(inner.hi, light.hi);
        }
    }
    uint32_t searched = 0;
    for (uint32_t node = node_of(cursor.lo, length, searched); node != frozen::kNone; node = parent_of(node)) {
        if (!visit(context_of(node, std::min(length, nodes_[node].depth), width))) return;
        length = frozen::kMostContext;
    }
}

}  // namespace foresay
