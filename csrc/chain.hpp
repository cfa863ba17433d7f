// Draft chains: the one continuation that is most likely to be kept, token by token.
//
// A tree looks far and wide; of that a chain can use only the best, so it looks at less: in each text the longest context
// that anything has followed, and there at the most frequent continuation and at the latest. What was written is asked
// first, and the history of finished texts only where that leaves doubt.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "automaton.hpp"
#include "calibration.hpp"
#include "tree.hpp"

namespace foresay {

/// A request's place in a segment of the history, which is read on only when it is asked.
struct Bookmark {
    uint64_t segment;
    Automaton::Cursor cursor;
    uint32_t read;  // tokens of the request's text that the cursor has seen
};

/// Grows one chain, a little at a time, so that several growers can take turns: what one reads next is fetched from memory
/// while the others work. Keeps only scratch memory between chains.
class ChainGrower {
public:
    /// A text to draft from. Borrowed; valid during one call.
    struct Place {
        Kind kind;
        const Automaton* automaton;
        Automaton::Cursor cursor;
        uint32_t read;       // tokens of the text and the draft that the cursor has seen
        Bookmark* bookmark;  // to be moved to the text's end, if the cursor is not there yet
    };
    std::vector<Place> places;  // to be filled before start(); the history comes last

    /// Begins a chain of at most `budget` nodes, none with a score below `floor`, behind `text`. `considered` is written until
    /// step() returns false.
    void start(std::span<const Token> text, uint32_t budget, float floor, const Calibration& calibration, const TokenLean* lean,
               Considered& considered);
    /// Does a part of the work; false when the chain is complete.
    bool step();
    /// Appends the complete chain.
    void append_to(PackedTrees& out) const;

private:
    enum class Stage : uint8_t { fetch, ask, read, fetch_read };
    static constexpr uint32_t kMostCandidates = 16;

    /// Where a token that was found leads in the place that was asked last, if the length is not 0.
    struct Child {
        Token token;
        Automaton::Cursor cursor;
    };

    void open();
    bool fetch(const Place& place) const;
    bool read_on(Place& place) const;
    bool choose();
    bool doubtful() const;
    void gather(size_t index);
    void note(Kind kind, Token token, uint32_t entry, uint32_t length, uint32_t count);
    bool promising(const Candidate& candidate, float needed);
    Token token_at(uint32_t position) const {
        return position < text_.size() ? text_[position] : considered_->nodes[position - static_cast<uint32_t>(text_.size()) + 1].token;
    }

    std::span<const Token> text_;
    const Calibration* calibration_ = nullptr;
    const TokenLean* lean_ = nullptr;
    Considered* considered_ = nullptr;
    uint32_t room_ = 0;    // nodes that may still be taken
    float floor_ = 0;      // the least score of a node
    float least_ = 0;      // evidence with lower log odds cannot matter
    uint32_t node_ = 0;    // the chain's end
    uint32_t read_ = 0;    // tokens of text and draft up to there
    Stage stage_ = Stage::fetch;
    size_t at_ = 0;        // the place that is being asked
    std::vector<Child> children_;  // [places]

    // What may follow the chain's end: candidates of `considered_` from begin_ on.
    uint32_t begin_ = 0;
    uint32_t num_found_ = 0;
    Candidate* found_ = nullptr;
    std::array<uint32_t, kKinds> longest_{};  // context of each kind,
    std::array<uint16_t, kKinds> unseen_{};   // and the entry that stands for a token not seen after it
    uint8_t asked_ = 0;                       // bit set of the kinds that had something to say
};

}  // namespace foresay
