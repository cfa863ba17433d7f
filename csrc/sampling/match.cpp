#include "sampling/match.hpp"

#include <algorithm>
#include <string>

#include "drafts.hpp"
#include "sampling/noise.hpp"

namespace foresay {
namespace {

void check_trees(const Trees& in) {
    const size_t requests = in.room.size();
    check_size("offsets", in.offsets.size(), requests + 1);
    check_size("stops", in.stops.size(), in.stop_owners.size());
    check_drafts({in.tokens, in.parents, in.offsets, nullptr});
    for (size_t i = 0; i < in.stop_owners.size(); ++i)
        if (in.stop_owners[i] < (i ? in.stop_owners[i - 1] : 0) || static_cast<size_t>(in.stop_owners[i]) >= requests)
            throw InputError("stop ", i, " is of request ", in.stop_owners[i], "; expected requests that rise, below ", requests);
}

void check_input(const MatchInput& in) {
    const size_t requests = in.seeds.size(), nodes = in.tokens.size();
    check_size("offsets", in.offsets.size(), requests + 1);
    check_size("positions", in.positions.size(), requests);
    check_size("room", in.room.size(), requests);
    if (in.logits.count != requests + nodes)
        throw InputError("logits have ", in.logits.count, " rows; expected ", requests + nodes, ", one for each request and node");
    check_size("temperatures", in.temperatures.size(), in.logits.count);
    check_width(in.logits);
    check_temperatures(in.temperatures);
    check_trees(in);
    for (size_t b = 0; b < requests; ++b)
        if (const int64_t most = int64_t{UINT32_MAX} - (in.offsets[b + 1] - in.offsets[b]); in.positions[b] < 0 || in.positions[b] > most)
            throw InputError("positions[", b, "] is ", in.positions[b], "; expected 0 to ", most, " with so many nodes behind it");
}

/// A row of a request: after its text, then after each node.
struct Row {
    Choice chosen;
    int32_t parent = -1;  // row
    uint32_t depth = 0;
};

/// The verdict of one request.
struct Walk {
    std::vector<int32_t> tokens, path;
    std::vector<int64_t> rows;
    uint8_t status;
};

/// chosen_at(row, depth): the choice from a row of all requests' rows, `depth` nodes behind the text.
template <class ChosenAt>
Walk walk(const Trees& in, size_t request, ChosenAt&& chosen_at) {
    const auto first = static_cast<size_t>(in.offsets[request]), count = static_cast<size_t>(in.offsets[request + 1]) - first + 1;
    std::vector<Row> rows(count);
    size_t last = 0;
    for (size_t i = 0; i < count; ++i) {
        Row& row = rows[i];
        if (i > 0) {
            row.parent = in.parents[first + i - 1] + 1;
            const Row& above = rows[static_cast<size_t>(row.parent)];
            if (above.chosen.status != RowStatus::kGood || above.chosen.token != in.tokens[first + i - 1]) continue;
            row.depth = above.depth + 1;
        }
        row.chosen = chosen_at(first + request + i, row.depth);
        if (row.chosen.status == RowStatus::kGood && row.depth > rows[last].depth) last = i;
    }
    Walk out{{}, {}, {}, rows[0].chosen.status};
    if (out.status != RowStatus::kGood) return out;
    out.tokens.push_back(rows[last].chosen.token), out.rows.push_back(static_cast<int64_t>(first + request + last));
    for (size_t i = last; i > 0; i = static_cast<size_t>(rows[i].parent)) {
        out.tokens.push_back(in.tokens[first + i - 1]), out.path.push_back(static_cast<int32_t>(i - 1));
        out.rows.push_back(static_cast<int64_t>(first + request) + rows[i].parent);
    }
    std::reverse(out.tokens.begin(), out.tokens.end()), std::reverse(out.path.begin(), out.path.end()), std::reverse(out.rows.begin(), out.rows.end());
    // Up to the end of the answer.
    size_t length = static_cast<size_t>(std::clamp<int64_t>(in.room[request], 0, static_cast<int64_t>(out.tokens.size())));
    const auto [begin, end] = std::equal_range(in.stop_owners.begin(), in.stop_owners.end(), static_cast<int64_t>(request));
    for (auto owner = begin; owner != end; ++owner) {
        const auto found = std::find(out.tokens.begin(), out.tokens.end(), in.stops[static_cast<size_t>(owner - in.stop_owners.begin())]);
        if (found != out.tokens.end()) length = std::min(length, static_cast<size_t>(found - out.tokens.begin()) + 1);
    }
    out.tokens.resize(length), out.rows.resize(length);
    out.path.resize(std::min(out.path.size(), length ? length - 1 : 0));
    return out;
}

Matched joined(const std::vector<Walk>& walks) {
    Matched out;
    out.offsets.push_back(0), out.path_offsets.push_back(0);
    for (const Walk& one : walks) {
        out.tokens.insert(out.tokens.end(), one.tokens.begin(), one.tokens.end());
        out.path.insert(out.path.end(), one.path.begin(), one.path.end());
        out.rows.insert(out.rows.end(), one.rows.begin(), one.rows.end());
        out.offsets.push_back(static_cast<int32_t>(out.tokens.size())), out.path_offsets.push_back(static_cast<int32_t>(out.path.size()));
        out.statuses.push_back(one.status);
    }
    return out;
}

}  // namespace

Matched match(const MatchInput& in, uint32_t threads, const Kernels& level) {
    check_input(in);
    std::vector<Walk> walks(in.seeds.size());
    for_each(walks.size(), threads, [&](size_t request) {
        walks[request] = walk(in, request, [&](size_t at, uint32_t depth) {
            const NoiseKey key{in.seeds[request], static_cast<uint32_t>(in.positions[request] + depth), in.stream};
            return choose_row(in.logits.row(at), in.temperatures[at], key, level);
        });
    });
    return joined(walks);
}

Matched follow(const Trees& in, std::span<const int64_t> codes) {
    check_trees(in);
    check_size("codes", codes.size(), in.room.size() + in.tokens.size());
    for (const int64_t code : codes)
        if (code > INT32_MAX || code < -1 - RowStatus::kEmpty)
            throw InputError("code ", code, " is not valid; expected a token id, or less than 0 by 1 and a status");
    std::vector<Walk> walks(in.room.size());
    for (size_t request = 0; request < walks.size(); ++request)
        walks[request] = walk(in, request, [&](size_t at, uint32_t) {
            const int64_t code = codes[at];
            return code >= 0 ? Choice{static_cast<int32_t>(code), 0.0, RowStatus::kGood}
                             : Choice{-1, 0.0, static_cast<uint8_t>(-1 - code)};
        });
    return joined(walks);
}

}  // namespace foresay
