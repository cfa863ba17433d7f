// An online suffix automaton over many sequences that grow at the same time.
//
// Each sequence is thought to begin with a separator of its own, so every prefix is unique and the state of a prefix *is*
// the position of its last token: it occurs once, its only edge is the next token, and neither needs storage. What is
// stored for a position is its token and its suffix link: 8 bytes. All other states are "inner" states: contexts that were
// seen at least twice, with different tokens before them. They hold their continuations, sorted by how often each was seen.
//
// Two ways to count, chosen for the whole automaton:
//   novelties    a continuation is counted after a context unless a longer context had seen it already (the "update
//                exclusion" of PPM compressors). Amortised O(1), and the better evidence for drafting.
//   occurrences  every occurrence is counted. Exact for contexts of up to kCounted tokens; longer ones keep lower bounds,
//                which keeps an extend bounded on periodic text, where a suffix-link chain is as long as the text. The
//                latest occurrence in a single sequence is exact at any length: it is searched for when it is asked for.
// The edges themselves are exact either way, and so is the first occurrence.
//
// This file knows nothing of scores, trees, requests or tenants.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "suffix/edges.hpp"
#include "suffix/arena.hpp"

namespace foresay {

enum class Counting : uint8_t { novelties, occurrences };

/// A state: an inner state if the top bit is set, a position otherwise.
using State = uint32_t;

class Automaton {
public:
    static constexpr State kInner = uint32_t{1} << 31;
    static constexpr State kRoot = kInner;
    static constexpr uint32_t kNoPosition = kInner - 1;
    static constexpr uint32_t kMaxPositions = kInner - 2;
    static constexpr uint32_t kCounted = 16;
    static constexpr uint32_t kOnItsWay = UINT32_MAX;  // the length of a cursor between two calls of advance_once()

    /// A growing sequence's place in the automaton. Owned by the caller; valid as long as the automaton.
    struct Sequence {
        uint32_t last = kNoPosition;  // position of the last token
        State counted = kRoot;        // the suffix that counting starts from: see extend()
        uint32_t length = 0;
        uint32_t id = 0;
    };

    /// The longest suffix of some text that occurs in the automaton. Good until the next extend of any sequence, which may
    /// split its state: settle() makes it good again.
    struct Cursor {
        State state = kRoot;
        uint32_t length = 0;
    };

    /// One context on a suffix-link chain and what followed it.
    struct Context {
        uint32_t length;        // tokens of the context that match
        uint32_t total;         // sum of the counts
        Token latest;           // the last that was counted
        uint32_t size;          // different continuations
        const Token* tokens;    // [size], by falling count
        const uint32_t* counts; // [size]
        const State* targets;   // [size]
    };

    explicit Automaton(Counting counting = Counting::novelties);

    Sequence begin();

    /// Appends a token to a sequence. Amortised O(1) link steps; to count occurrences, at most kCounted more. Throws
    /// std::bad_alloc or CapacityError. The automaton is broken() then: some states know the token and others do not. (To ask
    /// for all memory ahead would need a second walk, which makes an extend 5 % slower.)
    void extend(Sequence& sequence, Token token);

    /// The state of the longest suffix of the sequence that occurs elsewhere too, and the suffix.
    State link(const Sequence& sequence) const noexcept { return sequence.last == kNoPosition ? kRoot : positions_[sequence.last].link; }
    Cursor cursor(const Sequence& sequence) const noexcept;

    /// Makes a cursor from before the last extends good again.
    void settle(Cursor& cursor) const noexcept;

    /// Moves the cursor to the longest suffix of (its text + token) that occurs. Amortised O(1) over a text; with `most`, at
    /// most that many suffixes are tried before a single token has to do.
    void advance(Cursor& cursor, Token token, uint32_t most = UINT32_MAX) const noexcept;

    /// The same, a suffix at a time: whether the cursor has arrived. Until it has, it is good for this alone.
    bool advance_once(Cursor& cursor, Token token) const noexcept {
        if (!(cursor.state & kInner)) {
            const uint32_t follower = next(cursor.state);
            if (follower != kNoPosition && positions_[follower].token == token) {
                cursor = {follower, cursor.length + 1};
                return true;
            }
            cursor = {positions_[cursor.state].link, kOnItsWay};
            return false;
        }
        const Node& here = node(cursor.state);
        const uint32_t slot = edges_.find(here.edges, token);
        if (slot != Edges::kNone) {
            cursor = {edges_.view(here.edges).targets[slot], (cursor.length == kOnItsWay ? here.length : cursor.length) + 1};
            return true;
        }
        const bool root = cursor.state == kRoot;
        cursor = root ? Cursor{} : Cursor{here.link, kOnItsWay};
        return root;
    }

    /// Drops tokens from the front of the cursor's text until at most `length` are left.
    void shorten(Cursor& cursor, uint32_t length) const noexcept;

    /// The contexts of a cursor: itself and its suffix-link ancestors, longest first, without the empty one. Those that
    /// nothing has followed yet are left out. What next() shows is valid until the next extend.
    class Walk;
    Walk walk(Cursor cursor) const noexcept;

    /// The first of these contexts, and the continuation that was counted most often there; false if there is none.
    struct Best {
        uint32_t length, total;
        Token latest;
        Edges::First first;
    };
    bool best(Cursor cursor, Best& out) const noexcept;

    /// The empty context: what is usual in this text.
    Context usual() const noexcept { return context_of(node(kRoot), 0); }
    /// How often a token was counted there.
    uint32_t usual(Token token) const noexcept {
        const EdgeList& edges = node(kRoot).edges;
        const uint32_t slot = edges_.find(edges, token);
        return slot == Edges::kNone ? 0 : edges_.view(edges).counts[slot];
    }

    /// The position after `position` in its sequence, or kNoPosition at the sequence's end.
    uint32_t next(uint32_t position) const noexcept;
    Token token_at(uint32_t position) const noexcept { return positions_[position].token; }

    /// The state of the longest contexts that are shorter than all of this state's; not to be asked of the root.
    State link(State state) const noexcept {
        return state & kInner ? node(state).link : positions_[state].link;
    }
    /// Tokens of a state's shortest context.
    uint32_t shortest(State state) const noexcept { return state == kRoot ? 0 : node(link(state)).length + 1; }

    /// End positions of a context's first occurrence, and of the latest that a token follows (or kNoPosition); where
    /// novelties are counted, of the latest whose continuation was counted. To count occurrences, and for a context of more
    /// than kCounted tokens, the latest takes time in proportion to the context and the text; it may throw std::bad_alloc.
    uint32_t first(State state) const noexcept;
    uint32_t latest(State state) const;

    /// Which sequence a position belongs to, and the offset there.
    struct Place {
        uint32_t sequence;
        uint32_t offset;
    };
    Place place(uint32_t position) const noexcept;

    /// Whether an extend has failed. Then extend() refuses; its owner refuses the rest.
    bool broken() const noexcept { return broken_; }

    uint32_t size() const noexcept { return token_count_; }
    uint32_t inner_states() const noexcept { return nodes_.size(); }
    uint64_t link_steps() const noexcept { return link_steps_; }
    size_t bytes() const noexcept;

    /// Asks for the automaton's own memory: what an extend reads of it, as a rule.
    void prefetch_head() const noexcept {
        constexpr size_t kHot = 640;
        for (size_t line = 0; line < kHot; line += 64) foresay::prefetch(reinterpret_cast<const char*>(this) + line);
    }
    /// Once that is there, for the memory of a state; and once that is there, for what a walk from it reads next.
    void prefetch(State state) const noexcept {
        if (state & kInner) nodes_.prefetch(state & ~kInner);
        else positions_.prefetch(state);
    }
    bool prefetch_next(State state) const noexcept {  // false: it is there already
        if (!(state & kInner)) return false;
        if (state != kRoot) nodes_.prefetch(node(state).link & ~kInner);
        return edges_.prefetch(node(state).edges);
    }
    /// Likewise for an advance by `token`.
    bool prefetch_next(State state, Token token) const noexcept {
        if (!(state & kInner)) return false;
        if (state != kRoot) nodes_.prefetch(node(state).link & ~kInner);
        return edges_.prefetch(node(state).edges, token);
    }
    /// For what the sequence's next extend reads, which begins at `state`.
    void prefetch_extend(const Sequence& sequence, State state) const noexcept {
        if (sequence.last != kNoPosition) positions_.prefetch(sequence.last);
        prefetch(state);
        prefetch(kRoot);
    }

    /// How often each inner state's contexts occur, ends of sequences included: one pass over the link tree, O(size).
    std::vector<uint32_t> occurrences() const;

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
    struct alignas(64) Node {  // one cache line
        EdgeList edges;
        uint32_t length;    // tokens of its longest context
        State link;
        uint32_t total;
        Token latest_token;
        uint32_t latest;    // position of the latest occurrence whose continuation was counted
        uint32_t first;     // position of the first occurrence
    };

    Node& node(State state) noexcept { return nodes_[state & ~kInner]; }
    const Node& node(State state) const noexcept { return nodes_[state & ~kInner]; }
    State& link(State state) noexcept { return state & kInner ? node(state).link : positions_[state].link; }
    bool is_counted(State state) const noexcept { return shortest(state) <= kCounted; }
    Context context_of(const Node& node, uint32_t length) const noexcept {
        const Edges::ConstView edges = edges_.view(node.edges);
        return {length, node.total, node.latest_token, edges.size, edges.tokens, edges.counts, edges.targets};
    }

    void append(Sequence& sequence, Token token);
    uint32_t append_position(Sequence& sequence, Token token);
    State split(State from, uint32_t length);
    State counted_suffix(State longest, State previous) noexcept;
    void note(Node& node, Token token, uint32_t position) noexcept;

    Counting counting_;
    bool broken_ = false;
    uint32_t token_count_ = 0;
    uint32_t sequence_count_ = 0;
    uint64_t link_steps_ = 0;
    Arena<Node> nodes_;
    Arena<Position> positions_;
    Edges edges_;
    Arena<Block> blocks_;
};

inline uint32_t Automaton::next(uint32_t position) const noexcept {
    const uint32_t follower = position + 1;
    if (follower % kBlock != 0) return positions_[follower].token == kUnwritten ? kNoPosition : follower;
    const uint32_t block = blocks_[position / kBlock].next;
    return block == kNoPosition ? kNoPosition : block * kBlock;
}

inline void Automaton::settle(Cursor& cursor) const noexcept {
    while (cursor.length > 0) {
        const State up = link(cursor.state);
        if (cursor.length > node(up).length) return;
        cursor.state = up;
    }
}

class Automaton::Walk {
public:
    Walk(const Automaton& automaton, Cursor cursor) noexcept
        : automaton_(&automaton), state_(cursor.length > 0 ? cursor.state : kRoot), length_(cursor.length) {}

    bool next(Context& context) noexcept {
        while (state_ != kRoot) {
            const State state = state_;
            if (state & kInner) {
                const Node& here = automaton_->node(state);
                const uint32_t length = length_ > 0 ? length_ : here.length;
                state_ = here.link;
                automaton_->nodes_.prefetch(state_ & ~kInner);
                length_ = 0;
                if (here.total == 0) continue;
                context = automaton_->context_of(here, length);
                return true;
            }
            // A context that occurred once: what follows it there is all that is known.
            const uint32_t length = length_;
            state_ = automaton_->positions_[state].link;
            length_ = 0;
            follower_ = automaton_->next(state);
            if (follower_ == kNoPosition) continue;
            token_ = automaton_->positions_[follower_].token;
            context = {length, 1, token_, 1, &token_, &kOnce, &follower_};
            return true;
        }
        return false;
    }

private:
    static constexpr uint32_t kOnce = 1;

    const Automaton* automaton_;
    State state_;
    uint32_t length_;  // of the next context; 0: as long as the state's longest
    uint32_t follower_ = 0;
    Token token_ = 0;
};

inline bool Automaton::best(Cursor cursor, Best& out) const noexcept {
    uint32_t length = cursor.length;
    for (State state = length > 0 ? cursor.state : kRoot; state != kRoot;) {
        if (state & kInner) {
            const Node& here = node(state);
            if (here.total > 0) {
                out = {length > 0 ? length : here.length, here.total, here.latest_token, edges_.first(here.edges)};
                return true;
            }
        } else if (const uint32_t follower = next(state); follower != kNoPosition) {
            const Token token = positions_[follower].token;
            out = {length, 1, token, {token, follower, 1}};
            return true;
        }
        state = link(state);
        length = 0;  // as long as the state's longest
    }
    return false;
}

inline Automaton::Walk Automaton::walk(Cursor cursor) const noexcept { return Walk(*this, cursor); }

}  // namespace foresay
