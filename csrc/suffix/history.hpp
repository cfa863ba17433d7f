// The finished texts of one tenant, bounded in bytes.
//
// A suffix automaton cannot forget a sequence, so the history is a row of automata, each a share of the quota. When the
// newest is full a newer one is begun, and when all together exceed the quota the oldest is dropped whole. So are those of old
// versions: where the model that writes these texts is being trained, each segment is of one version of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "suffix/automaton.hpp"

namespace foresay {

class History {
public:
    static constexpr size_t kSegments = 4;

    struct Segment {
        uint64_t id;  // never used again, so that a cursor can tell whether its segment is still there
        Automaton automaton;
        uint64_t version;
    };

    explicit History(size_t quota) : quota_(quota) {}

    /// Adds a finished text. May drop older segments; cursors into them must not be used afterwards.
    void add(std::span<const Token> text) {
        ++changes_;
        if (segments_.empty() || segments_.front()->version != version_ ||
            segments_.front()->automaton.bytes() > quota_ / kSegments)
            begin_segment();
        write(text);
        while (segments_.size() > 1 && bytes() > quota_) segments_.pop_back();
        if (bytes() <= quota_) return;
        segments_.clear();  // what was in the newest segment before leaves no room: keep the text alone, if it fits
        begin_segment();
        write(text);
        if (bytes() > quota_) segments_.clear();
    }

    /// What is added from now on is of a new version; texts stay of the last `keep` versions before it. Cursors into others must
    /// not be used afterwards.
    void new_version(uint64_t keep) noexcept {
        ++changes_;
        ++version_;
        while (!segments_.empty() && version_ - segments_.back()->version > keep) segments_.pop_back();
    }

    /// How often it was changed: as long as that is the same, cursors stay as good as they are.
    uint64_t changes() const noexcept { return changes_; }

    /// Newest first.
    const std::deque<std::unique_ptr<Segment>>& segments() const noexcept { return segments_; }

    size_t bytes() const noexcept {
        size_t sum = 0;
        for (const auto& segment : segments_) sum += segment->automaton.bytes();
        return sum;
    }
    size_t tokens() const noexcept {
        size_t sum = 0;
        for (const auto& segment : segments_) sum += segment->automaton.size();
        return sum;
    }
    void check_integrity() const {
        for (const auto& segment : segments_) segment->automaton.check_integrity();
    }

private:
    void begin_segment() { segments_.push_front(std::make_unique<Segment>(Segment{next_id_++, Automaton(), version_})); }
    void write(std::span<const Token> text) {
        Automaton& newest = segments_.front()->automaton;
        Automaton::Sequence sequence = newest.begin();
        for (const Token token : text) newest.extend(sequence, token);
    }

    size_t quota_;
    uint64_t next_id_ = 0;
    uint64_t changes_ = 0;
    uint64_t version_ = 0;
    std::deque<std::unique_ptr<Segment>> segments_;
};

}  // namespace foresay
