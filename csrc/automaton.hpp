// An online suffix automaton over many sequences that grow at the same time.
//
// Each sequence is thought to begin with a separator of its own, so every prefix is unique and the state of a prefix *is*
// the position of its last token: it occurs once, its only edge is the next token, and neither needs storage. What is
// stored for a position is its token and its suffix link: 8 bytes. All other states are "inner" states: contexts that were
// seen at least twice, with different tokens before them. They hold their continuations, sorted by how often each was seen.
//
// For every context of up to kCounted tokens the counts, the total, and the latest continuation are exact after every
// extend. Longer contexts keep their edges exact and their counts as lower bounds; this is what keeps an extend bounded
// on periodic text, where a suffix-link chain is as long as the text.
//
// This file knows nothing of scores, trees, requests or tenants.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "edges.hpp"
#include "pile.hpp"

namespace foresay {

/// A state: an inner state if the top bit is set, a position otherwise.
using State = uint32_t;

class Automaton {
public:
    static constexpr State kInner = uint32_t{1} << 31;
    static constexpr State kRoot = kInner;
    static constexpr uint32_t kNoPosition = kInner - 1;
    static constexpr uint32_t kMaxPositions = kInner - 2;
    static constexpr uint32_t kCounted = 32;

    /// A growing sequence's place in the automaton. Owned by the caller; valid as long as the automaton.
    struct Sequence {
        uint32_t last = kNoPosition;  // position of the last token
        State counted = kRoot;        // the suffix that counting starts from: see extend()
        uint32_t length = 0;
        uint32_t id = 0;
    };

    /// The longest suffix of some text that occurs in the automaton. Valid as long as the automaton; text added later
    /// may split the state, so it passes through settle() before use.
    struct Cursor {
        State state = kRoot;
        uint32_t length = 0;
    };

    /// One context on a suffix-link chain and what followed it.
    struct Context {
        uint32_t length;        // tokens of the context that match
        uint32_t total;         // how often it was followed by something
        Token latest;           // what followed it last
        uint32_t size;          // different continuations
        const Token* tokens;    // [size], by falling count
        const uint32_t* counts; // [size]
        const State* targets;   // [size]
    };

    Automaton();

    Sequence begin();

    /// Appends a token to a sequence. Amortised O(1) link steps plus at most kCounted counting steps.
    void extend(Sequence& sequence, Token token);

    /// The longest suffix of the sequence that occurs elsewhere too.
    Cursor cursor(const Sequence& sequence) const noexcept;

    /// Moves the cursor to the longest suffix of (its text + token) that occurs.
    void advance(Cursor& cursor, Token token) const noexcept;

    /// Drops tokens from the front of the cursor's text until at most `length` are left.
    void shorten(Cursor& cursor, uint32_t length) const noexcept;

    /// Calls visit(const Context&) for the cursor's context and its suffix-link ancestors, longest first, at most `most` of
    /// them, and then for the empty context, until it returns false. What the visitor is shown is valid until the next
    /// extend; contexts that nothing has followed yet are left out.
    template <class Visit>
    void contexts(Cursor cursor, uint32_t most, Visit&& visit) const;

    /// The position after `position` in its sequence, or kNoPosition at the sequence's end.
    uint32_t next(uint32_t position) const noexcept;
    Token token_at(uint32_t position) const noexcept { return positions_[position].token; }

    /// End positions of a context's first occurrence, and of the latest that has been continued (or kNoPosition).
    uint32_t first(State state) const noexcept;
    uint32_t latest(State state) const noexcept;

    /// Which sequence a position belongs to, and the offset there.
    struct Place {
        uint32_t sequence;
        uint32_t offset;
    };
    Place place(uint32_t position) const noexcept;

    uint32_t size() const noexcept { return token_count_; }
    uint32_t inner_states() const noexcept { return nodes_.size(); }
    uint64_t link_steps() const noexcept { return link_steps_; }
    size_t bytes() const noexcept;

    void prefetch(State state) const noexcept {
        if (state & kInner) nodes_.prefetch(state & ~kInner);
        else positions_.prefetch(state);
    }

    /// Every structural promise, checked in O(size). Throws std::logic_error with the first that is broken.
    void check_integrity() const;

    /// Everything about one state, for tests and inspection.
    struct Description {
        uint32_t length, shortest, total, first, latest;
        State link;
        std::vector<Token> tokens;
        std::vector<uint32_t> counts;
        std::vector<State> targets;
    };
    Description describe(State state) const;

private:
    static constexpr uint32_t kBlock = 32;  // positions are handed to sequences in runs of this many
    static constexpr Token kUnwritten = -1;

    struct Position {
        Token token;
        State link;
    };
    struct Block {
        uint32_t next;      // the sequence's next block, or kNoPosition
        uint32_t sequence;
        uint32_t offset;    // of its first position in the sequence
    };
    struct Node {           // 32 bytes: two to a cache line
        uint32_t length;    // tokens of its longest context
        State link;
        EdgeList edges;
        uint32_t total;
        Token latest_token;
        uint32_t latest;    // position of the latest occurrence that was continued
        uint32_t first;     // position of the first occurrence
    };

    Node& node(State state) noexcept { return nodes_[state & ~kInner]; }
    const Node& node(State state) const noexcept { return nodes_[state & ~kInner]; }
    State link(State state) const noexcept {
        return state & kInner ? node(state).link : positions_[state].link;
    }
    State& link(State state) noexcept { return state & kInner ? node(state).link : positions_[state].link; }
    uint32_t shortest(State state) const noexcept { return state == kRoot ? 0 : node(link(state)).length + 1; }
    bool is_counted(State state) const noexcept { return shortest(state) <= kCounted; }
    void settle(Cursor& cursor) const noexcept;

    uint32_t append_position(Sequence& sequence, Token token);
    State split(State from, uint32_t length);
    State counted_suffix(State longest, State guess) noexcept;
    void note(Node& node, Token token, uint32_t position) noexcept;

    Pile<Position> positions_;
    Pile<Block> blocks_;
    Pile<Node> nodes_;
    Edges edges_;
    uint32_t token_count_ = 0;
    uint32_t sequence_count_ = 0;
    uint64_t link_steps_ = 0;
};

inline void Automaton::settle(Cursor& cursor) const noexcept {
    while (cursor.length > 0) {
        const State up = link(cursor.state);
        if (cursor.length > node(up).length) return;
        cursor.state = up;
    }
}

template <class Visit>
void Automaton::contexts(Cursor cursor, uint32_t most, Visit&& visit) const {
    settle(cursor);
    State state = cursor.state;
    uint32_t length = cursor.length;
    if (!(state & kInner)) {
        --most;
        // A context that occurred once: what follows it there is all that is known.
        const uint32_t follower = next(state);
        if (follower != kNoPosition) {
            const Token token = positions_[follower].token;
            const uint32_t one = 1;
            if (!visit(Context{length, 1, token, 1, &token, &one, &follower})) return;
        }
        state = positions_[state].link;
        length = node(state).length;
    }
    for (;; --most) {
        if (most == 0) {
            state = kRoot;
            length = 0;
        }
        const Node& here = node(state);
        if (here.total > 0) {
            const Edges::View edges = edges_.view(here.edges);
            if (!visit(Context{length, here.total, here.latest_token, edges.size, edges.tokens, edges.counts, edges.targets}))
                return;
        }
        if (state == kRoot) return;
        state = here.link;
        length = node(state).length;
    }
}

}  // namespace foresay
