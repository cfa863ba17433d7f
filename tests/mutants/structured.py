"""Mutants of structured answers."""

from __future__ import annotations

from mutants.mutant import Mutant

__all__ = ["STRUCTURED"]

STRUCTURED = (
    Mutant(
        "masks are those of the node before",
        "src/foresay/structured/tree.py",
        "below, row = children[node + 1], masks[node + 1]",
        "below, row = children[node + 1], masks[node]",
        "tests/structured/test_tree.py::test_a_tree_is_one_text_after_another",
    ),
    Mutant(
        "a grammar stays at the end of a draft",
        "src/foresay/structured/tree.py",
        "    finally:\n        matcher.rollback(len(matcher) - begin)\n",
        "    finally:\n        pass\n",
        "tests/structured/test_tree.py::test_a_tree_is_one_text_after_another",
    ),
    Mutant(
        "an answer may end before its form does",
        "src/foresay/structured/matcher.py",
        "        if self._inner.is_accepting():\n            row |= self._stops\n",
        "        row |= self._stops\n",
        "tests/structured/test_grammars.py::test_an_answer_ends_only_where_the_grammar_accepts",
    ),
    Mutant(
        "what ends the lead is not looked at behind it",
        "src/foresay/structured/matcher.py",
        "            if len(barred):\n",
        "            if False:\n",
        "tests/structured/test_grammars.py"
        "::test_before_the_form_only_what_breaks_its_beginning_is_masked",
    ),
    Mutant(
        "every row of a draft has the mask of its first",
        "src/foresay/sampling/acceptance/masks.py",
        "masks[begins[owner] + which[mine] - rows.starts[owner]]",
        "masks[begins[owner]]",
        "tests/sampling/test_verify.py::test_chosen_drafts",
    ),
    Mutant(
        "an answer goes on behind the end of its form",
        "src/foresay/engine/request.py",
        "self.last in self._ask.stops or (self.matcher is not None and self.matcher.complete)",
        "self.last in self._ask.stops",
        "tests/engine/test_structured.py::test_it_ends_where_the_form_ends",
    ),
    Mutant(
        "illegal drafts are verified",
        "src/foresay/engine/structured.py",
        "        request.matcher is not None and budget > 0 and at not in proposal.probs\n",
        "        False\n",
        "tests/engine/test_structured.py::test_illegal_drafts_cost_no_budget",
    ),
    Mutant(
        "a structured request runs ahead of its mask",
        "src/foresay/engine/request.py",
        "            or params.structured_outputs is not None\n",
        "",
        "tests/engine/test_structured.py::test_on_a_device_the_others_run_ahead",
    ),
    Mutant(
        "a drafter is told of forced nodes as if they were its own",
        "src/foresay/engine/proposal.py",
        "        path = self.own[verdicts.path + self.offsets[:-1].repeat(sizes)]\n",
        "        path = verdicts.path\n",
        "tests/engine/test_forced.py::test_a_drafter_is_told_in_its_own_numbers",
    ),
    Mutant(
        "sampled drafts are cut by the form",
        "src/foresay/engine/structured.py",
        " and at not in proposal.probs\n",
        "\n",
        "tests/engine/test_structured.py::test_illegal_drafts_cost_no_budget",
    ),
    Mutant(
        "the mask of a forced place is that of another token",
        "src/foresay/structured/tree.py",
        "np.int64(1 << tokens[only] % 32)",
        "np.int64(1 << (tokens[only] + 1) % 32)",
        "tests/structured/test_tree.py::test_a_tree_is_one_text_after_another",
    ),
    Mutant(
        "a mask behind a rollback may be that of another text",
        "src/foresay/structured/matcher.py",
        "            self._stale |= len(self._told) < self._masked_at\n",
        "",
        "tests/structured/test_tree.py::test_a_mask_behind_a_rollback_is_of_its_own_text",
    ),
    Mutant(
        "several tokens of a draft have the work of one step",
        "src/foresay/structured/matcher.py",
        "                taken = self._consume_with_masks(tokens)\n",
        "                taken = self._inner.try_consume_tokens(tokens)\n",
        "tests/structured/test_hostile.py::test_what_is_written_token_by_token_is_followed_at_once",
    ),
    Mutant(
        "a lexer that is used up is not begun anew",
        "src/foresay/structured/matcher.py",
        "        self._start = self._begin()\n",
        "",
        "tests/structured/test_hostile.py::test_a_grammar_does_not_wear_out",
    ),
    Mutant(
        "a form whose first tokens are beyond the limits is compiled",
        "src/foresay/structured/trial_process.py",
        "            raise ValueError(matcher.get_error())\n\n\ndef",
        "            return\n\n\ndef",
        "tests/structured/test_hostile.py::test_what_no_answer_could_follow_is_refused",
    ),
)
