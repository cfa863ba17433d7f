#include "step/rows.hpp"

#include "checks.hpp"

namespace foresay {

StepRows step_rows(const StepTexts& of) {
    const size_t texts = of.needs_logits.size();
    check_parts("the tokens", of.offsets, texts, of.tokens.size());
    check_drafts(of.drafts);
    check_size("the drafts' offsets", of.drafts.offsets.size(), texts + 1);
    check_size("prefill", of.prefill.size(), texts), check_size("prefill_logits", of.prefill_logits.size(), texts);
    const size_t rows = of.tokens.size() + of.drafts.tokens.size();
    StepRows out;
    out.tokens.reserve(rows), out.parents.reserve(rows), out.needed.reserve(rows), out.offsets.reserve(texts + 1);
    out.prefill.assign(rows, 0);
    std::vector<int64_t> prefilled;
    for (size_t b = 0; b < texts; ++b) {
        const auto start = static_cast<int64_t>(out.tokens.size());
        const int32_t size = of.offsets[b + 1] - of.offsets[b], prefill = of.prefill[b], logits = of.prefill_logits[b];
        if (size < 1) throw InputError("text ", b, " has no tokens; expected at least 1");
        if (prefill < 0 || prefill > size || logits < 0 || logits > prefill)
            throw InputError("text ", b, " has ", prefill, " tokens of prefill, and ", logits, " that need logits; expected at most ", size, ", its tokens");
        out.offsets.push_back(static_cast<int32_t>(start));
        for (int32_t i = 0; i < size; ++i) out.tokens.push_back(of.tokens[static_cast<size_t>(of.offsets[b] + i)]), out.parents.push_back(i - 1);
        // A root hangs from the last token: its parent of -1 is that row.
        for (auto i = static_cast<size_t>(of.drafts.offsets[b]); i < static_cast<size_t>(of.drafts.offsets[b + 1]); ++i)
            out.tokens.push_back(of.drafts.tokens[i]), out.parents.push_back(of.drafts.parents[i] + size);
        const auto end = static_cast<int64_t>(out.tokens.size());
        for (int32_t i = 0; i < prefill; ++i) out.prefill[static_cast<size_t>(start + i)] = 1;
        if (of.needs_logits[b])
            for (int64_t row = start + size - 1; row < end; ++row) out.needed.push_back(row);
        for (int64_t row = start + prefill - logits; row < start + prefill; ++row) prefilled.push_back(row);
    }
    out.offsets.push_back(static_cast<int32_t>(rows));
    out.needed.insert(out.needed.end(), prefilled.begin(), prefilled.end());
    return out;
}

std::vector<int32_t> kept_rows(std::span<const int32_t> tokens, std::span<const int32_t> path, std::span<const int32_t> path_offsets,
                               std::span<const int32_t> parents, std::span<const int32_t> offsets) {
    if (tokens.empty() || tokens.back() < 0) throw InputError("there are no offsets of tokens; expected one more than there are texts");
    const size_t texts = tokens.size() - 1;
    check_parts("the tokens", tokens, texts, static_cast<size_t>(tokens.back()));
    check_parts("the paths", path_offsets, texts, path.size());
    check_parts("the drafts", offsets, texts, parents.size());
    std::vector<int32_t> rows;
    rows.reserve(static_cast<size_t>(tokens.back()) + path.size());
    for (size_t b = 0; b < texts; ++b) {
        const int32_t size = tokens[b + 1] - tokens[b], nodes = offsets[b + 1] - offsets[b];
        for (int32_t i = 0; i < size; ++i) rows.push_back(i);
        int32_t above = -1;
        for (auto i = static_cast<size_t>(path_offsets[b]); i < static_cast<size_t>(path_offsets[b + 1]); ++i) {
            const int32_t node = path[i];
            if (node < 0 || node >= nodes || parents[static_cast<size_t>(offsets[b] + node)] != above)
                throw InputError("the path of text ", b, " goes on with node ", node, " of ", nodes, "; expected nodes of its draft, from its root from parent to child");
            rows.push_back(size + node), above = node;
        }
    }
    return rows;
}

}  // namespace foresay
