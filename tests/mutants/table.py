"""The sabotages: small wrong changes of the real code, each with the test that finds it.

`run.py` applies each to a copy of the tree and expects the named test to fail there. They show that
the tests would find such a mistake, also after the tests were made quicker or were moved.

`old` stands in its file exactly once. `new` is a mistake that somebody could make: no line that
cannot be compiled, nothing that fails everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MUTANTS", "Mutant"]


class Mutant(NamedTuple):
    """One sabotage.

    name  by which it is called
    file  that is changed, below the root
    old   a piece of that file, which is there once
    new   what stands there instead
    test  the node id of the test that finds it
    """

    name: str
    file: str
    old: str
    new: str
    test: str

    @property
    def room(self) -> str:
        """The folder or module of `src/foresay`, or the folder of `csrc`."""
        return "/".join(self.file.removeprefix("src/foresay/").split("/")[: 2 if self.core else 1])

    @property
    def core(self) -> bool:
        """Whether it is C++: the core has to be built again."""
        return self.file.startswith("csrc/")


MUTANTS = (
    # ---- csrc: every number that Python relies on -----------------------------------------------
    Mutant(
        "a node may be its own parent",
        "csrc/drafts.cpp",
        "of.parents[i] >= place)",
        "of.parents[i] > place)",
        "tests/test_draft.py::test_refused",
    ),
    Mutant(
        "of nodes that gain the same, a child may come before its parent",
        "csrc/budget/ranking.cpp",
        "return a.place != b.place ? a.place < b.place : a.index < b.index;",
        "return a.index > b.index;",
        "tests/core/test_ranking.py::test_the_order_is_by_gain_then_by_place_then_by_draft",
    ),
    Mutant(
        "drafted rows are chosen with the noise of the text's end",
        "csrc/sampling/match.cpp",
        "static_cast<uint32_t>(in.positions[request] + row.depth)",
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
        "a full table of laws gives up what it learned last",
        "csrc/recycle/laws.cpp",
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
    # ---- what a step is made of -----------------------------------------------------------------
    Mutant(
        "packing drafts loses the empty ones",
        "src/foresay/draft.py",
        "arrays.offsets_of([len(d) for d in drafts]),",
        "arrays.offsets_of([len(d) for d in full]),",
        "tests/test_draft.py::test_packing_drafts_round_trips",
    ),
    Mutant(
        "an answer's tokens are shared as if they were prefilled",
        "src/foresay/engine/prefixes.py",
        "common = _common(request.prompt[:-1], other.prompt[:-1])",
        "common = _common(request.prompt[:-1], other.tokens[:-1])",
        "tests/engine/test_prefill_and_decode.py"
        "::test_an_answer_is_not_shared_as_a_part_of_a_prompt",
    ),
    Mutant(
        "an answer's tokens are cached as if they were prefilled",
        "src/foresay/engine/prefixes.py",
        "        length = min(request.stored, len(request.prompt) - 1)\n"
        "        if request.kv is None or length < _KEY:\n"
        "            return\n"
        "        key, tokens = _key(request), request.prompt[:length].copy()\n",
        "        length = request.stored\n"
        "        if request.kv is None or length < _KEY:\n"
        "            return\n"
        "        key, tokens = _key(request), request.tokens[:length].copy()\n",
        "tests/engine/test_prefill_and_decode.py"
        "::test_an_answer_is_not_shared_as_a_part_of_a_prompt",
    ),
    Mutant(
        "a preempted answer is computed again as prefill",
        "src/foresay/engine/request.py",
        "return max(self._prompt - 1 - self.stored, 0)",
        "return max(self._length - 1 - self.stored, 0)",
        "tests/engine/test_prefill_and_decode.py::test_a_preempted_answer_is_decoded_again",
    ),
    Mutant(
        "a stop string is found only within one token",
        "src/foresay/engine/text.py",
        "max(len(self.text) - self._longest + 1, 0)\n        tail",
        "len(self.text)\n        tail",
        "tests/engine/test_text.py::test_the_first_stop_to_be_complete_ends_the_text",
    ),
    Mutant(
        "log probabilities go on behind a stop string",
        "src/foresay/engine/logprobs.py",
        "for at in range(bounds[i], bounds[i] + int(sizes[i])):",
        "for at in range(bounds[i], bounds[i + 1]):",
        "tests/lossless/test_engine_scripts.py::test_the_engine_equals_plain_decoding",
    ),
    Mutant(
        "in a batch of both rules, rows are counted within each rule",
        "src/foresay/sampling/acceptance/verify.py",
        "places[at] = there[verified.rows[bounds[place] : bounds[place + 1]]]",
        "places[at] = verified.rows[bounds[place] : bounds[place + 1]]",
        "tests/sampling/test_verify.py::test_each_request_is_verified_by_its_own_rule",
    ),
    Mutant(
        "limited logits are divided by the temperature twice",
        "src/foresay/sampling/acceptance/processors.py",
        "        temperatures[there[sampled]] = 1\n",
        "",
        "tests/sampling/test_processors.py::test_the_batched_processors_are_the_readable_ones",
    ),
    Mutant(
        "the last token of an answer is drafted",
        "src/foresay/budget/load.py",
        "depths_of(drafts) < load.tokens_left.repeat(counts)",
        "depths_of(drafts) <= load.tokens_left.repeat(counts)",
        "tests/budget/test_policy.py::test_the_last_token_is_never_drafted",
    ),
    Mutant(
        "pooled times count as one",
        "src/foresay/budget/cost.py",
        "            weight += last\n",
        "",
        "tests/budget/test_cost.py::test_isotonic_is_the_nearest_rising_fit",
    ),
    # ---- who drafts -----------------------------------------------------------------------------
    Mutant(
        "a match that reaches the text's beginning is not seen",
        "src/foresay/drafters/ngram.py",
        "longer = places[places >= matched]",
        "longer = places[places > matched]",
        "tests/test_ngram.py::test_equals_brute_force",
    ),
    Mutant(
        "siblings are sampled with replacement, and said to be without",
        "src/foresay/drafters/decoding/law.py",
        "            left.values[at, token] = -torch.inf\n",
        "",
        "tests/drafters/test_model_laws.py::test_probs_are_what_tokens_were_sampled_from",
    ),
    Mutant(
        "a node of a head's tree does not see itself",
        "src/foresay/drafters/head/tree.py",
        "        seen[:, own, first + own] = True\n",
        "",
        "tests/eagle/test_eagle.py::test_the_tree_is_that_of_the_definition",
    ),
    Mutant(
        "drafters before the one that drafts are not told what was committed",
        "src/foresay/drafters/merge/by_one.py",
        "if other != k:",
        "if other > k:",
        "tests/test_merge_by_one.py::test_who_rests_may_stand_before_the_one_that_drafts",
    ),
    Mutant(
        "a worker's message may have more data than its arrays",
        "src/foresay/drafters/worker/frames.py",
        "if sum(4 * math.prod(shape) for _, shape in shapes) != size:",
        "if sum(4 * math.prod(shape) for _, shape in shapes) > size:",
        "tests/drafters/test_worker_frames.py::test_data_that_belongs_to_no_array_is_refused",
    ),
    Mutant(
        "a damaged file of laws is taken",
        "src/foresay/drafters/recycle/laws_file.py",
        "if sha256(rest).hexdigest().encode() != checksum:",
        "if len(sha256(rest).hexdigest().encode()) != len(checksum):",
        "tests/test_recycle_files.py::test_damaged_and_foreign_files",
    ),
    # ---- models, corpora, training --------------------------------------------------------------
    Mutant(
        "a layer's window is believed to be one token wider",
        "src/foresay/models/visibility.py",
        "return max(position - self.window + 1, 0) if self.window else 0",
        "return max(position - self.window, 0) if self.window else 0",
        "tests/models/test_target.py::test_layers_see_what_the_models_say",
    ),
    Mutant(
        "an accepted node is stored as the one before it",
        "src/foresay/models/target.py",
        "rows[tokens:] = nodes + tokens",
        "rows[tokens:] = nodes + tokens - 1",
        "tests/models/test_conformance.py"
        "::test_an_accepted_path_is_stored_and_the_rest_is_forgotten",
    ),
    Mutant(
        "documents of a corpus may overlap",
        "src/foresay/corpus/sources.py",
        " or bounds != sorted(bounds):",
        ":",
        "tests/test_corpus.py::test_bad_arrays",
    ),
    Mutant(
        "a step of the unrolled head sees the row it predicts",
        "src/foresay/train/unroll.py",
        "visible = places <= places[:, None] - step",
        "visible = places <= places[:, None]",
        "tests/train/test_train_eagle.py::test_the_steps_are_those_of_drafting",
    ),
    Mutant(
        "answers of one version too many are drafted from",
        "src/foresay/rl/history.py",
        "self._version - self._records[0].version > self._versions:",
        "self._version - self._records[0].version > self._versions + 1:",
        "tests/rl/test_history.py::test_only_the_last_versions_stay",
    ),
    Mutant(
        "the upper clip is as narrow as the lower",
        "src/foresay/rl/dapo.py",
        "ratio.clamp(1 - low, 1 + high) * gain)",
        "ratio.clamp(1 - low, 1 + low) * gain)",
        "tests/rl/test_dapo.py::test_clip_higher_on_both_sides",
    ),
    # ---- servers, edge, other engines -----------------------------------------------------------
    Mutant(
        "a body whose end is given in two ways is read",
        "src/foresay/serve/wire.py",
        "if lengths and codings:",
        "if len(lengths) > 1 and codings:",
        "tests/serve/test_wire.py::test_what_could_be_read_in_two_ways_is_refused",
    ),
    Mutant(
        "padding tells the length of a write by four bytes",
        "src/foresay/serve/shield.py",
        "filler = -(len(body) + 4) % self.pad",
        "filler = -len(body) % self.pad",
        "tests/serve/test_faults.py::test_a_shield_changes_the_packets_and_not_the_text",
    ),
    Mutant(
        "drafts behind a wrong one stay in flight",
        "src/foresay/edge/text.py",
        "            del self._flights[1:]\n",
        "",
        "tests/edge/test_text.py::test_a_mismatch_rolls_back_what_is_behind_it",
    ),
    Mutant(
        "groups of rollouts are one sample too large",
        "src/foresay/integrations/trl/sampler.py",
        "(most <= 1 or last.size < most)",
        "(most <= 1 or last.size <= most)",
        "tests/integrations/trl/test_trl_parts.py::test_groups_are_runs_of_equal_prompts",
    ),
    # ---- what measures and shows ----------------------------------------------------------------
    Mutant(
        "what cannot happen is merged with what is rare",
        "src/foresay/lossless/gtest.py",
        "    if counts[~possible].any():\n",
        "    if counts[~possible].sum() > 1:\n",
        "tests/lossless/test_gtest.py::test_the_impossible_is_found_at_once",
    ),
    Mutant(
        "a replay follows the last of the paths that agree",
        "src/foresay/bench/replay.py",
        "if deepest < 0 or depth[i] > depth[deepest]:",
        "if deepest < 0 or depth[i] > 0:",
        "tests/test_replay.py::test_walk_takes_the_longest_agreeing_path",
    ),
    Mutant(
        "text behind a stop string is shown",
        "src/foresay/cli/sources.py",
        "        if ended:\n            break\n",
        "",
        "tests/engine/test_demo.py::test_spans_join_neighbours_and_keep_characters_whole",
    ),
)
"""All of them; their names differ."""
