// Draft chains: the one continuation that is most likely to be accepted, token by token.
//
// A tree looks far and wide; of that a chain can use only the best, so it looks at less. In each text it looks at the
// longest context that anything has followed, and there at the most frequent continuation and at the latest. The history of
// finished texts is asked only where the request's own text and its group leave doubt, and is read on only then. After a
// drafted token only texts that have seen it too are asked.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "suffix/evidence.hpp"

namespace foresay {

/// A request's place in a segment of the history.
struct Bookmark {
    uint64_t segment;
    Automaton::Cursor cursor;
    uint32_t read;  // tokens of the request's text that the cursor has seen
};

/// Grows one chain, a little at a time, so that several growers can take turns: what one reads next is fetched from memory
/// while the others work. Keeps only scratch memory between chains.
class ChainGrower {
public:
    /// Begins a chain of at most `budget` nodes, none with a score below `floor`, behind `text`. `considered` is written until
    /// step() returns false.
    void start(std::span<const Token> text, uint32_t budget, float floor, const Calibration& calibration, const TokenBias* bias,
               Considered& considered);
    /// Texts to draft from, to be added between start() and the first step(), the history last. Valid until step()
    /// returns false. More than kMostPlaces are left out.
    void add(Kind kind, const Automaton& automaton, Automaton::Cursor cursor);
    void add(const Automaton& automaton, Bookmark& bookmark);
    /// Does a part of the work; false when the chain is complete.
    bool step();
    /// What was considered, with the complete chain; null: nothing was asked for.
    const Considered* grown() const noexcept { return considered_; }

private:
    static constexpr uint32_t kMostPlaces = 8;
    static constexpr uint32_t kMostCandidates = 2 * kMostPlaces;

    enum class Stage : uint8_t { fetch, ask, read };
    struct Place {
        const Automaton* automaton;
        Automaton::Cursor cursor;
        Automaton::Cursor child;  // where its best continuation leads, with length 0 if there is none,
        Token token;              // and which that is
        Kind kind;
        bool fetched;             // whether what the cursor's state refers to has been asked for
        uint32_t read;            // tokens of the text that the cursor has seen
        Bookmark* bookmark;       // of a text that has to be read on before it is asked
    };

    void open();
    bool doubtful() const;
    bool read_history();
    void gather(Place& place);
    const Candidate* estimate();
    bool choose();
    bool promising(const Candidate& candidate, float needed);
    void follow(const Candidate& candidate);

    std::span<const Token> text_;
    const Calibration* calibration_ = nullptr;
    const TokenBias* bias_ = nullptr;
    Considered* considered_ = nullptr;
    uint32_t room_ = 0;  // nodes that may still be taken
    float floor_ = 0;    // the least score of a node
    float least_ = 0;    // evidence with lower log odds cannot matter
    float score_ = 1;    // of the chain's end
    uint32_t node_ = 0;  // the chain's end
    Stage stage_ = Stage::fetch;
    uint32_t num_places_ = 0;
    uint32_t at_ = 0;    // places that have been asked
    std::array<Place, kMostPlaces> places_;

    Evidence evidence_;  // of what may follow the chain's end
};

}  // namespace foresay
