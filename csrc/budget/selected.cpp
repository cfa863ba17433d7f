#include "budget/selected.hpp"

#include "checks.hpp"

namespace foresay {
namespace {

/// Calls look(i, place) for each node of the paths: its index in `path`, and its place among all nodes.
template <class Look>
void follow(std::span<const int32_t> path, std::span<const int32_t> path_offsets, std::span<const int32_t> offsets, size_t nodes, const Look& look) {
    check_offsets(offsets, nodes);
    check_parts("the paths", path_offsets, offsets.size() - 1, path.size());
    for (size_t b = 0; b + 1 < offsets.size(); ++b)
        for (auto i = static_cast<size_t>(path_offsets[b]); i < static_cast<size_t>(path_offsets[b + 1]); ++i) {
            const int32_t size = offsets[b + 1] - offsets[b];
            if (path[i] < 0 || path[i] >= size) throw InputError("path[", i, "] is ", path[i], "; expected 0 to ", size - 1, ", the nodes of draft ", b);
            look(i, static_cast<size_t>(offsets[b] + path[i]));
        }
}

}  // namespace

Packed packed(const Drafts& drafts, std::span<const bool> keep) {
    check_drafts(drafts);
    check_size("keep", keep.size(), drafts.tokens.size());
    Packed out;
    out.drafts.tokens.reserve(keep.size()), out.drafts.parents.reserve(keep.size()), out.nodes.reserve(keep.size());
    out.drafts.scores.reserve(drafts.scores ? keep.size() : 0), out.drafts.offsets.reserve(drafts.offsets.size());
    std::vector<int32_t> places(keep.size());  // of each kept node in its packed draft
    for (size_t b = 0; b + 1 < drafts.offsets.size(); ++b) {
        const auto begin = static_cast<size_t>(drafts.offsets[b]), first = out.nodes.size();
        for (size_t i = begin; i < static_cast<size_t>(drafts.offsets[b + 1]); ++i) {
            if (!keep[i]) continue;
            int32_t parent = drafts.parents[i];
            if (parent >= 0) {
                const size_t above = begin + static_cast<size_t>(parent);
                if (!keep[above])
                    throw InputError("node ", i, " of a proposal is kept without its parent; expected the parent of each node that is kept");
                parent = places[above];
            }
            places[i] = static_cast<int32_t>(out.nodes.size() - first);
            out.drafts.tokens.push_back(drafts.tokens[i]), out.drafts.parents.push_back(parent);
            if (drafts.scores) out.drafts.scores.push_back(drafts.scores[i]);
            out.nodes.push_back(static_cast<int32_t>(i - begin));
        }
        out.drafts.end_tree();
    }
    return out;
}

std::vector<int32_t> numbered(std::span<const int32_t> path, std::span<const int32_t> path_offsets, std::span<const int32_t> offsets,
                              std::span<const int32_t> nodes) {
    std::vector<int32_t> out(path.size());
    follow(path, path_offsets, offsets, nodes.size(), [&](size_t i, size_t place) { out[i] = nodes[place]; });
    return out;
}

std::vector<uint8_t> accepted(std::span<const int32_t> path, std::span<const int32_t> path_offsets, std::span<const int32_t> offsets,
                              std::span<const bool> keep) {
    std::vector<uint8_t> all(keep.size()), out;
    follow(path, path_offsets, offsets, keep.size(), [&](size_t, size_t place) { all[place] = 1; });
    out.reserve(keep.size());
    for (size_t i = 0; i < keep.size(); ++i)
        if (keep[i]) out.push_back(all[i]);
    return out;
}

}  // namespace foresay
