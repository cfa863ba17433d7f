#include "suffix/automaton.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace foresay {

Automaton::Automaton(Counting counting) : counting_(counting) {
    const uint32_t root = nodes_.append();
    nodes_[root] = Node{{}, 0, kNoPosition, 0, kUnwritten, kNoPosition, kNoPosition};
}

Automaton::Sequence Automaton::begin() {
    Sequence sequence;
    sequence.id = sequence_count_++;
    return sequence;
}

uint32_t Automaton::append_position(Sequence& sequence, Token token) {
    uint32_t position;
    if (sequence.length % kBlock == 0) {
        if (positions_.size() > kMaxPositions - kBlock)
            throw CapacityError("an automaton holds at most 2147483646 tokens; start a new one");
        position = positions_.append(kBlock);
        for (uint32_t i = 0; i < kBlock; ++i) positions_[position + i].token = kUnwritten;
        const uint32_t block = blocks_.append();
        blocks_[block] = Block{kNoPosition, sequence.id, sequence.length};
        if (sequence.last != kNoPosition) blocks_[sequence.last / kBlock].next = block;
    } else {
        position = sequence.last + 1;
    }
    positions_[position] = Position{token, kRoot};
    sequence.last = position;
    ++sequence.length;
    ++token_count_;
    return position;
}

Automaton::Place Automaton::place(uint32_t position) const noexcept {
    const Block& block = blocks_[position / kBlock];
    return {block.sequence, block.offset + position % kBlock};
}

inline void Automaton::note(Node& node, Token token, uint32_t position) noexcept {
    ++node.total;
    node.latest_token = token;
    node.latest = position;
}

// The contexts that end at the sequence's last token are the suffix-link chain of that position. Appending a token means
// that every one of them is now followed by it: from the longest on, those that never were get a new edge to the new
// position; the first that already was decides the new position's own link (by splitting a state, at most one); and from
// there on the existing edges are counted.
inline void Automaton::append(Sequence& sequence, Token token) {
    const uint32_t before = sequence.last;
    const State longest = before == kNoPosition ? kRoot : positions_[before].link;
    State state = longest;
    const uint32_t position = append_position(sequence, token);

    uint32_t slot = Edges::kNone;
    for (;;) {
        Node& here = node(state);
        slot = edges_.find(here.edges, token);
        if (slot != Edges::kNone) break;
        edges_.add(here.edges, token, position);
        note(here, token, before);
        ++link_steps_;
        if (state == kRoot) {
            sequence.counted = kRoot;
            return;  // a token never seen: its position hangs from the root
        }
        state = here.link;
    }

    // `state` has an edge already. The chain above it has one as well.
    const State target = edges_.view(node(state).edges).targets[slot];
    State linked = target;
    if (!(target & kInner) || node(target).length != node(state).length + 1) {
        linked = split(target, node(state).length + 1);
        for (State s = state;;) {  // shorter contexts that led to the old state lead to the split one
            Node& here = node(s);
            const uint32_t at = edges_.find(here.edges, token);
            uint32_t& led_to = edges_.view(here.edges).targets[at];
            if (led_to != target) break;
            led_to = linked;
            ++link_steps_;
            if (s == kRoot) break;
            s = here.link;
        }
    }
    positions_[position].link = linked;

    if (counting_ == Counting::novelties) {
        Node& here = node(state);
        edges_.count(here.edges, slot);
        note(here, token, before);
        ++link_steps_;
        return;
    }
    const State counted = counted_suffix(longest, sequence.counted);
    if (!is_counted(state)) state = counted;
    for (;;) {
        Node& here = node(state);
        edges_.count(here.edges, edges_.find(here.edges, token));
        note(here, token, before);
        ++link_steps_;
        if (state == kRoot) break;
        state = here.link;
    }
    // Where counting starts next time.
    if (is_counted(linked)) {
        sequence.counted = linked;
    } else {
        const Node& here = node(counted);
        sequence.counted = edges_.view(here.edges).targets[edges_.find(here.edges, token)];
    }
}

void Automaton::extend(Sequence& sequence, Token token) {
    if (broken_) throw StateError("this automaton failed before, amid an extend; expected a new automaton");
    try {
        append(sequence, token);
    } catch (...) {
        broken_ = true;
        throw;
    }
}

/// The longest suffix on the chain of `longest` that is counted. `previous` was so at the sequence's previous extend; other
/// sequences may have split it, or made longer contexts, since.
State Automaton::counted_suffix(State longest, State previous) noexcept {
    State state = longest;
    if (!is_counted(longest) && (!(previous & kInner) || node(previous).length >= kCounted)) state = previous;
    while (!is_counted(state)) {
        state = link(state);
        ++link_steps_;
    }
    return state;
}

/// Makes the contexts of `from` with at most `length` tokens a state of their own, with the same past so far.
State Automaton::split(State from, uint32_t length) {
    const uint32_t index = nodes_.append();
    const State made = index | kInner;
    Node fresh{{}, length, link(from), 0, kUnwritten, kNoPosition, 0};
    if (from & kInner) {
        const Node& old = node(from);
        fresh.total = old.total;
        fresh.latest_token = old.latest_token;
        fresh.latest = old.latest;
        fresh.first = old.first;
        fresh.edges = edges_.copy(old.edges);
    } else {
        fresh.first = from;
        const uint32_t follower = next(from);
        if (follower != kNoPosition) {
            const Token token = positions_[follower].token;
            edges_.add(fresh.edges, token, follower);
            note(fresh, token, from);
        }
    }
    nodes_[index] = fresh;
    link(from) = made;
    return made;
}

Automaton::Cursor Automaton::cursor(const Sequence& sequence) const noexcept {
    if (sequence.last == kNoPosition) return {};
    const State state = positions_[sequence.last].link;
    return {state, node(state).length};
}

void Automaton::advance(Cursor& cursor, Token token, uint32_t most) const noexcept {
    State state = cursor.state;
    if (!(state & kInner)) {
        const uint32_t follower = next(state);
        if (follower != kNoPosition && positions_[follower].token == token) {
            cursor.state = follower;
            ++cursor.length;
            return;
        }
        state = positions_[state].link;
        cursor.length = node(state).length;
    }
    for (;;) {
        const Node& here = node(state);
        const uint32_t slot = edges_.find(here.edges, token);
        if (slot != Edges::kNone) {
            cursor.state = edges_.view(here.edges).targets[slot];
            ++cursor.length;
            return;
        }
        if (state == kRoot) {
            cursor = {};
            return;
        }
        state = --most == 0 ? kRoot : here.link;
        cursor.length = node(state).length;
    }
}

void Automaton::shorten(Cursor& cursor, uint32_t length) const noexcept {
    cursor.length = std::min(cursor.length, length);
    settle(cursor);
    if (cursor.length == 0) cursor.state = kRoot;
}

uint32_t Automaton::first(State state) const noexcept { return state & kInner ? node(state).first : state; }

uint32_t Automaton::latest(State state) const {
    if (!(state & kInner)) return next(state) == kNoPosition ? kNoPosition : state;
    if (counting_ == Counting::novelties || is_counted(state) || sequence_count_ > 1) return node(state).latest;
    // Nobody counted where a long context came last. In a single sequence positions are places in its text, so it is looked for
    // there, backwards from the latest place of its counted suffix, as Knuth, Morris and Pratt do.
    State counted = state;
    while (!is_counted(counted)) counted = node(counted).link;
    const uint32_t end = node(state).first, length = shortest(state);
    const auto token = [&](uint32_t i) { return positions_[end - i].token; };  // of the context, its last token first
    std::vector<uint32_t> shorter(length, 0);  // of a match of i + 1 tokens: the next shorter one
    for (uint32_t i = 1, match = 0; i < length; ++i) {
        while (match > 0 && token(i) != token(match)) match = shorter[match - 1];
        shorter[i] = match += token(i) == token(match);
    }
    for (uint32_t at = node(counted).latest + 1, match = 0; at-- > 0;) {
        while (match > 0 && positions_[at].token != token(match)) match = shorter[match - 1];
        match += positions_[at].token == token(match);
        if (match == length) return at + length - 1;
    }
    return kNoPosition;
}

std::vector<uint32_t> Automaton::occurrences() const {
    std::vector<uint32_t> counts(nodes_.size(), 0), order(nodes_.size());
    for (uint32_t p = 0; p < positions_.size(); ++p)
        if (positions_[p].token != kUnwritten) ++counts[positions_[p].link & ~kInner];
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) { return nodes_[a].length > nodes_[b].length; });
    for (const uint32_t n : order)  // a link leads to a shorter context, so children come before their parents
        if (n != 0) counts[nodes_[n].link & ~kInner] += counts[n];
    return counts;
}

size_t Automaton::bytes() const noexcept {
    return sizeof(*this) + positions_.bytes() + blocks_.bytes() + nodes_.bytes() + edges_.bytes();
}

Automaton::Description Automaton::describe(State state) const {
    if (state & kInner ? (state & ~kInner) >= nodes_.size() : state >= positions_.size())
        throw InputError("state ", state, " does not exist in this automaton");
    Description out{};
    out.link = state == kRoot ? kRoot : link(state);
    out.shortest = shortest(state);
    out.first = first(state);
    out.latest = latest(state);
    if (state & kInner) {
        const Node& here = node(state);
        out.length = here.length;
        out.total = here.total;
        const Edges::ConstView edges = edges_.view(here.edges);
        out.tokens.assign(edges.tokens, edges.tokens + edges.size);
        out.counts.assign(edges.counts, edges.counts + edges.size);
        out.targets.assign(edges.targets, edges.targets + edges.size);
    } else {
        out.length = place(state).offset + 1;
        const uint32_t follower = next(state);
        if (follower != kNoPosition) {
            out.total = 1;
            out.tokens = {positions_[follower].token};
            out.counts = {1};
            out.targets = {follower};
        }
    }
    return out;
}

void Automaton::check_integrity() const {
    if (broken_) throw std::logic_error("the automaton is broken: an extend of it has failed");
    const auto require = [](bool holds, const char* promise, State state) {
        if (!holds) throw std::logic_error("automaton state " + std::to_string(state) + " breaks: " + promise);
    };
    const auto valid = [this](State state) {
        return state & kInner ? (state & ~kInner) < nodes_.size()
                              : state < positions_.size() && positions_[state].token != kUnwritten;
    };
    uint32_t written = 0;
    for (uint32_t p = 0; p < positions_.size(); ++p) {
        if (positions_[p].token == kUnwritten) continue;
        ++written;
        require(positions_[p].token >= 0, "a token is not negative", p);
        const State up = positions_[p].link;
        require((up & kInner) && valid(up), "a position links to an inner state", p);
        if (const uint32_t follower = next(p); follower != kNoPosition) {
            require(valid(follower), "a position is followed by a written one", p);
            require(place(follower).offset == place(p).offset + 1 && place(follower).sequence == place(p).sequence,
                    "the next position is the next token of the same sequence", p);
        }
    }
    require(written == token_count_, "every token has a position", kRoot);
    for (uint32_t n = 0; n < nodes_.size(); ++n) {
        const State state = n | kInner;
        const Node& here = nodes_[n];
        if (state != kRoot) {
            require((here.link & kInner) && valid(here.link), "an inner state links to an inner state", state);
            require(node(here.link).length < here.length, "a link leads to a shorter context", state);
            require(valid(here.first) && !(here.first & kInner), "the first occurrence is a position", state);
        }
        const Edges::ConstView edges = edges_.view(here.edges);
        uint64_t sum = 0;
        for (uint32_t e = 0; e < edges.size; ++e) {
            sum += edges.counts[e];
            require(edges.counts[e] > 0 && (e == 0 || edges.counts[e - 1] >= edges.counts[e]),
                    "edges stand by falling count", state);
            require(edges_.find(here.edges, edges.tokens[e]) == e, "every edge can be found", state);
            const State to = edges.targets[e];
            require(valid(to), "an edge leads to a state", state);
            const uint32_t end = to & kInner ? node(to).first : to;
            require(positions_[end].token == edges.tokens[e], "an edge leads to a state that ends with its token", state);
            const uint32_t length = here.length + 1;
            require(length >= shortest(to) && (!(to & kInner) || length <= node(to).length),
                    "an edge leads to the state of the longer context", state);
        }
        require(sum == here.total, "the total is the sum of the counts", state);
    }
}

}  // namespace foresay
