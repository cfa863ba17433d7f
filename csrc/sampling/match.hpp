// Rule match: of each draft, the longest path that the target would have chosen itself, and the target's next token.
//
// src/foresay/sampling/acceptance/match.py is the twin over arrays, and src/foresay/sampling/reference.py the readable one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/rows.hpp"

namespace foresay {

/// Drafts, and where the answers end. Request b has a row after its text, then one after each of its nodes. Valid during one call.
struct Trees {
    std::span<const int32_t> offsets;     // nodes of request b: from offsets[b] up to offsets[b + 1]
    std::span<const int32_t> tokens;      // [nodes]
    std::span<const int32_t> parents;     // [nodes] an earlier node of the same draft, counted in it, or -1
    std::span<const int64_t> room;        // [requests] tokens that the answer may still get
    std::span<const int64_t> stop_owners; // [stops] rising: the request whose answer ends with
    std::span<const int64_t> stops;       // [stops] this token
};

/// The logits of all rows, and by which noise tokens are chosen from them. Valid during one call.
struct MatchInput : Trees {
    LogitRows logits;
    std::span<const float> temperatures;  // [rows] 0: greedy, without noise
    std::span<const uint64_t> seeds;      // [requests]
    std::span<const int64_t> positions;   // [requests] of the next token in the text; a node is one further than its parent
    uint32_t stream;
};

/// Verdicts one after the other, as VerdictBatch of src/foresay/verdict.py has them.
struct Matched {
    std::vector<int32_t> tokens, offsets;     // committed
    std::vector<int32_t> path, path_offsets;  // accepted nodes
    std::vector<int64_t> rows;                // of each token the row that it was chosen from
    std::vector<uint8_t> statuses;            // RowStatus of each request's first row; it has no tokens unless that is kGood
};

/// Only rows that a walk comes by are read. Below equal siblings the deepest path is taken, of equally deep ones the first.
/// Requests run in parallel. Throws InputError for what does not fit, as `choose` does.
Matched match(const MatchInput& input, uint32_t threads, const Kernels& level);

/// The same where the rows' tokens were chosen elsewhere. `codes` [rows] holds a row's token, or -1 - its RowStatus.
Matched follow(const Trees& trees, std::span<const int64_t> codes);

}  // namespace foresay
