#include "merge/merge.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "errors.hpp"
#include "idle.hpp"
#include "sampling/noise.hpp"

namespace foresay {
namespace {

constexpr float kLeast = 1e-4f, kMost = 0.9995f;
constexpr float kRate = 0.15f;

float log_odds(float chance) {
    const float bounded = std::clamp(chance, kLeast, kMost);
    return std::log(bounded / (1 - bounded));
}

float chance_of(float odds) { return 1 / (1 + std::exp(-odds)); }

}  // namespace

void MergeWeights::Weight::step(float gradient) {
    seen += gradient * gradient;
    value -= kRate * gradient / std::sqrt(seen);
}

TreeMerge::TreeMerge(size_t drafters, float prior) : drafters_(drafters), prior_(prior) {
    if (drafters == 0 || drafters > kMostDrafters) throw InputError("there are ", drafters, " drafters; expected 1 to ", kMostDrafters);
    if (!(prior >= 0 && prior <= 1)) throw InputError("prior is ", prior, "; expected a chance from 0 to 1");
}

std::unique_ptr<MergeMemory> TreeMerge::begin(const std::optional<std::string>& tenant) {
    const std::lock_guard lock(mutex_);
    auto found = tenants_.find(tenant);
    if (found == tenants_.end()) found = tenants_.emplace(tenant, std::make_shared<MergeWeights>()).first;
    found->second->used = ++clock_;
    auto made = std::make_unique<MergeMemory>(found->second);
    drop_idle(tenants_, kMostTenants);
    return made;
}

void TreeMerge::forget(const std::optional<std::string>& tenant) {
    const std::lock_guard lock(mutex_);
    tenants_.erase(tenant);
}

/// The union as a trie, with what each drafter says of each node.
void TreeMerge::unite(std::span<const Drafts> drafts, size_t request, MergeMemory& memory, std::vector<std::vector<int32_t>>& homes) {
    Union& u = scratch_;
    memory.nodes.clear(), memory.says.clear();
    u.child.assign(1, -1), u.next.clear();
    struct Said {
        int32_t node;
        uint8_t drafter;
        float chance;
    };
    std::vector<Said> said;
    for (size_t k = 0; k < drafters_; ++k) {
        const Drafts& draft = drafts[k];
        const auto first = static_cast<size_t>(draft.offsets[request]), last = static_cast<size_t>(draft.offsets[request + 1]);
        const size_t base = homes[k].size();
        for (size_t i = first; i < last; ++i) {
            const int32_t parent = draft.parents[i];
            const int32_t above = parent < 0 ? -1 : homes[k][base + static_cast<size_t>(parent)];
            int32_t node = u.child[static_cast<size_t>(above + 1)];
            while (node >= 0 && memory.nodes[static_cast<size_t>(node)].token != draft.tokens[i]) node = u.next[static_cast<size_t>(node)];
            if (node < 0) {
                node = static_cast<int32_t>(memory.nodes.size());
                memory.nodes.push_back({draft.tokens[i], above, 0, 0, 0, 0, 0, 0});
                u.next.push_back(u.child[static_cast<size_t>(above + 1)]);
                u.child[static_cast<size_t>(above + 1)] = node;
                u.child.push_back(-1);
            }
            float chance = prior_;
            if (draft.scores) {
                const float before = parent < 0 ? 1.f : draft.scores[first + static_cast<size_t>(parent)];
                chance = before > 0 ? draft.scores[i] / before : 0.f;
            }
            // A drafter that has a path twice says it once, as well as it can.
            const auto same = std::find_if(said.begin(), said.end(), [&](const Said& s) { return s.node == node && s.drafter == k; });
            if (same == said.end()) said.push_back({node, static_cast<uint8_t>(k), chance});
            else same->chance = std::max(same->chance, chance);
            homes[k].push_back(node);
        }
    }
    // What is left beside each drafter's children of a node: those who have siblings of a node speak against it.
    const size_t places = memory.nodes.size() + 1;  // 0: the root
    std::vector<float> left(places * drafters_, 1.f);
    for (const Said& s : said) left[static_cast<size_t>(memory.nodes[static_cast<size_t>(s.node)].parent + 1) * drafters_ + s.drafter] -= s.chance;
    // Sorted by chance, too: a product of rounded numbers depends on their order, and must not depend on that of the drafters.
    std::stable_sort(said.begin(), said.end(), [](const Said& a, const Said& b) {
        return a.node < b.node || (a.node == b.node && a.chance < b.chance);
    });
    size_t at = 0;
    u.misses.assign(memory.nodes.size(), 1.f);
    for (size_t n = 0; n < memory.nodes.size(); ++n) {
        MergeMemory::Node& node = memory.nodes[n];
        node.first = static_cast<uint32_t>(memory.says.size());
        uint32_t have = 0;
        for (; at < said.size() && said[at].node == static_cast<int32_t>(n); ++at) {
            memory.says.push_back({said[at].drafter, true, log_odds(said[at].chance)});
            u.misses[n] *= 1 - std::clamp(said[at].chance, kLeast, kMost);
            have |= 1u << said[at].drafter;
            ++node.drafters;
        }
        for (size_t k = 0; k < drafters_; ++k) {
            const float beside = left[static_cast<size_t>(node.parent + 1) * drafters_ + k];
            if (!(have >> k & 1) && beside < 1) memory.says.push_back({static_cast<uint8_t>(k), false, std::log(std::clamp(beside, 0.02f, 1.f))});
        }
        node.last = static_cast<uint32_t>(memory.says.size());
    }
}

float TreeMerge::odds_of(const MergeMemory& memory, const MergeMemory::Node& node) {
    const MergeWeights::Kind& w = memory.weights->kinds[memory.sampled];
    float odds = w.agreeing[node.drafters].value;
    for (uint32_t i = node.first; i < node.last; ++i) {
        const MergeMemory::Say& say = memory.says[i];
        if (say.has) odds += w.has[say.drafter].value + w.sure[say.drafter].value * say.odds + w.noise[say.drafter].value * node.noise;
        else odds += w.siblings[say.drafter].value * say.odds;
    }
    return odds;
}

/// The chance of each node, given its parent.
void TreeMerge::judge(MergeMemory& memory, const MergeNoise& noise, size_t request) {
    Union& u = scratch_;
    memory.sampled = noise.temperatures[request] > 0;
    u.depths.assign(memory.nodes.size(), 0);
    for (size_t n = 0; n < memory.nodes.size(); ++n) {
        MergeMemory::Node& node = memory.nodes[n];
        u.depths[n] = node.parent < 0 ? 0 : u.depths[static_cast<size_t>(node.parent)] + 1;
        if (memory.sampled) {
            const NoiseKey key{noise.seeds[request], static_cast<uint32_t>(noise.positions[request] + u.depths[n]), 0};
            node.noise = std::min(static_cast<float>(gumbel(key, static_cast<uint32_t>(node.token))) - 0.5772f, 6.f);
        }
        node.start = log_odds(1 - u.misses[n]);
        node.chance = std::min(chance_of(node.start + odds_of(memory, node)), kMost);
    }
    // Siblings share one place: together they are not more than certain.
    std::vector<float> chances;
    for (const int32_t first : u.child) {
        chances.clear();
        for (int32_t node = first; node >= 0; node = u.next[static_cast<size_t>(node)])
            chances.push_back(memory.nodes[static_cast<size_t>(node)].chance);
        std::sort(chances.begin(), chances.end());  // as above
        const float sum = std::accumulate(chances.begin(), chances.end(), 0.f);
        for (int32_t node = first; sum > kMost && node >= 0; node = u.next[static_cast<size_t>(node)])
            memory.nodes[static_cast<size_t>(node)].chance *= kMost / sum;
    }
}

void TreeMerge::pack(const MergeMemory& memory, size_t budget, std::vector<std::vector<int32_t>>& homes, std::span<const size_t> first,
                     MergedTrees& out) {
    Union& u = scratch_;
    const size_t count = memory.nodes.size();
    u.scores.resize(count), u.order.resize(count);
    for (size_t n = 0; n < count; ++n) {
        const int32_t parent = memory.nodes[n].parent;
        u.scores[n] = parent < 0 ? memory.nodes[n].chance : memory.nodes[n].chance * u.scores[static_cast<size_t>(parent)];
        u.order[n] = static_cast<int32_t>(n);
    }
    // Of equal scores the shallower, then the smaller tokens: so the order does not depend on that of the drafters.
    const auto path = [&](int32_t node) {
        std::vector<int32_t> tokens;
        for (; node >= 0; node = memory.nodes[static_cast<size_t>(node)].parent) tokens.push_back(memory.nodes[static_cast<size_t>(node)].token);
        std::reverse(tokens.begin(), tokens.end());
        return tokens;
    };
    std::sort(u.order.begin(), u.order.end(), [&](int32_t a, int32_t b) {
        const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
        if (u.scores[i] != u.scores[j]) return u.scores[i] > u.scores[j];
        if (u.depths[i] != u.depths[j]) return u.depths[i] < u.depths[j];
        return path(a) < path(b);
    });
    const size_t kept = std::min(budget, count);
    std::vector<int32_t> place(count + 1, -1);  // the last is for parent -1
    for (size_t i = 0; i < kept; ++i) place[static_cast<size_t>(u.order[i])] = static_cast<int32_t>(i);
    for (size_t i = 0; i < kept; ++i) {
        const auto n = static_cast<size_t>(u.order[i]);
        const int32_t parent = memory.nodes[n].parent;
        out.tokens.push_back(memory.nodes[n].token);
        out.parents.push_back(parent < 0 ? -1 : place[static_cast<size_t>(parent)]);
        out.scores.push_back(u.scores[n]);
    }
    out.end_tree();
    for (size_t k = 0; k < drafters_; ++k)
        for (size_t i = first[k]; i < homes[k].size(); ++i) homes[k][i] = place[static_cast<size_t>(homes[k][i])];
}

void TreeMerge::merge(std::span<const Drafts> drafts, std::span<const int32_t> budgets, const MergeNoise& noise,
                      std::span<MergeMemory* const> memories, MergedTrees& out) {
    const size_t requests = budgets.size();
    if (drafts.size() != drafters_ || memories.size() != requests || noise.seeds.size() != requests ||
        noise.temperatures.size() != requests || noise.positions.size() != requests)
        throw InputError("a merge of ", drafters_, " drafters got ", drafts.size(), " batches for ", requests,
                         " budgets; expected one batch of each, and one state, seed, temperature and position of each request");
    for (const Drafts& each : drafts) {
        check_drafts(each);
        if (each.offsets.size() != requests + 1) throw InputError("a batch has ", each.offsets.size() - 1, " drafts; expected ", requests);
    }
    const std::lock_guard lock(mutex_);
    out.homes.assign(drafters_, {});
    std::vector<size_t> first(drafters_);
    for (size_t request = 0; request < requests; ++request) {
        for (size_t k = 0; k < drafters_; ++k) first[k] = out.homes[k].size();
        unite(drafts, request, *memories[request], out.homes);
        judge(*memories[request], noise, request);
        pack(*memories[request], static_cast<size_t>(std::max(budgets[request], 0)), out.homes, first, out);
    }
}

void TreeMerge::learn(std::span<MergeMemory* const> memories, std::span<const int32_t> tokens, std::span<const int32_t> offsets) {
    check_offsets(offsets, tokens.size());
    if (offsets.size() != memories.size() + 1) throw InputError("there are ", offsets.size() - 1, " verdicts; expected ", memories.size());
    const std::lock_guard lock(mutex_);
    for (size_t request = 0; request < memories.size(); ++request) {
        MergeMemory& memory = *memories[request];
        const auto committed = tokens.subspan(static_cast<size_t>(offsets[request]), static_cast<size_t>(offsets[request + 1] - offsets[request]));
        MergeWeights::Kind& w = memory.weights->kinds[memory.sampled];
        std::vector<int32_t> behind(memory.nodes.size(), -1);  // committed tokens that a node on the path stands behind
        for (size_t n = 0; n < memory.nodes.size(); ++n) {
            const MergeMemory::Node& node = memory.nodes[n];
            const int32_t before = node.parent < 0 ? 0 : behind[static_cast<size_t>(node.parent)];
            if (before < 0 || static_cast<size_t>(before) >= committed.size()) continue;
            const bool right = committed[static_cast<size_t>(before)] == node.token;
            if (right) behind[n] = before + 1;
            const float gradient = chance_of(node.start + odds_of(memory, node)) - static_cast<float>(right);
            w.agreeing[node.drafters].step(gradient);
            for (uint32_t i = node.first; i < node.last; ++i) {
                const MergeMemory::Say& say = memory.says[i];
                if (say.has) {
                    w.has[say.drafter].step(gradient);
                    w.sure[say.drafter].step(gradient * say.odds);
                    if (memory.sampled) w.noise[say.drafter].step(gradient * node.noise);
                } else w.siblings[say.drafter].step(gradient * say.odds);
            }
        }
        memory.nodes.clear(), memory.says.clear();
    }
}

}  // namespace foresay
