// Drafting from what the target found likely before: Token Recycling, with longer contexts, probabilities, and the noise of
// requests that sample.
//
// After each context the likeliest next tokens are known from the last time that the target stood there (top_k.hpp). A request
// that samples takes the token with the largest log probability / temperature + noise, and its noise is known in advance: so
// candidates are ranked with it. How often such a rank was right is learned by tenant, so scores are chances.
// This file knows nothing of Python. Each call locks the drafter.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "drafts.hpp"
#include "recycle/top_k.hpp"

namespace foresay {

struct RecycleOptions {
    uint32_t k = 8;
    uint32_t orders = 4;                   // the longest context
    size_t bytes = size_t{32} << 20;       // of a tenant's contexts of two tokens and more
    size_t max_tenants = 64;               // idle tenants beyond this many are forgotten, least recently used first
    bool fixed = false;                    // trees of one shape, by rank alone, as the paper has them
    bool chain = false;                    // trees without branches
};

/// How a request samples.
struct Noise {
    uint64_t seed = 0;
    float temperature = 0;  // 0: greedy
};

/// How often candidates of one kind were right.
class RankCalibration {
public:
    static constexpr size_t kBuckets = 16;
    RankCalibration();
    static size_t bucket_of(float chance);
    float chance(size_t kind, size_t bucket) const { return rates_[kind][bucket].right / rates_[kind][bucket].tried; }
    void learn(size_t kind, size_t bucket, bool right);

private:
    struct Rate {
        float right, tried;
    };
    std::array<std::array<Rate, kBuckets>, 2 * (kMostOrders + 1)> rates_;
};

class RecycleDrafter;

/// One request's state. Made by RecycleDrafter::begin, which must outlive it.
class RecycleRequest {
public:
    ~RecycleRequest();
    RecycleRequest(const RecycleRequest&) = delete;
    RecycleRequest& operator=(const RecycleRequest&) = delete;

private:
    friend class RecycleDrafter;
    explicit RecycleRequest(RecycleDrafter& owner) : owner_(&owner) {}

    struct Node {
        Token token;
        int32_t parent;
    };
    struct Candidate {  // that a growth considered
        Token token;
        int32_t after;         // node of `grown_`, -1: the last committed token
        uint8_t kind, bucket;
    };
    RecycleDrafter* owner_;
    bool finished_ = false;
    uint64_t call_ = 0;
    std::shared_ptr<struct RecycleTenant> tenant_;
    Noise noise_;
    std::vector<Token> text_;
    std::vector<Node> drafted_;  // the draft that will be verified, own or adopted
    std::vector<Node> grown_;    // the own draft
    std::vector<Candidate> considered_;
};

struct RecycleTenant {
    RecycleTenant(uint32_t k, uint32_t orders, size_t bytes) : table(k, orders, bytes) {}
    TopKTable table;
    RankCalibration calibration;
    uint64_t used = 0;
};

class RecycleDrafter {
public:
    explicit RecycleDrafter(const RecycleOptions& options);
    ~RecycleDrafter();

    std::unique_ptr<RecycleRequest> begin(std::span<const Token> prompt, const std::optional<std::string>& tenant, const Noise& noise);
    /// One tree per request, best nodes first, none with a chance below `least`.
    DraftTrees propose(std::span<RecycleRequest* const> requests, std::span<const int32_t> budgets, float least);
    /// The drafts that will be verified, where others drafted too: tree i is for request i. Valid until the next observe.
    void adopt(std::span<RecycleRequest* const> requests, std::span<const Token> tokens, std::span<const int32_t> parents,
               std::span<const int32_t> offsets);
    /// tokens[offsets[i] .. offsets[i + 1]) were committed to request i; rows row_offsets[i] .. row_offsets[i + 1] of the likeliest
    /// tokens [rows, k] are after its last committed token and after each node of its draft, or there are none.
    void observe(std::span<RecycleRequest* const> requests, std::span<const Token> tokens, std::span<const int32_t> offsets,
                 std::span<const Token> likeliest, std::span<const float> logprobs, std::span<const int32_t> row_offsets);
    void finish(RecycleRequest& request);
    std::vector<Token> text(const RecycleRequest& request) const;
    size_t drafted(const RecycleRequest& request) const;  // nodes of its own last draft, until that is observed

    TopKArrays table(const std::optional<std::string>& tenant) const;
    void add_table(const std::optional<std::string>& tenant, const TopKArrays& arrays);
    void forget(const std::optional<std::string>& tenant);  // all that a tenant's requests taught
    size_t bytes() const;
    size_t bytes_of(const std::optional<std::string>& tenant) const;

private:
    friend class RecycleRequest;
    static constexpr int32_t kMostBudget = 4096;
    static constexpr int32_t kMostDepth = 24;
    static constexpr size_t kWidth = 8;  // children of a node, at most

    struct Guess {
        Token token;
        float chance;
        uint8_t kind, bucket;
    };
    struct Waiting {  // a candidate that may become a node
        float score;
        uint32_t order;  // in which it came: of equal scores the first
        int32_t parent;
        Token token;
    };
    void check(std::span<RecycleRequest* const> requests);
    std::shared_ptr<RecycleTenant> tenant_of(const std::optional<std::string>& name);
    size_t guesses(const RecycleRequest& request, std::span<const Token> context, uint32_t position, std::array<Guess, kWidth>& out) const;
    std::span<const Token> context_of(const RecycleRequest& request, std::span<const RecycleRequest::Node> tree, int32_t node);
    void grow(RecycleRequest& request, uint32_t budget, float least, DraftTrees& out);
    void learn_table(RecycleRequest& request, std::span<const Token> likeliest, std::span<const float> logprobs);
    static void learn_chances(RecycleRequest& request, std::span<const Token> committed);

    RecycleOptions options_;
    std::map<std::string, std::shared_ptr<RecycleTenant>> tenants_;
    std::unordered_set<RecycleRequest*> requests_;
    uint64_t clock_ = 0, call_ = 0;
    mutable std::mutex mutex_;
    std::vector<Waiting> heap_;  // scratch of `grow`
    std::vector<float> scores_;
    std::vector<uint32_t> depths_;
    std::vector<Token> path_;
};

}  // namespace foresay
