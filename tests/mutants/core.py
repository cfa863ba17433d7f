"""Mutants of `csrc`: every number that Python relies on."""

from __future__ import annotations

from mutants.mutant import Mutant

__all__ = ["CORE"]

CORE = (
    Mutant(
        "a node may be its own parent",
        "csrc/drafts.cpp",
        "parents[i] >= place)",
        "parents[i] > place)",
        "tests/test_draft.py::test_refused",
    ),
    Mutant(
        "of nodes that gain the same, a child may come before its parent",
        "csrc/budget/ranking.cpp",
        "return a.place != b.place ? a.place < b.place : a.index < b.index;",
        "return a.index > b.index;",
        "tests/core/test_ranking.py::test_the_nodes_with_the_most_tokens_per_second_are_found",
    ),
    Mutant(
        "an accepted node of packed parts is stored as the one before it",
        "csrc/step/rows.cpp",
        "rows.push_back(size + node), above = node;",
        "rows.push_back(size + node - 1), above = node;",
        "tests/models/test_parts.py::test_packed_and_one_by_one_are_the_same",
    ),
    Mutant(
        "drafted rows are chosen with the noise of the text's end",
        "csrc/sampling/match.cpp",
        "static_cast<uint32_t>(in.positions[request] + depth)",
        "static_cast<uint32_t>(in.positions[request])",
        "tests/core/test_match.py::test_equals_the_twin",
    ),
    Mutant(
        "of tokens with the same noisy logit the last one wins",
        "csrc/sampling/noise.cpp",
        "if (its_value <= value || std::isnan(value)) return;",
        "if (its_value < value || std::isnan(value)) return;",
        "tests/core/test_noise.py::test_equals_go_to_the_lowest_token",
    ),
    Mutant(
        "a rejection leaves what stands before the first block with a rest",
        "csrc/sampling/residual.cpp",
        "        std::fill_n(residual, first, 0.0);\n",
        "",
        "tests/core/test_residual.py::test_where_nothing_is_left_all_stays",
    ),
    Mutant(
        "of equally likely tokens the larger id comes first",
        "csrc/sampling/logprobs.cpp",
        "one.value == other.value && one.token < other.token",
        "one.value == other.value && one.token > other.token",
        "tests/core/test_logprobs.py::test_of_equals_the_smaller_id",
    ),
    Mutant(
        "a split context forgets how often it was followed",
        "csrc/suffix/automaton.cpp",
        "        fresh.total = old.total;\n",
        "        fresh.total = 1;\n",
        "tests/core/test_automaton.py::test_states",
    ),
    Mutant(
        "a full history drops its newest texts",
        "csrc/suffix/history.hpp",
        "while (segments_.size() > 1 && bytes() > quota_) segments_.pop_back();",
        "while (segments_.size() > 1 && bytes() > quota_) segments_.pop_front();",
        "tests/core/test_text_drafter.py::test_the_history_is_bounded_and_keeps_the_newest",
    ),
    Mutant(
        "texts of another length have the same key in vLLM's batch",
        "csrc/suffix/rows.cpp",
        "uint64_t key = length * kWeights.back();",
        "uint64_t key = kWeights.back();",
        "tests/integrations/test_vllm_parts.py"
        "::test_keys_tell_texts_apart_and_depend_on_nothing_else",
    ),
    Mutant(
        "a match in a corpus goes on into the document before",
        "csrc/corpus/frozen.cpp",
        "text_[position - length] == text_[context - length] &&\n"
        "           text_[position - length] != kBoundary)",
        "text_[position - length] == text_[context - length])",
        "tests/core/test_frozen.py::test_agrees_with_brute_force",
    ),
    Mutant(
        "a corpus file's header is not compared with its checksum",
        "csrc/corpus/frozen.cpp",
        "if (found != header.checksum)",
        "if (found == 0)",
        "tests/core/test_frozen_damage.py::test_every_bit_of_the_header_matters",
    ),
    Mutant(
        "tenants recycle each other's tokens",
        "csrc/recycle/recycle.cpp",
        'return tenant ? "." + *tenant : "";',
        'return tenant ? "." : "";',
        "tests/test_recycle.py::test_tenants_share_nothing",
    ),
    Mutant(
        "a full top-k table gives up what it learned last",
        "csrc/recycle/top_k.cpp",
        "if (clock_ - ages_[way] > clock_ - ages_[at]) at = way;",
        "if (clock_ - ages_[way] < clock_ - ages_[at]) at = way;",
        "tests/test_recycle.py::test_long_contexts_are_bounded",
    ),
    Mutant(
        "a merge judges every depth by the noise of the first",
        "csrc/merge/merge.cpp",
        "static_cast<uint32_t>(noise.positions[request] + u.depths[n])",
        "static_cast<uint32_t>(noise.positions[request])",
        "tests/test_merge.py::test_the_noise_of_a_token_counts_at_its_own_place",
    ),
    Mutant(
        "a sliding window shows one token too many",
        "csrc/cpu/attention.cpp",
        "begin = position - wanted.window + 1;",
        "begin = position - wanted.window;",
        "tests/core/test_attention.py::test_rows_are_the_twins",
    ),
    Mutant(
        "an accepted path in bfloat16 is stored in the wrong half",
        "csrc/cpu/kv.cpp",
        "row[column] = with_half(row[column], to % 2, old_row[column] >> 16 * (from % 2));",
        "row[column] = with_half(row[column], from % 2, old_row[column] >> 16 * (from % 2));",
        "tests/core/test_attention.py::test_drafts_neighbours_and_threads_change_no_bit",
    ),
    Mutant(
        "the position of a drafted row is its place in the step",
        "csrc/cpu/decoder.cpp",
        "static_cast<double>(positions[row]) * settings_",
        "static_cast<double>(positions[0] + static_cast<int64_t>(row)) * settings_",
        "tests/models/test_stored_decoder.py::test_ragged_steps_with_trees",
    ),
    Mutant(
        "the fifth bit of a weight is that of its neighbour",
        "csrc/cpu/block_sums.hpp",
        "w[i] |= (bits >> i & 1) << 4;",
        "w[i] |= (bits >> (i ^ 1) & 1) << 4;",
        "tests/core/test_block_linear.py::test_equals_the_readable_product",
    ),
    Mutant(
        "a fault that another handler hands on is not ours",
        "csrc/corpus/mapped_file.cpp",
        "if (fault != 0 || raised) {",
        "if (fault != 0) {",
        "tests/core/test_frozen_cut.py::test_a_handler_that_came_later",
    ),
    Mutant(
        "a fault elsewhere is tried again for ever after a corpus was cut",
        "csrc/corpus/mapped_file.cpp",
        "if (fault != 0 && (fault < from || fault - from >= length)) return false;",
        "",
        "tests/core/test_frozen_cut.py::test_other_faults_end_the_process_as_before",
    ),
    # ---- pages of keys and values on a device ---------------------------------------------------
    Mutant(
        "a row of a tree stands where its slot is, not where its depth is",
        "csrc/paged/step.cpp",
        "parent < 0 ? static_cast<int32_t>(stored) : positions_[first + parent] + 1;",
        "static_cast<int32_t>(stored) + row;",
        "tests/core/test_paged.py::test_every_row_sees_its_text_and_its_ancestors",
    ),
    Mutant(
        "copies that touch the same pages run at the same time",
        "csrc/paged/pages.cpp",
        "written_[page(from[i])] == batch_ || written_[page(to[i])] == batch_",
        "written_[page(to[i])] == batch_",
        "tests/core/test_paged.py::test_every_text_holds_its_tokens",
    ),
    Mutant(
        "a page that another text has is written to after a cut",
        "csrc/paged/pages.cpp",
        "first < pages_.size() && pool_->shared(pages_[first]);",
        "first < pages_.size() && length_ % PagePool::kPage == 0 && pool_->shared(pages_[first]);",
        "tests/core/test_paged.py::test_a_page_that_was_cut_is_copied_before_it_is_written",
    ),
)
