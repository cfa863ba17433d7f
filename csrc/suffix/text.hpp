// Drafting from text that exists: a request's own, its group's, the history of finished requests, and corpora.
//
// A Request owns its own text's automaton and its places in the shared ones; the TextDrafter owns what is shared: groups,
// and by tenant the histories and what was learned, and the corpora. A request holds its tenant and its group, so that neither
// goes while it runs. Each call locks the drafter.
//
// A call that throws has changed nothing. Only after an error (out of memory, a capacity limit, a damaged corpus) in the middle
// of a change of shared texts, or of many texts, which cannot be undone, the drafter refuses every further call but those that
// report its size. This file knows nothing of Python.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "suffix/chain.hpp"
#include "suffix/history.hpp"
#include "suffix/sam.hpp"
#include "suffix/tree.hpp"

namespace foresay {

struct TextOptions {
    bool own = true;
    bool history = true;
    size_t history_bytes = size_t{256} << 20;  // per tenant
    size_t tenant_bytes = size_t{4} << 30;     // all tenants together: beyond it idle ones are dropped, least recently used first
    size_t group_bytes = size_t{1} << 30;      // all groups together: beyond it idle ones are dropped, least recently used
                                               // first, whenever a request begins or finishes
    size_t own_bytes = size_t{1} << 50;        // own texts' automata of all members of groups: beyond it the largest are dropped,
                                               // every few steps; such a request still has its answer, and its group's
                                               // prompt, in its group
    size_t max_tenants = 256;                  // idle tenants beyond this many lose their history
    uint32_t max_tokens = 1u << 26;            // of one request
    uint32_t threads = 1;                      // at most this many share a large batch
    Growth growth{};
    std::optional<SamRule> sam;
};

class TextDrafter;

/// One request's state. Made by TextDrafter::begin, which must outlive it.
class alignas(64) Request {
public:
    ~Request();
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    size_t prompt_length() const noexcept { return prompt_length_; }
    bool finished() const noexcept { return finished_; }

private:
    friend class TextDrafter;
    size_t bytes() const noexcept { return (own_ ? own_->bytes() : 0) + text_.capacity() * sizeof(Token); }
    explicit Request(TextDrafter& owner) : owner_(&owner) {}

    // What a step reads, on a few cache lines.
    TextDrafter* owner_;
    uint64_t call_ = 0;        // of the drafter, that it took part in last
    std::atomic<bool> finished_ = false;
    bool publishes_ = true;    // false once its tenant was dropped
    std::shared_ptr<struct Tenant> tenant_;
    std::shared_ptr<struct Group> group_;
    std::vector<Token> text_;  // prompt and observed tokens
    Considered considered_;    // of the last propose
    Automaton::Sequence sequence_;
    Automaton::Cursor match_;  // of the own text, after the last token
    std::vector<Bookmark> history_;  // in the order of the segments,
    uint64_t changes_ = UINT64_MAX;  // when the history had been changed so often
    Automaton::Sequence group_sequence_;
    size_t prompt_length_ = 0;
    uint64_t begun_ = 0;  // when, by the drafter's clock
    std::vector<FrozenIndex::Cursor> corpora_;
    std::optional<Automaton> own_;  // here, so that its memory can be asked for before anything of the request was read
};

struct Group {
    Automaton automaton;
    bool prompted = false;  // whether it has the prompt; of later members it gets the prompt's end
    uint64_t used = 0;      // when last

    size_t bytes() const noexcept { return automaton.bytes(); }
};

/// Everything that a tenant's requests share: what was written, and what was learned from it.
struct Tenant {
    explicit Tenant(size_t history_bytes) : history(history_bytes) {}

    History history;
    Calibration calibration;
    TokenBias bias;
    uint64_t lessons = 0;
    uint64_t step = 0, turn = 0;  // the drafter's last step that it took part in, and the next of its lessons in turn
    uint64_t steps = 0;           // that it took part in: which lessons are learned must not show other tenants' steps
    uint64_t used = 0;

    size_t bytes() const noexcept { return sizeof(*this) + history.bytes() + bias.bytes(); }
};

class TextDrafter {
public:
    using Batch = std::span<Request* const>;
    using Text = std::span<const Token>;
    using Counts = std::span<const int32_t>;  // budgets, or offsets
    using Name = std::optional<std::string>;  // of a tenant or a group; none is not the empty one

    TextDrafter(const TextOptions& options, std::vector<std::shared_ptr<const FrozenIndex>> corpora);
    ~TextDrafter();

    std::unique_ptr<Request> begin(Text prompt, const Name& group, const Name& tenant);
    /// One tree per request. Requests are unchanged but for what they remember of this call; if it fails, they remember no draft.
    DraftTrees propose(Batch requests, Counts budgets, float least);
    /// tokens[offsets[i] .. offsets[i + 1]) were committed to request i.
    void observe(Batch requests, Text tokens, Counts offsets);
    /// observe() and propose() for the same requests, which is faster than one after the other.
    DraftTrees step(Batch requests, Text tokens, Counts offsets, Counts budgets, float least);
    void finish(Request& request);
    std::vector<Token> text(const Request& request) const;  // prompt and observed tokens
    std::vector<uint8_t> kinds(const Request& request) const;  // of source that had seen each node of its last draft: a bit set
    /// Adds a finished text to a group, which is made if it is not there: the prompt's end and an answer to it.
    void add_to_group(const std::string& group, const Name& tenant, Text prompt, Text answer);
    /// The texts of the tenant's history are of an old version now; those of the last `keep` versions stay.
    void new_version(const Name& tenant, uint64_t keep);
    void drop_group(const std::string& group, const Name& tenant);
    void drop_tenant(const std::string& name);
    /// Refuses every further call, because of what a change or its caller ran out of.
    void fail(const char* reason) noexcept;

    size_t bytes() const;
    size_t bytes_of(const Name& tenant) const;  // its history, its groups and its running requests
    size_t tokens() const;  // held, each as often as it is held
    size_t groups() const;
    void check_integrity() const;

private:
    friend class Request;
    static constexpr int32_t kMaxBudget = 4096;
    static constexpr size_t kLanes = 16;    // trees that grow in turns, see TreeGrower
    static constexpr size_t kAhead = 8;     // requests whose memory is asked for in advance
    static constexpr size_t kMany = 64;     // requests that are worth more than one thread
    static constexpr uint32_t kLead = 32;  // tokens of the prompt that lead into a shared output

    std::unique_lock<std::mutex> enter() const;
    /// Makes a change that cannot be undone: if it fails, every further call is refused.
    template <class Work>
    void change(Work&& work) {
        try {
            work();
        } catch (const std::bad_alloc&) {
            failure_ = "out of memory";
            throw;
        } catch (const CapacityError&) {
            failure_ = "a text was too long";
            throw;
        } catch (const CorpusError&) {
            failure_ = "a corpus file was damaged";
            throw;
        } catch (...) {
            failure_ = "an error amid a change";
            throw;
        }
    }
    void check(const Request& request) const;
    void check_all(Batch requests);
    struct Committed {  // tokens[offsets[i] .. offsets[i + 1]) are those of request i
        Text tokens;
        Counts offsets;
        Text operator[](size_t i) const {
            return tokens.subspan(static_cast<size_t>(offsets[i]), static_cast<size_t>(offsets[i + 1] - offsets[i]));
        }
    };
    void check_budgets(Batch requests, Counts budgets, float least) const;
    bool chains() const noexcept { return options_.growth.chain && !options_.sam && corpora_.empty(); }
    void find_bookmarks(Request& request) const;
    void find_sources(Request& request, TreeGrower& grower) const;
    void start(Request& request, uint32_t budget, float least, TreeGrower& grower) const;
    void start(Request& request, uint32_t budget, float least, ChainGrower& grower) const;
    template <class Grower>
    void grow(Batch requests, Counts budgets, float least, Grower* growers, DraftTrees& out) const;
    void draft(Batch requests, Counts budgets, float least, DraftTrees& out);
    void draft_by_sam(Batch requests, Counts budgets, DraftTrees& out);
    template <class Work>
    void for_lanes(size_t requests, DraftTrees* out, Work&& work);
    void commit(Batch requests, const Committed& committed, Counts budgets, float least, DraftTrees* out);
    void learn_all(Batch requests, const Committed& committed);
    void commit_lanes(Batch requests, const Committed& committed, size_t first) const;
    void learn(const Request& request, Text tokens);
    void forget(Request& request) noexcept;
    void evict();
    void shrink_own() noexcept;
    static std::string key_of(const Name& tenant);

    TextOptions options_;
    std::vector<std::shared_ptr<const FrozenIndex>> corpora_;
    // Held by the requests too: what no request holds is idle.
    std::map<std::pair<std::string, std::string>, std::shared_ptr<Group>> groups_;
    std::map<std::string, std::shared_ptr<Tenant>> tenants_;
    std::unordered_set<Request*> requests_;
    uint64_t turnovers_ = 0;  // requests begun and finished
    uint64_t clock_ = 0;
    uint64_t steps_ = 0;      // calls of observe and step
    const char* failure_ = nullptr;  // why every further call is refused
    mutable std::mutex mutex_;

    // Scratch of the present call.
    std::vector<TreeGrower> growers_;  // [threads, kLanes]
    std::vector<ChainGrower> chain_growers_;  // likewise
    std::vector<DraftTrees> parts_;           // one for every kLanes requests
    std::vector<FrozenIndex::Cursor> places_;  // [requests, corpora]
    uint64_t call_ = 0;
};

}  // namespace foresay
