"""Mutants of the GPU's kernels, and of steps that are started ahead."""

from __future__ import annotations

from mutants.mutant import Mutant

__all__ = ["GPU"]

GPU = (
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
