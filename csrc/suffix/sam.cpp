#include "suffix/sam.hpp"

#include <algorithm>
#include <cmath>
#include <queue>

namespace foresay {
namespace {

constexpr uint32_t kMostAncestors = 64;  // chains can be as long as the text

uint32_t draft_length(const SamRule& rule, uint32_t match, uint32_t budget) {
    const uint32_t most = std::min(budget, rule.max_predicts);
    if (rule.length_factor <= 0) return most;
    const double wanted = 1 + std::floor(rule.length_factor * match);
    return wanted < most ? static_cast<uint32_t>(wanted) : most;
}

void append(Token token, int32_t parent, float score, DraftTrees& out) {
    out.tokens.push_back(token);
    out.parents.push_back(parent);
    out.scores.push_back(score);
}

void chain_from_own(const SamRule& rule, const Automaton& text, const Automaton::Cursor& match, uint32_t length,
                    DraftTrees& out) {
    const auto occurrence = [&](const Automaton::Cursor& cursor) {  // which position to copy from
        return rule.latest ? text.latest(cursor.state) : text.first(cursor.state);
    };
    const auto follow = [&](uint32_t position, auto&& take) {
        for (uint32_t n = 0; n < length; ++n) {
            position = position == Automaton::kNoPosition ? position : text.next(position);
            if (position == Automaton::kNoPosition) return n;
            take(text.token_at(position), static_cast<int32_t>(n) - 1);
        }
        return length;
    };
    uint32_t position = occurrence(match);
    if (rule.to_anc) {  // the longest ancestor that enough tokens follow; if none, the match itself
        const auto enough = [&](uint32_t at) { return follow(at, [](Token, int32_t) {}) == length; };
        Automaton::Cursor cursor = match;
        for (uint32_t tries = 0; tries < kMostAncestors && cursor.length > 0; ++tries) {
            if (const uint32_t at = occurrence(cursor); enough(at)) {
                position = at;
                break;
            }
            text.shorten(cursor, text.shortest(cursor.state) - 1);
        }
    }
    follow(position, [&](Token token, int32_t parent) { append(token, parent, 1.f, out); });
}

void chain_from_corpus(const SamRule& rule, const FrozenIndex& index, const FrozenIndex::Cursor& cursor, uint32_t length,
                       DraftTrees& out) {
    const uint32_t position = rule.latest ? index.latest(cursor) : index.first(cursor);
    if (position == FrozenIndex::kNoPosition) return;
    int32_t parent = -1;
    for (const Token token : index.following(position, length)) append(token, parent++, 1.f, out);
}

/// The `budget` most probable paths, where a path's probability is the product of count shares after the longest match.
void tree_by_counts(const SamRule& rule, const Source& source, const SourceCursor& cursor, uint32_t budget, DraftTrees& out) {
    struct Pending {
        float score;
        uint32_t order;
        Token token;
        int32_t parent;
        SourceCursor at;
        bool operator<(const Pending& other) const {
            return score != other.score ? score < other.score : order > other.order;
        }
    };
    std::priority_queue<Pending> queue;
    uint32_t order = 0;
    const auto successors = [&](const SourceCursor& at, float score, int32_t parent) {
        const auto queue_one = [&](Token token, uint32_t count, uint32_t total) {
            queue.push({score * static_cast<float>(count) / static_cast<float>(total), order++, token, parent, at});
        };
        if (source.automaton) {
            Automaton::Walk walk = source.automaton->walk(at.online);  // which owns what `c` shows
            Automaton::Context c;
            if (walk.next(c))
                for (uint32_t e = 0; e < std::min(c.size, rule.topk_succ); ++e) queue_one(c.tokens[e], c.counts[e], c.total);
        } else {
            source.index->matches(at.frozen, rule.topk_succ, [&](const FrozenIndex::Context& c) {
                for (const Continuation& next : c.top) queue_one(next.token, next.count, c.total);
                return false;
            });
        }
    };
    successors(cursor, 1.f, -1);
    for (int32_t node = 0; node < static_cast<int32_t>(budget) && !queue.empty(); ++node) {
        Pending best = queue.top();
        queue.pop();
        append(best.token, best.parent, best.score, out);
        if (source.automaton) source.automaton->advance(best.at.online, best.token);
        else source.index->advance(best.at.frozen, best.token);
        successors(best.at, best.score, node);
    }
}

}  // namespace

Kind draft_by_sam_rule(const SamRule& rule, const std::vector<Source>& sources, const std::vector<SourceCursor>& cursors,
                       uint32_t budget, DraftTrees& out) {
    uint32_t own = UINT32_MAX, corpus = UINT32_MAX, own_match = 0, corpus_match = 0;
    for (uint32_t s = 0; s < sources.size(); ++s) {
        if (sources[s].kind == kOwn) {
            own = s;
            own_match = cursors[s].online.length;
        } else if (sources[s].kind == kCorpus && cursors[s].frozen.length > corpus_match) {
            corpus = s;
            corpus_match = cursors[s].frozen.length;
        }
    }
    const bool use_corpus = corpus_match > own_match + rule.l_bias;
    const uint32_t match = use_corpus ? corpus_match : own_match;
    const uint32_t chosen = use_corpus ? corpus : own;
    if (match > 0 && match >= rule.l_threshold && chosen != UINT32_MAX) {
        const Source& source = sources[chosen];
        const uint32_t length = draft_length(rule, match, budget);
        if (rule.topk_succ > 0) tree_by_counts(rule, source, cursors[chosen], length, out);
        else if (source.automaton) chain_from_own(rule, *source.automaton, cursors[chosen].online, length, out);
        else chain_from_corpus(rule, *source.index, cursors[chosen].frozen, length, out);
    }
    out.end_tree();
    return use_corpus ? kCorpus : kOwn;
}

}  // namespace foresay
