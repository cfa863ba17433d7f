// Draft trees: grown best-first from what several sources know, and packed.
//
// A node's score is the estimated chance that it will be committed: its parent's score times its own chance given the
// parent. The tree takes the highest score first, so nodes stand by falling score, parents come before children, and any
// prefix is a tree. What cannot get into the tree is not looked at, so a tree of another size may differ in its weak nodes.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "corpus/frozen.hpp"
#include "suffix/evidence.hpp"

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

/// How far to look for what may follow.
struct Reach {
    uint32_t contexts;  // per source, longest first
    uint32_t width;     // continuations per context
    uint32_t usual;     // filled up to this many candidates with what is usual
    bool until_sure;    // whether shorter contexts are asked only while longer ones leave doubt
};

struct Growth {
    Reach root{3, 8, 16, false};   // after the last committed token
    Reach node{2, 4, 0, true};     // after a draft node
    Reach small{1, 2, 0, true};    // after a node of a tree of at most kSmallTree, grown from one text
    bool chain = false;            // no branches

    static constexpr uint32_t kSmallTree = 8;
};

/// Grows one tree, a node at a time, so that several growers can take turns: what one reads next is fetched from memory
/// while the others work. Keeps only scratch memory between trees.
class TreeGrower {
public:
    // The texts to draft from and the request's place in each: to be filled before start().
    std::vector<Source> sources;
    std::vector<SourceCursor> cursors;
    TokenBias::Recent recent;  // of the request's text

    /// Begins a tree of at most `budget` nodes, none with a score below `floor`. `considered` is written until step() returns
    /// false.
    void start(const Growth& growth, uint32_t budget, float floor, const Calibration& calibration, const TokenBias* bias,
               Considered& considered);
    /// Asks for what the next step() reads: each call for one context more, once what the call before asked for is there.
    void fetch();
    /// Does a part of the work; false when the tree is complete.
    bool step();
    /// What was considered, with the complete tree; null: nothing was asked for.
    const Considered* grown() const noexcept { return considered_; }

private:
    static constexpr uint32_t kFew = 16;             // pending nodes that are compared one by one

    /// A node that may be taken into the tree: its score's bits, which rise with the score, before its candidate's number, so
    /// that of equal scores the earlier is the better.
    using Pending = uint64_t;
    static Pending pending(float score, uint32_t candidate) noexcept {
        return uint64_t{std::bit_cast<uint32_t>(score)} << 32 | (UINT32_MAX - candidate);
    }
    static float score_of(Pending pending) noexcept { return std::bit_cast<float>(static_cast<uint32_t>(pending >> 32)); }
    static uint32_t candidate_of(Pending pending) noexcept { return UINT32_MAX - static_cast<uint32_t>(pending); }

    /// What is known of a candidate beside its evidence.
    struct Origin {
        Automaton::Cursor child;  // where it leads in sources[0], with length 0 if that is not known
        uint32_t parent;
    };
    SourceCursor& place(uint32_t node, size_t source) { return places_[node * static_cast<uint32_t>(sources.size()) + static_cast<uint32_t>(source)]; }
    void take_best();
    uint8_t occurrence(Token token) const;
    void set_least(float score);
    void expand();
    void estimate();
    void gather(size_t source, const Reach& reach);
    void gather_usual(uint32_t most);
    void note(const Evidence::Shape& shape, Token token, uint32_t entry, uint32_t count, Automaton::Cursor child);
    void wait(Pending pending);
    std::span<const Kind> kinds() const noexcept { return {kinds_used_.data(), num_kinds_}; }

    const Calibration* calibration_ = nullptr;
    const TokenBias* bias_ = nullptr;
    const Growth* growth_ = nullptr;
    const Reach* behind_ = nullptr;      // the root
    Considered* considered_ = nullptr;
    uint32_t room_ = 0;                  // nodes that may still be taken
    float floor_ = 0;                    // the least score of a node
    uint32_t node_ = 0;                  // to be expanded next
    bool expandable_ = true;             // whether that may change the tree
    State ahead_ = Automaton::kRoot;     // the context in sources[0] that fetch() goes on with; the root: there is none
    bool ask_usual_ = false;             // whether it asks for what is usual there
    bool gathered_ = false;              // whether what may follow the node was collected, but not estimated yet
    Buffer<SourceCursor> places_;        // [budget + 1, sources] of each node
    Buffer<TokenBias::Recent> recents_;  // [budget + 1] before the children of each node
    Buffer<Pending> pending_;            // [first_pending_, end_pending_) by falling score, never more than there is room for
    Buffer<Origin> origins_;             // [candidates]
    uint32_t first_pending_ = 0, end_pending_ = 0;
    uint32_t num_kinds_ = 0;
    std::array<Kind, kKinds> kinds_used_{};  // of the sources

    float least_ = 0;        // evidence with lower log odds cannot matter
    bool by_floor_ = false;  // whether that is because of the floor
    Evidence evidence_;      // of the present expansion
};

}  // namespace foresay
