#include "corpus/frozen_sort.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "corpus/frozen_format.hpp"
#include "threads.hpp"

namespace foresay::frozen {

namespace {

/// One rank while it is sorted: two tokens of its reversed context at a time.
struct Entry {
    uint64_t key;
    uint32_t position;
    int32_t next;

    bool operator<(const Entry& other) const {  // positions break ties, so the order is total
        const auto whole = [](const Entry& e) { return static_cast<unsigned __int128>(e.key) << 32 | e.position; };
        return whole(*this) < whole(other);
    }
};

/// Ranks that are sorted together: those whose reversed context begins with `prefix` and goes on with a token in
/// [from, to). A boundary counts as the token `vocabulary`. Nothing is left to sort where `to` is 0.
struct Group {
    std::vector<int32_t> prefix;
    uint32_t from, to;
    uint64_t rank, size;
    uint32_t first_shared;      // what its first rank shares with the rank before
};

class Sorter {
public:
    Sorter(std::span<const int32_t> text, std::span<const uint64_t> counts, const SortLimits& limits,
           const RankColumns& columns)
        : text_(text), counts_(counts), vocabulary_(static_cast<uint32_t>(counts.size())),
          depth_(limits.max_context + 1), columns_(columns),
          most_(std::max<uint64_t>(limits.memory_bytes / limits.threads / (2 * sizeof(Entry)), 1)),
          // A few groups per thread even the load out; each costs one more pass over the text.
          usual_(std::min(most_, std::max<uint64_t>(text.size() / (3 * limits.threads), 1 << 16))) {}

    std::vector<Group> plan() {
        cut({}, counts_, 0, 0);
        return std::move(groups_);
    }

    static uint64_t room(const Group& group) { return group.to == 0 ? 0 : 2 * group.size; }

    /// Room for `room(group)` entries is needed.
    void sort(const Group& group, Entry* entries) const {
        if (group.to == 0) return write_equal(group);
        columns_.shared[group.rank] = static_cast<uint8_t>(group.first_shared);
        if (group.prefix.empty()) sort_by_token(group, entries);
        else sort_by_prefix(group, entries);
        for (uint64_t i = 0; i < group.size; ++i) {
            columns_.positions[group.rank + i] = entries[i].position;
            columns_.next[group.rank + i] = entries[i].next;
        }
    }

private:
    static constexpr uint32_t kEnd = UINT32_MAX;  // in a key: the context has no more tokens
    static constexpr uint64_t kFew = 16, kMany = 1024;
    static constexpr int kDigitBits = 9;

    uint32_t index_of(int32_t token) const { return token == kBoundary ? vocabulary_ : token; }

    /// The usual case: each token's ranks have their place already, as it is known how many there are.
    void sort_by_token(const Group& group, Entry* entries) const {
        std::vector<uint64_t> ends;
        uint64_t end = 0;
        for (uint32_t token = group.from; token < group.to; ++token)
            ends.push_back(std::exchange(end, end + counts_[token]));
        for_each_position({}, [&](uint32_t position) {
            const uint32_t token = static_cast<uint32_t>(text_[position]) - group.from;
            if (token < ends.size()) entries[ends[token]++] = {key_at(position, 1), position, text_[position + 1]};
        });
        uint8_t* const shared = columns_.shared + group.rank;
        uint64_t begin = 0;
        for (const uint64_t token_end : ends) {
            if (begin > 0 && begin < token_end) shared[begin] = 0;
            if (begin < token_end) settle(entries + begin, token_end - begin, 1, shared + begin, entries + group.size);
            begin = token_end;
        }
    }

    void sort_by_prefix(const Group& group, Entry* entries) const {
        const auto depth = static_cast<uint32_t>(group.prefix.size());
        uint64_t size = 0;
        for_each_position(group.prefix, [&](uint32_t position) {
            const uint32_t token = index_of(text_[position - depth]);
            if (token >= group.from && token < group.to)
                entries[size++] = {key_at(position, depth), position, text_[position + 1]};
        });
        settle(entries, size, depth, columns_.shared + group.rank, entries + size);
    }

    /// Tokens `depth` and `depth + 1` of a reversed context that is longer than `depth` or ends there.
    uint64_t key_at(uint32_t position, uint32_t depth) const {
        const uint32_t at = position - depth;
        const auto first = static_cast<uint32_t>(text_[at]);
        if (first == kEnd || depth >= depth_) return UINT64_MAX;
        return uint64_t{first} << 32 | (depth + 1 < depth_ ? static_cast<uint32_t>(text_[at - 1]) : kEnd);
    }

    /// Sorts entries that share `depth` tokens and whose keys are the next two, and fills shared[1 .. size).
    /// `scratch` has room for as many.
    void settle(Entry* entries, uint64_t size, uint32_t depth, uint8_t* shared, Entry* scratch) const {
        if (size <= kFew) return settle_few(entries, size, depth, shared);
        const auto share = [&](uint64_t key, uint64_t other) {
            const uint32_t more = (key ^ other) >> 32 != 0 || key >> 32 == kEnd ? 0 : 1;
            return static_cast<uint8_t>(std::min(depth + more, depth_ - 1));
        };
        const auto all_equal = [&] {
            return std::all_of(entries, entries + size, [&](const Entry& e) { return e.key == entries[0].key; });
        };
        const auto load = [&](Entry* from, uint64_t count, uint32_t at) {
            for (Entry* entry = from; entry < from + count; ++entry) entry->key = key_at(entry->position, at);
        };
        // Copies of one text share many tokens: go on reading, without sorting, until they differ.
        for (; all_equal(); depth += 2, load(entries, size, depth))
            if (static_cast<uint32_t>(entries[0].key) == kEnd) {
                std::fill(shared + 1, shared + size, share(entries[0].key, entries[0].key));
                return;
            }
        sort_by_key(entries, size, scratch);
        for (uint64_t begin = 0, end; begin < size; begin = end) {
            const uint64_t key = entries[begin].key;
            for (end = begin + 1; end < size && entries[end].key == key;) ++end;
            if (begin > 0) shared[begin] = share(entries[begin - 1].key, key);
            if (end - begin == 1) continue;
            if (static_cast<uint32_t>(key) == kEnd) {
                std::fill(shared + begin + 1, shared + end, share(key, key));
                continue;
            }
            // The last entry's key is still needed to see what the next run shares with this one.
            if (end - begin > kFew) load(entries + begin, end - begin, depth + 2);
            settle(entries + begin, end - begin, depth + 2, shared + begin, scratch);
            entries[end - 1].key = key;
        }
    }

    /// The same for a few entries, by insertion; it does not look at their keys.
    void settle_few(Entry* entries, uint64_t size, uint32_t depth, uint8_t* shared) const {
        for (uint64_t i = 0; i < size; ++i)  // the tokens are far apart in memory: fetch them all at once
            __builtin_prefetch(text_.data() + entries[i].position - std::min(entries[i].position, depth + 8));
        for (uint64_t i = 1; i < size; ++i) {
            const Entry inserted = entries[i];
            uint64_t place = 0, end = i;
            uint32_t below = 0, above = 0;  // what it shares with its neighbours: the last that were compared
            while (place < end) {
                const uint64_t middle = (place + end) / 2;
                const Comparison compared = compare(entries[middle].position, inserted.position, depth);
                (compared.ordered ? below : above) = compared.shared;
                if (compared.ordered) place = middle + 1;
                else end = middle;
            }
            std::copy_backward(entries + place, entries + i, entries + i + 1);
            entries[place] = inserted;
            if (place < i) {
                std::copy_backward(shared + place + 1, shared + i, shared + i + 1);
                shared[place + 1] = static_cast<uint8_t>(above);
            }
            if (place > 0) shared[place] = static_cast<uint8_t>(below);
        }
    }

    struct Comparison {
        bool ordered;
        uint32_t shared;
    };

    /// Compares the contexts at two positions that share `depth` tokens.
    Comparison compare(uint32_t before, uint32_t after, uint32_t depth) const {
        while (true) {
            const uint64_t a = key_at(before, depth), b = key_at(after, depth);
            const bool first_differs = (a ^ b) >> 32 != 0 || a >> 32 == kEnd;
            if (a != b || static_cast<uint32_t>(a) == kEnd)
                return {a != b ? a < b : before < after, std::min(depth + (first_differs ? 0 : 1), depth_ - 1)};
            depth += 2;
        }
    }

    /// Sorts by key and, for equal keys, keeps the order. Large runs: by their highest differing bits, then each part.
    static void sort_by_key(Entry* entries, uint64_t size, Entry* scratch) {
        if (size < kMany) return std::sort(entries, entries + size);  // positions are in order where keys are equal
        uint64_t differing = 0;
        for (uint64_t i = 1; i < size; ++i) differing |= entries[i].key ^ entries[0].key;
        if (differing == 0) return;
        const int shift = std::max(0, static_cast<int>(std::bit_width(differing)) - kDigitBits);
        const auto digit = [shift](const Entry& entry) { return entry.key >> shift & ((1 << kDigitBits) - 1); };
        uint32_t ends[1 << kDigitBits] = {};
        for (uint64_t i = 0; i < size; ++i) ++ends[digit(entries[i])];
        uint32_t end = 0;
        for (uint32_t& count : ends) count = std::exchange(end, end + count);
        for (uint64_t i = 0; i < size; ++i) scratch[ends[digit(entries[i])]++] = entries[i];
        std::copy(scratch, scratch + size, entries);
        if (shift == 0) return;
        uint32_t begin = 0;
        for (const uint32_t part_end : ends) {
            if (part_end - begin > 1) sort_by_key(entries + begin, part_end - begin, scratch);
            begin = part_end;
        }
    }

    /// Cuts the contexts that begin with `prefix` into groups that fit, by their next token.
    void cut(const std::vector<int32_t>& prefix, std::span<const uint64_t> counts, uint64_t rank,
             uint32_t first_shared) {
        Group open{prefix, 0, 0, rank, 0, first_shared};
        const auto close = [&](uint32_t next_from) {
            if (open.size > 0) {
                groups_.push_back(open);
                open.first_shared = static_cast<uint32_t>(prefix.size());
            }
            open.rank += open.size;
            open.size = 0;
            open.from = next_from;
        };
        for (uint32_t token = 0; token < counts.size(); ++token) {
            if (open.size + counts[token] > usual_) close(token);
            open.to = token + 1;
            open.size += counts[token];
            if (open.size > most_) {  // one token alone is too much: look one token further
                const Group large = open;
                open.size = 0;
                open.rank += large.size;
                open.from = token + 1;
                open.first_shared = static_cast<uint32_t>(prefix.size());
                cut_further(large, token);
            }
        }
        close(0);
    }

    void cut_further(const Group& large, uint32_t token) {
        std::vector<int32_t> prefix = large.prefix;
        prefix.push_back(token == vocabulary_ ? kBoundary : static_cast<int32_t>(token));
        if (token == vocabulary_ || prefix.size() == depth_) {
            groups_.push_back({prefix, 0, 0, large.rank, large.size, large.first_shared});
            return;
        }
        std::vector<uint64_t> counts(vocabulary_ + 1);
        const auto depth = static_cast<uint32_t>(prefix.size());
        for_each_position(prefix, [&](uint32_t position) { ++counts[index_of(text_[position - depth])]; });
        cut(prefix, counts, large.rank, large.first_shared);
    }

    /// All contexts of the group are equal as far as they are compared: they stay in text order.
    void write_equal(const Group& group) const {
        const auto length = static_cast<uint32_t>(group.prefix.size()) - (group.prefix.back() == kBoundary ? 1 : 0);
        uint64_t rank = group.rank;
        for_each_position(group.prefix, [&](uint32_t position) {
            columns_.positions[rank] = position;
            columns_.next[rank] = text_[position + 1];
            columns_.shared[rank++] = static_cast<uint8_t>(std::min(length, depth_ - 1));
        });
        columns_.shared[group.rank] = static_cast<uint8_t>(group.first_shared);
    }

    template <class Visit>
    void for_each_position(const std::vector<int32_t>& prefix, Visit&& visit) const {
        const auto end = static_cast<uint32_t>(text_.size());
        for (uint32_t position = 1; position < end; ++position) {
            if (text_[position] == kBoundary) continue;
            uint32_t length = 0;  // the boundary in front of the text ends every comparison in time
            while (length < prefix.size() && text_[position - length] == prefix[length]) ++length;
            if (length == prefix.size()) visit(position);
        }
    }

    std::span<const int32_t> text_;
    std::span<const uint64_t> counts_;  // [vocabulary] occurrences of each token
    uint32_t vocabulary_;
    uint32_t depth_;            // tokens that are compared
    RankColumns columns_;
    uint64_t most_, usual_;     // entries per group
    std::vector<Group> groups_;
};

}  // namespace

void sort_ranks(std::span<const int32_t> text, std::span<const uint64_t> counts, const SortLimits& limits,
                const RankColumns& columns, const std::function<void(double)>& progress) {
    Sorter sorter(text, counts, limits, columns);
    std::vector<Group> groups = sorter.plan();
    // Large groups first, so that the threads end together.
    std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.size > b.size; });
    uint64_t most = 0;
    for (const Group& group : groups) most = std::max(most, sorter.room(group));
    std::atomic<uint64_t> done = 0;
    std::vector<std::unique_ptr<Entry[]>> memory(limits.threads);
    in_parallel(limits.threads, groups.size(), [&](size_t i, uint32_t thread) {
        if (!memory[thread]) memory[thread] = std::make_unique_for_overwrite<Entry[]>(most);
        sorter.sort(groups[i], memory[thread].get());
        done += groups[i].size;
        if (thread == 0) progress(static_cast<double>(done) / static_cast<double>(text.size()));
    });
}

}  // namespace foresay::frozen
