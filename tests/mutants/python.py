"""Mutants of `src/foresay`."""

from __future__ import annotations

from mutants.mutant import Mutant

__all__ = ["PYTHON"]

PYTHON = (
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
        "return max(self.length - 1 - self.stored, 0)",
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
        "for place in range(int(sizes[i])):",
        "for place in range(bounds[i + 1] - bounds[i]):",
        "tests/lossless/test_engine_scripts.py::test_the_engine_equals_plain_decoding",
    ),
    Mutant(
        "in a batch of both rules, rows are counted within each rule",
        "src/foresay/sampling/acceptance/verdicts.py",
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
        "a verdict has the numbers of the verified nodes alone",
        "src/foresay/budget/selected.py",
        "path = _core.numbered(batch.path, batch.path_offsets, self.drafts.offsets, self.nodes)",
        "path = batch.path",
        "tests/budget/test_load.py::test_paths_go_back_to_the_drafters_numbers",
    ),
    Mutant(
        "the last token of an answer is drafted",
        "src/foresay/budget/load.py",
        "drafts.depths < load.tokens_left",
        "drafts.depths <= load.tokens_left",
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
        "src/foresay/drafters/decoding/next_tokens.py",
        "            left.values[at, token] = -torch.inf\n",
        "",
        "tests/drafters/test_model_probs.py::test_probs_are_what_tokens_were_sampled_from",
    ),
    Mutant(
        "a node of a head's tree does not see itself",
        "src/foresay/drafters/head/tree.py",
        "        seen[:, own, first + own] = True\n",
        "",
        "tests/eagle/test_eagle.py::test_the_tree_is_that_of_the_definition",
    ),
    Mutant(
        "drafters that are not asked are never told what was committed",
        "src/foresay/drafters/merge/drafter.py",
        "            if own is None:\n                for at, state in enumerate(states):\n",
        "            if own is None:\n                for at, state in enumerate(states[:0]):\n",
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
        "a damaged table file is taken",
        "src/foresay/drafters/recycle/table_file.py",
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
    # ---- defects that were reported -------------------------------------------------------------
    Mutant(
        "a stream gives out the last token alone of what other calls' steps wrote",
        "src/foresay/engine/answers.py",
        "request.tokens[len(request.prompt) + begin :].tolist()",
        "request.tokens[-1:].tolist()",
        "tests/engine/test_interleaved.py::test_two_streams_in_turns",
    ),
    Mutant(
        "a request waits for the prefix of one that is paused",
        "src/foresay/engine/prefixes.py",
        "if not other.paused:",
        "if not other.finished:",
        "tests/engine/test_paused.py::test_nobody_waits_for_a_prefix_that_is_not_computed",
    ),
    Mutant(
        "a request that sits a step out loses its row of the ledger",
        "src/foresay/engine/ledger.py",
        "            self.settle(request)\n            request.ledger = None",
        "            request.ledger = None",
        "tests/engine/test_ledger.py::test_each_request_gets_the_steps_that_it_was_in",
    ),
    Mutant(
        "a drafter gets the path that the step goes on with",
        "src/foresay/engine/drafting.py",
        "for request in told], verdicts.copy()",
        "for request in told], verdicts",
        "tests/engine/test_engine_bad_drafters.py::"
        "test_a_drafter_may_write_into_all_that_it_is_given",
    ),
    Mutant(
        "a commit's check is not compared",
        "src/foresay/edge/stream.py",
        "if message.check != check_of_commit(",
        "if message.check < 0 != check_of_commit(",
        "tests/edge/test_flipped_bits.py::test_every_bit_of_what_the_cloud_sends",
    ),
    Mutant(
        "the check of what was opened is not compared",
        "src/foresay/edge/stream.py",
        "if answer.check != check_of_opened(",
        "if answer.check < 0 != check_of_opened(",
        "tests/edge/test_flipped_bits.py::test_every_bit_of_what_the_cloud_sends",
    ),
    Mutant(
        "padding does not end what was filled in",
        "src/foresay/models/ends.py",
        '"<|fim_pad|>", ',
        "",
        "tests/models/test_ends.py::test_filling_in_ends_with_its_padding",
    ),
    Mutant(
        "a draft model learns of all tenants together",
        "src/foresay/drafters/decoding/drafter.py",
        "self._noise[tenant]",
        "self._noise[None]",
        "tests/test_tenants_apart.py::test_a_draft_model_learns_by_tenant",
    ),
    Mutant(
        "the first of several drafters becomes one tree beside external drafts",
        "src/foresay/drafters/lineup.py",
        'isinstance(drafter, drafters.MergeDrafter) and drafter.rule == "union"',
        "isinstance(drafter, drafters.MergeDrafter)",
        "tests/test_lineup.py::test_drafts_from_outside_join_one_tree",
    ),
    Mutant(
        "a chunk's drafted tokens are counted for each of its tokens",
        "src/foresay/serve/stream.py",
        '"prompt_logprobs": None, "drafted": 0,',
        '"prompt_logprobs": None,',
        "tests/serve/test_pieces.py::test_the_numbers_of_a_step_are_counted_once",
    ),
    Mutant(
        "a tokenizer file cuts prompts",
        "src/foresay/models/tokenizer_readers.py",
        "    inner.no_truncation()\n",
        "",
        "tests/models/test_tokenizer.py::test_texts_are_neither_cut_nor_padded_nor_cleaned",
    ),
    Mutant(
        "tensors of a GGUF file overlap",
        "src/foresay/models/weights/gguf_header.py",
        "if one.start + one.size > two.start:",
        "if one.start > two.start:",
        "tests/models/test_gguf.py::test_where_tensors_are",
    ),
    # ---- a GPU's kernels ------------------------------------------------------------------------
    Mutant(
        "a node sees its siblings' children",
        "src/foresay/models/gpu/attention.py",
        "(place[None, :] <= position[:, None]) & (path == its)[:, None]",
        "(place[None, :] <= position[:, None]) & (position >= 0)[:, None]",
        "tests/models/test_gpu_kernels.py::test_attention",
    ),
    Mutant(
        "rows beyond the first tile are added up in another order",
        "src/foresay/models/gpu/product_kernels.py",
        'sums2 = tl.dot(weights, tl.trans(some2), sums2, input_precision="ieee")',
        'sums2 += tl.dot(weights, tl.trans(some2), input_precision="ieee")',
        "tests/models/test_gpu_kernels.py"
        "::test_a_row_of_a_product_has_the_same_bits_among_any_number",
    ),
    Mutant(
        "copies of slots are not in their order",
        "src/foresay/models/gpu/elementwise.py",
        "        at = begin + tl.arange(0, many)\n        there = at < end\n",
        "        at = end - 1 - begin + tl.load(offsets_at + group) - tl.arange(0, many)\n"
        "        there = at >= tl.load(offsets_at + group)\n",
        "tests/models/test_gpu_kernels.py::test_copies_of_a_group_are_in_their_order",
    ),
    # ---- asynchronous scheduling -----------------------------------------------------------------
    Mutant(
        "a step that was started ahead is used though the one before was not committed",
        "src/foresay/engine/ahead.py",
        "if not turns or not all(_is_committed(turn.request) for turn in turns):",
        "if not turns:",
        "tests/engine/test_ahead_faults.py::test_an_interrupt",
    ),
    Mutant(
        "rows are those of the requests that are left, not of all that are computed",
        "src/foresay/engine/ahead.py",
        "return np.array([places[request.number] for request in part.decoding], np.int64)",
        "return np.arange(len(part.decoding))",
        "tests/engine/test_ahead.py::test_the_same_texts",
    ),
    Mutant(
        "noise of a step that is started ahead is that of the step before",
        "src/foresay/engine/ahead.py",
        "asks.a_token_on()",
        "asks",
        "tests/engine/test_ahead.py::test_the_same_texts",
    ),
    Mutant(
        "tokens that come before a probe could be verified count for it",
        "src/foresay/budget/adaptive.py",
        "gains[drafts.depths[found.order] <= _TOKENS_AHEAD] = 0",
        "gains[drafts.depths[found.order] <= _TOKENS_AHEAD] += 9",
        "tests/engine/test_probes.py::test_many_answers_at_once",
    ),
)
