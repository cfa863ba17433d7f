#include "drafts.hpp"

#include <charconv>
#include <string>

#include "errors.hpp"

namespace foresay {
namespace {

/// The shortest decimal that reads as that number.
std::string shortest(float value) {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

void DraftTrees::clear() {
    tokens.clear(), parents.clear(), scores.clear();
    offsets.assign(1, 0);
}

void DraftTrees::append(const DraftTrees& more) {
    const int32_t base = offsets.back();
    tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
    parents.insert(parents.end(), more.parents.begin(), more.parents.end());
    scores.insert(scores.end(), more.scores.begin(), more.scores.end());
    for (size_t i = 1; i < more.offsets.size(); ++i) offsets.push_back(base + more.offsets[i]);
}

void check_offsets(std::span<const int32_t> offsets, size_t nodes) {
    if (offsets.empty()) throw InputError("offsets is empty; expected one entry more than there are drafts");
    if (offsets.front() != 0 || offsets.back() < 0 || static_cast<size_t>(offsets.back()) != nodes)
        throw InputError("offsets are from ", offsets.front(), " to ", offsets.back(), "; expected 0 to ", nodes, ", the number of nodes");
    for (size_t i = 1; i < offsets.size(); ++i)
        if (offsets[i] < offsets[i - 1])
            throw InputError("offsets[", i, "] is ", offsets[i], " after ", offsets[i - 1], "; expected offsets that never fall");
}

void check_parents(std::span<const int32_t> parents, std::span<const int32_t> offsets) {
    check_offsets(offsets, parents.size());
    for (size_t b = 0; b + 1 < offsets.size(); ++b)
        for (auto begin = static_cast<size_t>(offsets[b]), i = begin; i < static_cast<size_t>(offsets[b + 1]); ++i) {
            const auto place = static_cast<int64_t>(i - begin);
            if (parents[i] < -1 || parents[i] >= place)
                throw InputError("parents[", i, "] is ", parents[i], "; expected -1 to ", place - 1, " for node ", place,
                                 " of its draft, because parents come before children");
        }
}

void check_drafts(const Drafts& of) {
    const size_t nodes = of.tokens.size();
    if (of.parents.size() != nodes) throw InputError("there are ", nodes, " tokens but ", of.parents.size(), " parents; expected one each");
    check_offsets(of.offsets, nodes);
    for (size_t i = 0; i < nodes; ++i)
        if (of.tokens[i] < 0 || of.tokens[i] == INT32_MAX)
            throw InputError("tokens[", i, "] is ", of.tokens[i], "; expected a token id from 0 to 2147483646");
    check_parents(of.parents, of.offsets);
    if (!of.scores) return;
    for (size_t i = 0; i < nodes; ++i)
        if (!(of.scores[i] >= 0 && of.scores[i] <= 1))
            throw InputError("scores[", i, "] is ", shortest(of.scores[i]), "; expected a chance from 0 to 1");
    for (size_t b = 0; b + 1 < of.offsets.size(); ++b)
        for (auto begin = static_cast<size_t>(of.offsets[b]), i = begin; i < static_cast<size_t>(of.offsets[b + 1]); ++i) {
            if (of.parents[i] < 0) continue;
            const float above = of.scores[begin + static_cast<size_t>(of.parents[i])];
            if (of.scores[i] > above)
                throw InputError("scores[", i, "] is ", shortest(of.scores[i]), "; expected at most its parent's ", shortest(above),
                                 ", because a node is committed only with its parent");
        }
}

}  // namespace foresay
