// Draft trees as arrays, as DraftBatch of src/foresay/draft.py has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace foresay {

struct Drafts {
    std::span<const int32_t> tokens, parents;  // [nodes]; a parent counts in its own draft, -1: the last committed token
    std::span<const int32_t> offsets;          // nodes of draft b: from offsets[b] up to offsets[b + 1]
    const float* scores;                       // [nodes], or null
};

/// Trees of many requests, one after the other.
struct DraftTrees {
    std::vector<int32_t> tokens, parents;  // as those of Drafts
    std::vector<float> scores;
    std::vector<int32_t> offsets{0};

    void clear();
    void append(const DraftTrees& more);
    /// Ends a tree: the nodes behind the last one's end.
    void end_tree() { offsets.push_back(static_cast<int32_t>(tokens.size())); }
};

/// Refuses what are no trees with parents first, tokens that are no ids, and scores that are no chances or above their parent's.
/// Throws InputError.
void check_drafts(const Drafts& drafts);
/// Refuses offsets that do not rise from 0 to `nodes`. Throws InputError.
void check_offsets(std::span<const int32_t> offsets, size_t nodes);
/// Refuses offsets likewise, and parents that do not come before their children. Throws InputError.
void check_parents(std::span<const int32_t> parents, std::span<const int32_t> offsets);

}  // namespace foresay
