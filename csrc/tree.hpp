// Draft trees: grown best-first from what several sources know, and packed.
//
// A node's score is the estimated chance that it will be committed: its parent's score times its own chance given the
// parent. The tree takes the highest score first, so any prefix of it is the best tree of that size, parents come before
// children, and scores never rise along a path.
#pragma once

#include <cstdint>
#include <vector>

#include "automaton.hpp"
#include "calibration.hpp"
#include "frozen.hpp"

namespace foresay {

/// One text to draft from: an automaton or a frozen index. Borrowed; valid during one call.
struct Source {
    Kind kind;
    const Automaton* automaton = nullptr;
    const FrozenIndex* index = nullptr;
};

/// The present context's place in a source: which of the two members counts depends on the source.
struct SourceCursor {
    Automaton::Cursor online{};
    FrozenIndex::Cursor frozen{};
};

/// Trees of many requests, one after the other.
struct PackedTrees {
    std::vector<Token> tokens;
    std::vector<int32_t> parents;   // within each tree; -1: the last committed token
    std::vector<float> scores;
    std::vector<uint8_t> kinds;     // bit set of the kinds of source that had seen the token there
    std::vector<int32_t> offsets{0};
};

/// What one growth considered, so that the outcome can be learned from.
struct Considered {
    struct Node {
        Token token;
        int32_t parent;          // index into nodes; the root (the last committed token) is node 0
        float score;
        uint32_t begin, end;     // candidates that were considered after it; equal: it was not expanded
    };
    std::vector<Node> nodes;
    std::vector<Candidate> candidates;

    void clear() noexcept {
        nodes.clear();
        candidates.clear();
    }
};

/// How far to look for what may follow the last committed token, and what may follow a draft node.
struct Reach {
    uint32_t contexts;    // per source, longest first, the empty one besides
    uint32_t width;       // continuations per context
    uint32_t most_usual;  // continuations of the empty context
};

struct Growth {
    Reach root{4, 8, 16};
    Reach node{2, 4, 4};
    bool chain = false;   // no branches
};

/// Grows one tree of at most `budget` nodes, appends it to `out`, and leaves what it considered in `considered`.
class TreeGrower {
public:
    void grow(const std::vector<Source>& sources, const std::vector<SourceCursor>& cursors, const Growth& growth,
              uint32_t budget, const Calibration& calibration, Considered& considered, PackedTrees& out);

private:
    static constexpr uint32_t kMostCandidates = 64;  // per node

    struct Pending {
        float score;
        uint32_t candidate;
        uint32_t parent;
    };

    void expand(const std::vector<Source>& sources, const Growth& growth, uint32_t node, uint32_t room,
                const Calibration& calibration, Considered& considered);
    void gather(const Source& source, const SourceCursor& cursor, const Reach& reach, uint32_t room, float least,
                const Calibration& calibration);
    bool offer(Kind kind, Token token, const Evidence& evidence, float least, const Calibration& calibration);
    void wait(const Pending& pending, uint32_t room);

    std::vector<SourceCursor> cursors_;  // [budget + 1, sources]
    std::vector<Pending> pending_;       // best last
    // Of the present expansion: the candidates so far and their tokens; per kind the longest context, and the entry that
    // stands for a token not seen after it.
    uint32_t num_found_ = 0;
    std::array<Candidate, kMostCandidates> found_;
    std::array<Token, kMostCandidates> tokens_;
    std::array<uint32_t, kKinds> longest_{};
    std::array<uint16_t, kKinds> unseen_{};
};

}  // namespace foresay
