#include "recycle/recycle.hpp"

#include <algorithm>
#include <cmath>

#include "checks.hpp"
#include "idle.hpp"
#include "sampling/noise.hpp"

namespace foresay {
namespace {

// Rough estimates of a chance, whose calibration is learned.
constexpr float kGreedySharpness = 1.3f; // the likeliest token is chosen, not drawn: chances are further apart
constexpr float kDoubt = 1.3f;           // other contexts of the same end have other probabilities
constexpr float kLonger = 4.f;           // how much more a context says than one that is a token shorter
constexpr float kEuler = 0.5772f;        // the mean of the noise
constexpr float kMostCertain = 0.98f;
constexpr float kLeastScore = 1e-4f;
constexpr std::array<float, 8> kByRank{0.45f, 0.17f, 0.1f, 0.07f, 0.05f, 0.04f, 0.03f, 0.02f};  // of a tree of one shape

std::string key_of(const std::optional<std::string>& tenant) { return tenant ? "." + *tenant : ""; }

}  // namespace

RankCalibration::RankCalibration() {
    for (auto& kind : rates_)
        for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
            const float middle = 1 / (1 + std::exp(-(static_cast<float>(bucket) - 9.5f) / 2));
            kind[bucket] = {8 * middle * 0.8f, 8};
        }
}

size_t RankCalibration::bucket_of(float chance) {
    const float odds = std::log(chance / (1 - std::min(chance, 0.9999f)));
    return static_cast<size_t>(std::clamp(odds * 2 + 10, 0.f, static_cast<float>(kBuckets - 1)));
}

void RankCalibration::learn(size_t kind, size_t bucket, bool right) {
    Rate& rate = rates_[kind][bucket];
    rate.right += right, rate.tried += 1;
    if (rate.tried > 1024) rate.right /= 2, rate.tried /= 2;
}

RecycleRequest::~RecycleRequest() {
    const std::lock_guard lock(owner_->mutex_);
    owner_->requests_.erase(this);
}

RecycleDrafter::RecycleDrafter(const RecycleOptions& options) : options_(options) {
    TopKTable(options.k, options.orders, 0);  // refuses what no table can be made of
    if (options.max_tenants == 0) throw InputError("max_tenants is 0; expected at least 1");
}

RecycleDrafter::~RecycleDrafter() = default;

std::shared_ptr<RecycleTenant> RecycleDrafter::tenant_of(const std::optional<std::string>& name) {
    std::string key = key_of(name);
    auto found = tenants_.find(key);
    if (found == tenants_.end())
        found = tenants_.emplace(std::move(key), std::make_shared<RecycleTenant>(options_.k, options_.orders, options_.bytes)).first;
    const std::shared_ptr<RecycleTenant> held = found->second;
    held->used = ++clock_;
    drop_idle(tenants_, options_.max_tenants);
    return held;
}

std::unique_ptr<RecycleRequest> RecycleDrafter::begin(std::span<const Token> prompt, const std::optional<std::string>& tenant,
                                                      const Noise& noise) {
    if (prompt.empty()) throw InputError("the prompt is empty; expected at least one token");
    check_tokens(prompt);
    if (!(noise.temperature >= 0) || !std::isfinite(noise.temperature) || (noise.temperature > 0 && !std::isfinite(1 / noise.temperature)))
        throw InputError("the temperature is ", noise.temperature, "; expected a number from 0 whose inverse is finite");
    // Made before the lock, so that it is destroyed behind it: its destructor locks too.
    std::unique_ptr<RecycleRequest> made(new RecycleRequest(*this));
    made->noise_ = noise;
    made->text_.assign(prompt.begin(), prompt.end());
    const std::lock_guard lock(mutex_);
    made->tenant_ = tenant_of(tenant);
    requests_.insert(made.get());
    return made;
}

void RecycleDrafter::check(std::span<RecycleRequest* const> requests) {
    ++call_;
    for (size_t i = 0; i < requests.size(); ++i) {
        if (requests[i]->owner_ != this) throw StateError("state ", i, " is of another drafter");
        if (requests[i]->finished_) throw StateError("state ", i, " was finished before");
        if (requests[i]->call_ == call_) throw InputError("state ", i, " is in the batch twice; expected each state once");
        requests[i]->call_ = call_;
    }
}

/// What may follow `context`, the best first, each with its chance.
size_t RecycleDrafter::guesses(const RecycleRequest& request, std::span<const Token> context, uint32_t position,
                               std::array<Guess, kWidth>& out) const {
    struct Entry {
        Token token;
        float chance;
    };
    std::array<Entry, kMostOrders * kMostLikely> all;
    size_t count = 0;
    const RecycleTenant& tenant = *request.tenant_;
    TopK known;
    float weights = 0, weight = 1;
    uint32_t highest = 0;
    for (uint32_t order = 1; order <= options_.orders; ++order, weight *= kLonger) {
        if (!tenant.table.find(context, order, known)) continue;
        highest = order, weights += weight;
        for (uint32_t i = 0; i < known.size; ++i) {
            size_t at = 0;
            while (at < count && all[at].token != known.tokens[i]) ++at;
            if (at == count) all[count++] = {known.tokens[i], 0};
            all[at].chance += weight * known.chances[i];
        }
    }
    if (count == 0) return 0;
    const bool sampled = request.noise_.temperature > 0;
    const uint8_t kind = static_cast<uint8_t>(2 * highest + sampled);
    float rest = 1;
    for (size_t i = 0; i < count; ++i) rest -= all[i].chance /= weights;
    const float scale = sampled ? 1 / request.noise_.temperature : kGreedySharpness;
    const float doubt = sampled ? kDoubt : 1;
    // The chance of each candidate: a softmax of log probability / temperature + noise, where doubt flattens it.
    const NoiseKey key{request.noise_.seed, position, 0};
    float most = (scale * std::log(std::max(rest, 1e-3f)) + (sampled ? kEuler : 0)) / doubt, sum = 0;
    const float other = most;
    for (size_t i = 0; i < count; ++i) {
        float value = scale * std::log(std::max(all[i].chance, 1e-6f));
        if (sampled) value += static_cast<float>(gumbel(key, static_cast<uint32_t>(all[i].token)));
        all[i].chance = value / doubt;
        most = std::max(most, all[i].chance);
    }
    for (size_t i = 0; i < count; ++i) sum += all[i].chance = std::exp(all[i].chance - most);
    sum += std::exp(other - most);
    const size_t kept = std::min(count, kWidth);
    std::partial_sort(all.begin(), all.begin() + kept, all.begin() + count, [](const Entry& a, const Entry& b) {
        return a.chance > b.chance || (a.chance == b.chance && a.token < b.token);
    });
    for (size_t i = 0; i < kept; ++i) {
        const float chance = all[i].chance / sum;
        const auto bucket = static_cast<uint8_t>(RankCalibration::bucket_of(chance));
        out[i] = {all[i].token, options_.fixed ? kByRank[i] : std::min(tenant.calibration.chance(kind, bucket), kMostCertain), kind, bucket};
    }
    return kept;
}

/// The last tokens up to a node, or of the text (-1): as many as the longest context has.
std::span<const Token> RecycleDrafter::context_of(const RecycleRequest& request, std::span<const RecycleRequest::Node> tree, int32_t node) {
    path_.clear();
    for (; node >= 0 && path_.size() < options_.orders; node = tree[static_cast<size_t>(node)].parent) path_.push_back(tree[static_cast<size_t>(node)].token);
    for (size_t back = 1; path_.size() < options_.orders && back <= request.text_.size(); ++back) path_.push_back(request.text_[request.text_.size() - back]);
    std::reverse(path_.begin(), path_.end());
    return path_;
}

void RecycleDrafter::grow(RecycleRequest& request, uint32_t budget, float least, DraftTrees& out) {
    request.drafted_.clear(), request.grown_.clear(), request.considered_.clear();
    heap_.clear(), scores_.clear(), depths_.clear();
    const auto later = [](const Waiting& a, const Waiting& b) { return a.score < b.score || (a.score == b.score && a.order > b.order); };
    uint32_t arrived = 0;
    std::array<Guess, kWidth> found;
    const auto expand = [&](int32_t node, float score, uint32_t depth) {
        const size_t count = guesses(request, context_of(request, request.grown_, node), static_cast<uint32_t>(request.text_.size() + depth), found);
        for (size_t i = 0; i < count; ++i) {
            request.considered_.push_back({found[i].token, node, found[i].kind, found[i].bucket});
            const float next = score * found[i].chance;
            if (next < std::max(least, kLeastScore)) continue;
            heap_.push_back({next, arrived++, node, found[i].token});
            std::push_heap(heap_.begin(), heap_.end(), later);
        }
    };
    if (budget) expand(-1, 1, 0);
    while (request.grown_.size() < budget && !heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        const Waiting best = heap_.back();
        heap_.pop_back();
        if (options_.chain) heap_.clear();  // its siblings
        const auto node = static_cast<int32_t>(request.grown_.size());
        const uint32_t depth = best.parent < 0 ? 1 : depths_[static_cast<size_t>(best.parent)] + 1;
        request.grown_.push_back({best.token, best.parent});
        scores_.push_back(best.score);
        depths_.push_back(depth);
        if (request.grown_.size() < budget && depth < kMostDepth) expand(node, best.score, depth);
    }
    request.drafted_ = request.grown_;
    for (const RecycleRequest::Node& node : request.grown_) {
        out.tokens.push_back(node.token);
        out.parents.push_back(node.parent);
    }
    out.scores.insert(out.scores.end(), scores_.begin(), scores_.end());
    out.end_tree();
}

DraftTrees RecycleDrafter::propose(std::span<RecycleRequest* const> requests, std::span<const int32_t> budgets, float least) {
    if (requests.size() != budgets.size()) throw InputError("there are ", requests.size(), " states and ", budgets.size(), " budgets");
    for (const int32_t budget : budgets)
        if (budget < 0 || budget > kMostBudget) throw InputError("a budget is ", budget, "; expected 0 to 4096");
    if (!(least >= 0 && least <= 1)) throw InputError("least is ", least, "; expected a chance from 0 to 1");
    const std::lock_guard lock(mutex_);
    check(requests);
    DraftTrees out;
    for (size_t i = 0; i < requests.size(); ++i) grow(*requests[i], static_cast<uint32_t>(budgets[i]), least, out);
    return out;
}

void RecycleDrafter::adopt(std::span<RecycleRequest* const> requests, std::span<const Token> tokens, std::span<const int32_t> parents,
                           std::span<const int32_t> offsets) {
    check_drafts({tokens, parents, offsets, nullptr});
    check_parts("drafts", offsets, requests.size(), tokens.size());
    const std::lock_guard lock(mutex_);
    check(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
        requests[i]->drafted_.clear();
        for (auto node = static_cast<size_t>(offsets[i]); node < static_cast<size_t>(offsets[i + 1]); ++node)
            requests[i]->drafted_.push_back({tokens[node], parents[node]});
    }
}

/// Of the last committed token and of each node of the draft that was verified.
void RecycleDrafter::learn_table(RecycleRequest& request, std::span<const Token> likeliest, std::span<const float> logprobs) {
    const size_t k = options_.k, rows = likeliest.size() / k;
    for (size_t row = 0; row < rows; ++row) {
        if (likeliest[row * k] < 0) continue;  // not verified
        request.tenant_->table.learn(context_of(request, request.drafted_, static_cast<int32_t>(row) - 1), &likeliest[row * k], &logprobs[row * k]);
    }
}

/// Whether each candidate after a committed token was right.
void RecycleDrafter::learn_chances(RecycleRequest& request, std::span<const Token> committed) {
    // Node -> how many committed tokens it stands behind, -1: off the path. The root stands behind none.
    std::vector<int32_t> behind(request.grown_.size(), -1);
    for (size_t node = 0; node < request.grown_.size(); ++node) {
        const int32_t parent = request.grown_[node].parent;
        const int32_t before = parent < 0 ? 0 : behind[static_cast<size_t>(parent)];
        if (before >= 0 && static_cast<size_t>(before) < committed.size() && committed[static_cast<size_t>(before)] == request.grown_[node].token)
            behind[node] = before + 1;
    }
    for (const RecycleRequest::Candidate& candidate : request.considered_) {
        const int32_t before = candidate.after < 0 ? 0 : behind[static_cast<size_t>(candidate.after)];
        if (before < 0 || static_cast<size_t>(before) >= committed.size()) continue;
        request.tenant_->calibration.learn(candidate.kind, candidate.bucket, committed[static_cast<size_t>(before)] == candidate.token);
    }
}

void RecycleDrafter::observe(std::span<RecycleRequest* const> requests, std::span<const Token> tokens, std::span<const int32_t> offsets,
                             std::span<const Token> likeliest, std::span<const float> logprobs, std::span<const int32_t> row_offsets) {
    const size_t k = options_.k;
    check_parts("committed tokens", offsets, requests.size(), tokens.size());
    check_tokens(tokens);
    if (likeliest.size() != logprobs.size() || likeliest.size() % k)
        throw InputError("there are ", likeliest.size(), " likeliest tokens and ", logprobs.size(), " log probabilities; expected rows of ",
                         k, " of each");
    check_tokens(likeliest, -1);
    if (!row_offsets.empty()) check_parts("likeliest tokens", row_offsets, requests.size(), likeliest.size() / k);
    const std::lock_guard lock(mutex_);
    check(requests);
    for (size_t i = 0; i < requests.size() && !row_offsets.empty(); ++i) {
        const int32_t rows = row_offsets[i + 1] - row_offsets[i];
        if (rows && static_cast<size_t>(rows) != requests[i]->drafted_.size() + 1)
            throw InputError("state ", i, " has likeliest tokens in ", rows, " rows; its draft has ", requests[i]->drafted_.size(),
                             " nodes and needs one row more");
    }
    for (size_t i = 0; i < requests.size(); ++i) {
        RecycleRequest& request = *requests[i];
        const auto committed = tokens.subspan(static_cast<size_t>(offsets[i]), static_cast<size_t>(offsets[i + 1] - offsets[i]));
        if (!row_offsets.empty()) {
            const size_t first = static_cast<size_t>(row_offsets[i]) * k, count = static_cast<size_t>(row_offsets[i + 1]) * k - first;
            learn_table(request, likeliest.subspan(first, count), logprobs.subspan(first, count));
        }
        learn_chances(request, committed);
        request.text_.insert(request.text_.end(), committed.begin(), committed.end());
        request.drafted_.clear(), request.grown_.clear(), request.considered_.clear();
    }
}

void RecycleDrafter::finish(RecycleRequest& request) {
    const std::lock_guard lock(mutex_);
    RecycleRequest* const one = &request;
    check({&one, 1});
    request.finished_ = true;
    request.tenant_.reset();
    request.text_.clear(), request.text_.shrink_to_fit();
}

std::vector<Token> RecycleDrafter::text(const RecycleRequest& request) const {
    const std::lock_guard lock(mutex_);
    if (request.owner_ != this || request.finished_) throw StateError("the state was finished before, or is of another drafter");
    return request.text_;
}

size_t RecycleDrafter::drafted(const RecycleRequest& request) const {
    const std::lock_guard lock(mutex_);
    if (request.owner_ != this || request.finished_) throw StateError("the state was finished before, or is of another drafter");
    return request.grown_.size();
}

TopKArrays RecycleDrafter::table(const std::optional<std::string>& tenant) const {
    const std::lock_guard lock(mutex_);
    const auto found = tenants_.find(key_of(tenant));
    return found == tenants_.end() ? TopKArrays{} : found->second->table.arrays();
}

void RecycleDrafter::add_table(const std::optional<std::string>& tenant, const TopKArrays& arrays) {
    const std::lock_guard lock(mutex_);
    tenant_of(tenant)->table.add(arrays);
}

void RecycleDrafter::forget(const std::optional<std::string>& tenant) {
    const std::lock_guard lock(mutex_);
    const auto found = tenants_.find(key_of(tenant));
    if (found == tenants_.end()) return;
    found->second->table.clear();
    found->second->calibration = RankCalibration();
}

size_t RecycleDrafter::bytes() const {
    const std::lock_guard lock(mutex_);
    size_t sum = 0;
    for (const auto& [name, tenant] : tenants_) sum += sizeof(RecycleTenant) + tenant->table.bytes();
    for (const RecycleRequest* request : requests_) sum += sizeof(RecycleRequest) + request->text_.capacity() * sizeof(Token);
    return sum;
}

size_t RecycleDrafter::bytes_of(const std::optional<std::string>& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = tenants_.find(key_of(name));
    if (found == tenants_.end()) return 0;
    size_t sum = sizeof(RecycleTenant) + found->second->table.bytes();
    for (const RecycleRequest* request : requests_)
        if (request->tenant_ == found->second) sum += sizeof(RecycleRequest) + request->text_.capacity() * sizeof(Token);
    return sum;
}

}  // namespace foresay
