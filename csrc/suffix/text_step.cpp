// The step of the text drafter: learning what was committed, and drafting from there. Many requests, a few at a time.
#include <algorithm>

#include "checks.hpp"
#include "suffix/text.hpp"
#include "threads.hpp"

namespace foresay {
namespace {

// Once there has been much to learn from, every fourth lesson is enough.
constexpr uint64_t kYoung = 20000, kLessonEvery = 4;
constexpr uint64_t kWeighed = 16;  // steps after which the memory of own texts is looked at again

}  // namespace

/// Calls work(first, count, lane, out) for a few requests at a time, on as many threads as they are worth. What is appended
/// to the outs is put together in the order of the requests.
template <class Work>
void TextDrafter::for_lanes(size_t requests, DraftTrees* out, Work&& work) {
    const size_t pieces = (requests + kLanes - 1) / kLanes;
    if (out && parts_.size() < pieces) parts_.resize(pieces);
    in_pieces(requests >= kMany ? options_.threads : 1, pieces, [&](size_t piece, uint32_t member) {
        if (out) parts_[piece].clear();
        work(piece * kLanes, std::min(kLanes, requests - piece * kLanes), member * kLanes, out ? &parts_[piece] : nullptr);
    });
    for (size_t piece = 0; out && piece < pieces; ++piece) out->append(parts_[piece]);
}

void TextDrafter::draft(Batch requests, Counts budgets, float least, DraftTrees& out) {
    if (options_.sam) return draft_by_sam(requests, budgets, out);
    if (requests.size() >= kMany) wake_pool(options_.threads);
    for_lanes(requests.size(), &out, [&](size_t first, size_t count, size_t lane, DraftTrees* part) {
        const auto some = requests.subspan(first, count);
        const auto most = budgets.subspan(first, count);
        if (chains()) grow(some, most, least, &chain_growers_[lane], *part);
        else grow(some, most, least, &growers_[lane], *part);
    });
}

/// Begins a tree, from all texts that the request may draft from.
void TextDrafter::start(Request& request, uint32_t budget, float least, TreeGrower& grower) const {
    find_sources(request, grower);
    grower.start(options_.growth, grower.sources.empty() ? 0 : budget, least, request.tenant_->calibration,
                 options_.history ? &request.tenant_->bias : nullptr, request.considered_);
}

/// The same of a chain.
void TextDrafter::start(Request& request, uint32_t budget, float least, ChainGrower& grower) const {
    const Tenant& tenant = *request.tenant_;
    const bool any = request.own_ || request.group_ || options_.history;
    grower.start(request.text_, any ? budget : 0, least, tenant.calibration, options_.history ? &tenant.bias : nullptr, request.considered_);
    if (request.own_) grower.add(kOwn, *request.own_, request.match_);
    if (request.group_) grower.add(kGroup, request.group_->automaton, request.group_->automaton.cursor(request.group_sequence_));
    if (!options_.history) return;
    find_bookmarks(request);
    for (size_t s = 0; s < request.history_.size(); ++s) grower.add(tenant.history.segments()[s]->automaton, request.history_[s]);
}

/// Grows the trees or chains of a few requests, in turns: what one reads next is fetched while the others work.
template <class Grower>
void TextDrafter::grow(Batch requests, Counts budgets, float least, Grower* growers, DraftTrees& out) const {
    constexpr bool kFetches = requires(Grower& grower) { grower.fetch(); };
    if constexpr (kFetches)
        for (const Request* request : requests) {
            if (request->own_) request->own_->prefetch_head();
            foresay::prefetch(request->considered_.nodes.begin());
            foresay::prefetch(request->considered_.candidates.begin());
        }
    for (size_t i = 0; i < requests.size(); ++i) start(*requests[i], static_cast<uint32_t>(budgets[i]), least, growers[i]);
    std::array<uint8_t, kLanes> growing;
    size_t left = requests.size();
    for (size_t i = 0; i < left; ++i) growing[i] = static_cast<uint8_t>(i);
    if constexpr (kFetches)
        for (uint32_t context = 0; context < options_.growth.root.contexts; ++context)
            for (size_t i = 0; i < left; ++i) growers[i].fetch();
    while (left > 0) {
        size_t still = 0;
        for (size_t i = 0; i < left; ++i) {
            const uint8_t lane = growing[i];
            growing[still] = lane;
            still += growers[lane].step();
        }
        left = still;
        if constexpr (kFetches)
            for (size_t i = 0; i < left; ++i) growers[growing[i]].fetch();
    }
    for (size_t i = 0; i < requests.size(); ++i) {
        if (const Considered* grown = growers[i].grown()) grown->append_to(out);
        else out.end_tree();
    }
}

/// What concerns all requests, one after the other: lessons, and the texts of groups.
void TextDrafter::learn_all(Batch requests, const Committed& committed) {
    ++steps_;
    for (size_t i = 0; i < requests.size(); ++i) {
        Request& request = *requests[i];
        if (i + kAhead < requests.size()) {
            const Considered& next = requests[i + kAhead]->considered_;
            foresay::prefetch(next.nodes.begin());
            foresay::prefetch(next.candidates.begin());
        }
        Tenant& tenant = *request.tenant_;
        if (tenant.step != steps_) tenant.step = steps_, tenant.turn = ++tenant.steps;
        if (const uint64_t turn = tenant.turn++; ++tenant.lessons <= kYoung || turn % kLessonEvery == 0) learn(request, committed[i]);
        request.considered_.clear();
        if (request.group_)
            for (const Token token : committed[i]) request.group_->automaton.extend(request.group_sequence_, token);
    }
}

/// What concerns each request alone, for a few of them in turns: what one reads next is fetched while the others work.
void TextDrafter::commit_lanes(Batch requests, const Committed& committed, size_t first) const {
    size_t most = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
        const Request& request = *requests[i];
        foresay::prefetch(request.text_.data() + request.text_.size());
        if (request.own_) request.own_->prefetch_head();
        most = std::max(most, committed[first + i].size());
    }
    for (size_t i = 0; i < requests.size(); ++i) {
        Request& request = *requests[i];
        const Text tokens = committed[first + i];
        request.text_.insert(request.text_.end(), tokens.begin(), tokens.end());
        if (request.own_) request.own_->prefetch_extend(request.sequence_, request.match_.state);
    }
    for (size_t t = 0; t < most; ++t) {
        const auto each = [&](const auto& work) {
            for (size_t i = 0; i < requests.size(); ++i)
                if (requests[i]->own_ && t < committed[first + i].size())
                    work(*requests[i], *requests[i]->own_, committed[first + i][t]);
        };
        each([](const Request& request, const Automaton& own, Token token) { own.prefetch_next(request.match_.state, token); });
        each([](Request& request, Automaton& own, Token token) {
            own.extend(request.sequence_, token);
            request.match_.state = own.link(request.sequence_);
            own.prefetch(request.match_.state);
        });
    }
    for (Request* request : requests)
        if (request->own_) request->match_ = request->own_->cursor(request->sequence_);
}

void TextDrafter::observe(Batch requests, Text tokens, Counts offsets) {
    commit(requests, {tokens, offsets}, {}, 0, nullptr);
}

DraftTrees TextDrafter::step(Batch requests, Text tokens, Counts offsets, Counts budgets, float least) {
    DraftTrees out;
    commit(requests, {tokens, offsets}, budgets, least, &out);
    return out;
}

/// observe() and, if there is an `out`, propose().
void TextDrafter::commit(Batch requests, const Committed& committed, Counts budgets, float least, DraftTrees* out) {
    if (committed.offsets.size() != requests.size() + 1)
        throw InputError(requests.size(), " states came with ", committed.offsets.empty() ? 0 : committed.offsets.size() - 1,
                         " verdicts; expected one for each state");
    check_parts("the verdicts", committed.offsets, requests.size(), committed.tokens.size());
    check_tokens(committed.tokens);
    if (out) check_budgets(requests, budgets, least);
    const auto lock = enter();
    check_all(requests);
    for (size_t i = 0; i < requests.size(); ++i)
        if (requests[i]->text_.size() + committed[i].size() > options_.max_tokens)
            throw InputError("state ", i, " would have more than ", options_.max_tokens, " tokens, the most a request may have");
    places_.clear();
    for (size_t i = 0; i < requests.size() && !corpora_.empty(); ++i)  // first, since a damaged file may come to light here
        for (size_t c = 0; c < corpora_.size(); ++c) {
            FrozenIndex::Cursor& place = places_.emplace_back(requests[i]->corpora_[c]);
            for (const Token token : committed[i]) corpora_[c]->advance(place, token);
        }
    if (requests.size() >= kMany) wake_pool(options_.threads);
    change([&] {
        for (size_t i = 0; i < requests.size() && !corpora_.empty(); ++i)
            std::copy_n(places_.begin() + static_cast<ptrdiff_t>(i * corpora_.size()), corpora_.size(),
                        requests[i]->corpora_.begin());
        learn_all(requests, committed);
        const bool fused = out && chains();
        for_lanes(requests.size(), fused ? out : nullptr, [&](size_t first, size_t count, size_t lane, DraftTrees* part) {
            const auto some = requests.subspan(first, count);
            commit_lanes(some, committed, first);
            if (fused) grow(some, budgets.subspan(first, count), least, &chain_growers_[lane], *part);
        });
        if (steps_ % kWeighed == 0) shrink_own();
        if (out && !fused) draft(requests, budgets, least, *out);
    });
}

}  // namespace foresay
