#include "suffix/text.hpp"

#include <algorithm>

#include "checks.hpp"

namespace foresay {

Request::~Request() { owner_->forget(*this); }

TextDrafter::TextDrafter(const TextOptions& options, std::vector<std::shared_ptr<const FrozenIndex>> corpora)
    : options_(options), corpora_(std::move(corpora)) {
    for (const auto& corpus : corpora_)
        if (!corpus) throw InputError("a corpus is None; each is an open FrozenIndex");
    if (chains()) chain_growers_.resize(options_.threads * kLanes);
    else growers_.resize(options_.threads * kLanes);
}

TextDrafter::~TextDrafter() = default;

std::unique_lock<std::mutex> TextDrafter::enter() const {
    std::unique_lock lock(mutex_);
    if (failure_) throw StateError("this drafter failed before: ", failure_, "; expected a new drafter");
    return lock;
}

void TextDrafter::fail(const char* reason) noexcept {
    const std::lock_guard lock(mutex_);
    failure_ = reason;
}

void TextDrafter::check(const Request& request) const {
    if (request.owner_ != this) throw StateError("this state was begun by another drafter; use the drafter that began it");
    if (request.finished_) throw StateError("this state is finished; begin a new one");
}

void TextDrafter::check_all(Batch requests) {
    ++call_;
    for (size_t i = 0; i < requests.size(); ++i) {
        if (i + kAhead < requests.size())
            for (size_t line = 0; line < 192; line += 64) foresay::prefetch(reinterpret_cast<const char*>(requests[i + kAhead]) + line);
        check(*requests[i]);
        if (requests[i]->call_ == call_) throw InputError("state ", i, " is in the batch twice; expected each state once");
        requests[i]->call_ = call_;
    }
}

/// No tenant is not the tenant with the empty name.
std::string TextDrafter::key_of(const Name& tenant) { return tenant ? "=" + *tenant : ""; }

std::unique_ptr<Request> TextDrafter::begin(Text prompt, const Name& group, const Name& tenant) {
    if (prompt.empty()) throw InputError("the prompt is empty; a prompt has 1 to ", options_.max_tokens, " tokens");
    if (prompt.size() > options_.max_tokens)
        throw InputError("the prompt has ", prompt.size(), " tokens; a prompt has 1 to ", options_.max_tokens, " tokens");
    check_tokens(prompt);
    std::unique_ptr<Request> request(new Request(*this));
    request->text_.assign(prompt.begin(), prompt.end());
    request->prompt_length_ = prompt.size();
    if (options_.own) {  // the long part, which needs nothing that is shared
        // SAM-Decoding's rules speak of occurrences.
        request->own_.emplace(options_.sam ? Counting::occurrences : Counting::novelties);
        request->sequence_ = request->own_->begin();
        for (const Token token : prompt) request->own_->extend(request->sequence_, token);
        request->match_ = request->own_->cursor(request->sequence_);
    }
    const Text lead = prompt.last(std::min<size_t>(kLead, prompt.size()));
    for (const auto& corpus : corpora_) {
        FrozenIndex::Cursor cursor;
        for (const Token token : lead) corpus->advance(cursor, token);
        request->corpora_.push_back(cursor);
    }
    const auto lock = enter();
    const std::string owner = key_of(tenant);
    // What is not there yet is made in maps of its own: to merge two maps cannot fail.
    decltype(tenants_) new_tenants;
    decltype(groups_) new_groups;
    const auto held = [](auto& known, auto& made, const auto& key, const auto& make) {
        const auto found = known.find(key);
        return found != known.end() ? found->second : made.emplace(key, make()).first->second;
    };
    request->tenant_ = held(tenants_, new_tenants, owner, [&] { return std::make_shared<Tenant>(options_.history_bytes); });
    if (group) request->group_ = held(groups_, new_groups, std::pair(owner, *group), [] { return std::make_shared<Group>(); });
    requests_.insert(request.get());  // a request that ends takes itself out
    tenants_.merge(new_tenants);
    groups_.merge(new_groups);
    request->tenant_->used = request->begun_ = ++clock_;
    if (group) {
        request->group_->used = ++clock_;
        Automaton& text = request->group_->automaton;
        request->group_sequence_ = text.begin();
        change([&] {
            for (const Token token : request->group_->prompted ? lead : prompt) text.extend(request->group_sequence_, token);
            request->group_->prompted = true;
        });
    }
    evict();
    return request;
}

/// Brings the request's bookmarks in line with the segments of its tenant's history.
void TextDrafter::find_bookmarks(Request& request) const {
    const History& history = request.tenant_->history;
    std::vector<Bookmark>& marks = request.history_;
    const uint32_t length = static_cast<uint32_t>(request.text_.size()), lead = length - std::min(kLead, length);
    if (request.changes_ != history.changes()) {
        std::vector<Bookmark> found;
        found.reserve(history.segments().size());
        for (const auto& segment : history.segments()) {
            const auto known = std::find_if(marks.begin(), marks.end(), [&](const Bookmark& mark) { return mark.segment == segment->id; });
            found.push_back(known != marks.end() ? *known : Bookmark{segment->id, {}, lead});
            segment->automaton.settle(found.back().cursor);
        }
        marks = std::move(found);
        request.changes_ = history.changes();
    }
    for (Bookmark& mark : marks)
        if (mark.read < lead) mark = {mark.segment, {}, lead};  // what lies before is not worth reading
}

/// Tells the grower which texts the request may draft from, and where it stands in each.
void TextDrafter::find_sources(Request& request, TreeGrower& grower) const {
    grower.sources.clear();
    grower.cursors.clear();
    grower.recent = TokenBias::Recent(request.text_);
    const auto add = [&](Kind kind, const Automaton& automaton, Automaton::Cursor cursor) {
        grower.sources.push_back({kind, &automaton, nullptr});
        grower.cursors.push_back({cursor, {}});
    };
    if (request.own_) add(kOwn, *request.own_, request.match_);
    if (request.group_) add(kGroup, request.group_->automaton, request.group_->automaton.cursor(request.group_sequence_));
    if (options_.history) {
        find_bookmarks(request);
        for (size_t s = 0; s < request.history_.size(); ++s) {
            const Automaton& automaton = request.tenant_->history.segments()[s]->automaton;
            Bookmark& mark = request.history_[s];
            for (; mark.read < request.text_.size(); ++mark.read) automaton.advance(mark.cursor, request.text_[mark.read]);
            add(kHistory, automaton, mark.cursor);
        }
    }
    for (size_t c = 0; c < corpora_.size(); ++c) {
        grower.sources.push_back({kCorpus, nullptr, corpora_[c].get()});
        grower.cursors.push_back({{}, request.corpora_[c]});
    }
}

void TextDrafter::check_budgets(Batch requests, Counts budgets, float least) const {
    if (requests.size() != budgets.size())
        throw InputError(requests.size(), " states came with ", budgets.size(), " budgets; expected one for each state");
    if (!(least >= 0 && least <= 1)) throw InputError("least is ", least, "; a chance is from 0 to 1");
    for (size_t i = 0; i < budgets.size(); ++i)
        if (budgets[i] < 0 || budgets[i] > kMaxBudget)
            throw InputError("budgets[", i, "] is ", budgets[i], "; expected a whole number from 0 to ", kMaxBudget);
}

DraftTrees TextDrafter::propose(Batch requests, Counts budgets, float least) {
    check_budgets(requests, budgets, least);
    const auto lock = enter();
    check_all(requests);
    DraftTrees out;
    try {
        draft(requests, budgets, least, out);
    } catch (...) {
        for (size_t i = 0; i < requests.size(); ++i)  // half a draft is nothing to learn from
            if (budgets[i] > 0 || options_.sam) requests[i]->considered_.clear();
        throw;
    }
    return out;
}

void TextDrafter::draft_by_sam(Batch requests, Counts budgets, DraftTrees& out) {
    TreeGrower& places = growers_.front();
    for (size_t i = 0; i < requests.size(); ++i) {
        find_sources(*requests[i], places);
        const Kind kind = draft_by_sam_rule(*options_.sam, places.sources, places.cursors, static_cast<uint32_t>(budgets[i]), out);
        Considered& considered = requests[i]->considered_;
        considered.clear();  // there is nothing to learn, only where each node is from
        const int32_t nodes = out.offsets.end()[-1] - out.offsets.end()[-2];
        for (int32_t n = 0; n <= nodes; ++n) considered.nodes.push_back({0, 0, 0, 0, 0, static_cast<uint8_t>(1u << kind)});
    }
}

/// Follows the committed tokens through what the last propose considered, and learns from each step's candidates.
void TextDrafter::learn(const Request& request, Text tokens) {
    const Considered& considered = request.considered_;
    Calibration& calibration = request.tenant_->calibration;
    TokenBias* bias = options_.history ? &request.tenant_->bias : nullptr;
    TokenBias::Recent recent(request.text_);
    uint32_t node = 0;
    for (const Token token : tokens) {
        if (node >= considered.nodes.size()) return;
        const Considered::Node& here = considered.nodes[node];
        for (uint32_t c = here.begin; c < here.end; ++c) {
            const Candidate& candidate = considered.candidates[c];
            const float error = calibration.learn(candidate, candidate.token == token);
            if (!bias) continue;
            if (chains()) bias->learn(candidate.token, error);
            else bias->learn(candidate.token, recent, error);
        }
        recent = recent.then(token);
        const uint32_t parent = node++;
        while (node < considered.nodes.size() &&
               (considered.nodes[node].parent != static_cast<int32_t>(parent) || considered.nodes[node].token != token))
            ++node;
    }
}

void TextDrafter::finish(Request& request) {
    const auto lock = enter();
    check(request);
    if (options_.history && request.publishes_ && request.text_.size() > request.prompt_length_) {
        const size_t lead = std::min<size_t>(kLead, request.prompt_length_);
        change([&] { request.tenant_->history.add(std::span(request.text_).subspan(request.prompt_length_ - lead)); });
        request.tenant_->used = ++clock_;
    }
    request.finished_ = true;
    request.group_.reset();
    request.tenant_.reset();
    request.own_.reset();
    request.text_ = {};
    request.considered_ = {};
    requests_.erase(&request);
    evict();
}

std::vector<Token> TextDrafter::text(const Request& request) const {
    const auto lock = enter();
    check(request);
    return request.text_;
}

std::vector<uint8_t> TextDrafter::kinds(const Request& request) const {
    const auto lock = enter();
    check(request);
    std::vector<uint8_t> out;
    for (uint32_t n = 1; n < request.considered_.nodes.size(); ++n) out.push_back(request.considered_.nodes[n].kinds);
    return out;
}

/// A state that is dropped without finish() publishes nothing.
void TextDrafter::forget(Request& request) noexcept {
    const std::lock_guard lock(mutex_);
    request.group_.reset();
    request.tenant_.reset();
    requests_.erase(&request);
}

}  // namespace foresay
