// Several drafters' trees in one: the union of their root paths, each node with a chance that is learned from what all say.
//
// A node's chance, given that its parent is committed, starts as 1 - (1 - a)(1 - b)… of the chances that its drafters give it, as
// if they were wrong independently. What is wrong with that is learned: logistic regression on how many drafters have the node,
// which ones and how sure they are, how sure the others are of its siblings, and, where a request samples, the noise of its token.
// So a drafter that promises too much soon counts for less. Nothing depends on the order of the drafters but the weights' numbers.
// Each tenant has weights of its own, so that nothing of one shows in another's drafts.
// This file knows nothing of Python. Each call locks the merge.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drafts.hpp"

namespace foresay {

inline constexpr size_t kMostDrafters = 16;

/// What the verdicts of one tenant's requests taught.
struct MergeWeights {
    struct Weight {
        float value = 0, seen = 1e-2f;  // the sum of squared gradients
        void step(float gradient);
    };
    struct Kind {
        std::array<Weight, kMostDrafters + 1> agreeing;  // by how many drafters have the node
        std::array<Weight, kMostDrafters> has, sure, siblings, noise;
    };
    std::array<Kind, 2> kinds;  // of greedy requests, and of those that sample
    uint64_t used = 0;          // when a request last began
};

/// What one request's last merge considered, so that the outcome can be learned from. Made by TreeMerge::begin. Used by one call at a
/// time.
struct MergeMemory {
    struct Node {
        int32_t token, parent;  // of the union; -1: the last committed token
        float chance;           // given the parent
        uint32_t first, last;   // its says
        float start;            // log odds, before what was learned
        float noise;            // of its token, where the request samples: less its mean
        uint8_t drafters;       // that have it
    };
    struct Say {
        uint8_t drafter;
        bool has;      // the node; otherwise only siblings of it
        float odds;    // log odds of the node; without it the log of the chance that is left beside the siblings
    };
    explicit MergeMemory(std::shared_ptr<MergeWeights> of) : weights(std::move(of)) {}

    std::shared_ptr<MergeWeights> weights;  // of its tenant
    std::vector<Node> nodes;
    std::vector<Say> says;
    bool sampled = false;
};

struct MergedTrees : DraftTrees {
    std::vector<std::vector<int32_t>> homes;  // [drafter]: where each of its nodes went, -1: it was cut
};

/// How each request samples.
struct MergeNoise {
    std::span<const uint64_t> seeds;
    std::span<const float> temperatures;   // 0: greedy
    std::span<const int64_t> positions;    // of the next token
};

class TreeMerge {
public:
    /// `prior`: the chance of a node given its parent, of a drafter without scores. Throws InputError.
    TreeMerge(size_t drafters, float prior);

    /// A new request of a tenant.
    std::unique_ptr<MergeMemory> begin(const std::optional<std::string>& tenant);
    /// Forgets what a tenant's requests taught; those that run go on with it.
    void forget(const std::optional<std::string>& tenant);
    /// The best nodes of each request's union: draft i of every drafter is request i's. Throws InputError for what are no drafts, or
    /// sizes that differ.
    void merge(std::span<const Drafts> drafts, std::span<const int32_t> budgets, const MergeNoise& noise,
               std::span<MergeMemory* const> memories, MergedTrees& out);
    /// tokens[offsets[i] .. offsets[i + 1]) were committed to request i; its memory is empty then.
    void learn(std::span<MergeMemory* const> memories, std::span<const int32_t> tokens, std::span<const int32_t> offsets);

private:
    static constexpr size_t kMostTenants = 256;  // idle ones beyond this many are forgotten, least recently used first

    struct Union {  // scratch of one request
        std::vector<float> misses;     // product of 1 - chance
        std::vector<int32_t> depths, order, next, child;  // children of a node as a list; [0] of child is the root's
        std::vector<float> scores;
    };
    static float odds_of(const MergeMemory& memory, const MergeMemory::Node& node);
    void unite(std::span<const Drafts> drafts, size_t request, MergeMemory& memory, std::vector<std::vector<int32_t>>& homes);
    void judge(MergeMemory& memory, const MergeNoise& noise, size_t request);
    void pack(const MergeMemory& memory, size_t budget, std::vector<std::vector<int32_t>>& homes, std::span<const size_t> first, MergedTrees& out);

    size_t drafters_;
    float prior_;
    std::map<std::optional<std::string>, std::shared_ptr<MergeWeights>> tenants_;  // held by the requests too
    uint64_t clock_ = 0;
    mutable std::mutex mutex_;
    Union scratch_;
};

}  // namespace foresay
