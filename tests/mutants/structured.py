"""Mutants of structured answers."""

from __future__ import annotations

from mutants.mutant import Mutant

__all__ = ["STRUCTURED"]

STRUCTURED = (
    Mutant(
        "masks are those of the node before",
        "src/foresay/structured/tree.py",
        "        matcher.fill_mask(masks[node + 1])\n",
        "        matcher.fill_mask(masks[node])\n",
        "tests/engine/test_structured.py::test_a_tree_is_one_text_after_another",
    ),
    Mutant(
        "a grammar stays at the end of a draft",
        "src/foresay/structured/tree.py",
        "            waiting += [(child, depth + 1) for child in reversed(children[node + 1])]\n"
        "    matcher.rollback(len(matcher) - begin)\n",
        "            waiting += [(child, depth + 1) for child in reversed(children[node + 1])]\n",
        "tests/engine/test_structured.py::test_a_tree_is_one_text_after_another",
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
        "            known[begin:end] &= legal\n",
        "",
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
        "the drafter within is told of forced nodes as if they were its own",
        "src/foresay/drafters/grammar.py",
        "        path.append(form.last.own[node])\n",
        "        path.append(node)\n",
        "tests/drafters/test_grammar.py::test_the_inner_drafter_is_told_in_its_own_numbers",
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
