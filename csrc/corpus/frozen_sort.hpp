// Sorting the ranks of a frozen index in bounded memory, on several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace foresay::frozen {

/// Where the sorted ranks go: mapped sections of the file, each with one element per rank.
struct RankColumns {
    uint32_t* positions;
    int32_t* next;
    uint8_t* shared;
};

struct SortLimits {
    uint64_t memory_bytes;      // for the entries that are being sorted, over all threads
    uint32_t threads;
    uint32_t max_context;
};

/// Fills the columns from the text (with its boundaries) and the number of times each token occurs in it. The result
/// does not depend on memory or threads. `progress` gets fractions on the calling thread and may throw.
void sort_ranks(std::span<const int32_t> text, std::span<const uint64_t> counts, const SortLimits& limits,
                const RankColumns& columns, const std::function<void(double)>& progress);

}  // namespace foresay::frozen
