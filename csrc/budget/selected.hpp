// The nodes of drafts that are verified, packed, and the way back from them: src/foresay/budget/selected.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drafts.hpp"

namespace foresay {

struct Packed {
    DraftTrees drafts;           // the kept nodes, in their order; scores if there were any
    std::vector<int32_t> nodes;  // the number of each in its own draft
};

/// `keep`: of each node. Throws InputError for what are no drafts, sizes that do not fit, and a node that is kept without its parent.
Packed packed(const Drafts& drafts, std::span<const bool> keep);

/// Paths through the packed drafts as paths through all nodes. `offsets` and `nodes`: those of `packed`.
/// Throws InputError for sizes that do not fit, and for a node that is not there.
std::vector<int32_t> numbered(std::span<const int32_t> path, std::span<const int32_t> path_offsets, std::span<const int32_t> offsets,
                              std::span<const int32_t> nodes);

/// Whether each kept node is on its draft's path. `offsets`: of all nodes. Throws InputError as `numbered`.
std::vector<uint8_t> accepted(std::span<const int32_t> path, std::span<const int32_t> path_offsets, std::span<const int32_t> offsets,
                              std::span<const bool> keep);

}  // namespace foresay
