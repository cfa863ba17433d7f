"""Mutants of `src/foresay/serve/chat`."""

from __future__ import annotations

from mutants.mutant import Mutant

__all__ = ["CHAT"]

CHAT = (
    Mutant(
        "the begin of a marker at the end of a piece is content",
        "src/foresay/serve/chat/reasoning.py",
        "for size in range(min(len(text), len(marker) - 1), 0, -1):",
        "for size in range(min(len(text), len(marker) - 2), 0, -1):",
        "tests/serve/test_chat_calls.py::test_calls",
    ),
    Mutant(
        "a function with a name that there is not is called",
        "src/foresay/serve/chat/calls.py",
        "known = isinstance(named, str) and named in self._names and self.name is None",
        "known = isinstance(named, str) and self.name is None",
        "tests/serve/test_chat_calls.py::test_calls",
    ),
    Mutant(
        "an answer that max_tokens ended behind a call has ended with calls",
        "src/foresay/serve/chat/answers.py",
        """if reason == "stop" and self._readers[chunk.index].called:""",
        """if reason is not None and self._readers[chunk.index].called:""",
        "tests/serve/test_chat_calls.py::test_why_an_answer_of_calls_has_ended",
    ),
    Mutant(
        "a stop string within a call ends with calls",
        "src/foresay/serve/chat/answers.py",
        " and not self._calls.within",
        "",
        "tests/serve/test_chat_calls.py::test_why_an_answer_of_calls_has_ended",
    ),
    Mutant(
        "the beginning of a call that must be made is content",
        "src/foresay/serve/chat/calls.py",
        "if not (self._must and isinstance(one, Content))",
        "if True",
        "tests/serve/test_chat_calls.py::test_where_calls_must_be_made_what_is_cut_off_is_no_content",
    ),
    Mutant(
        "white space beside tools is not that of the form",
        "src/foresay/serve/chat/grammar.py",
        "return json_rule(schema, style, lenient=not tool.strict)",
        "return json_rule(schema, lenient=not tool.strict)",
        "tests/serve/test_chat_style.py::test_white_space_is_as_free_beside_tools_as_alone",
    ),
    Mutant(
        "any tool may be called where one is named",
        "src/foresay/serve/chat/grammar.py",
        "    several = range(len(use.callable))\n",
        "    use = ToolUse(use.tools, use.tools, use.must, use.many)\n"
        "    several = range(len(use.callable))\n",
        "tests/serve/test_chat_prompts.py::test_grammars_of_calls",
    ),
    Mutant(
        "text before a call may hold the opening of a call, letter by letter",
        "src/foresay/serve/chat/grammar.py",
        """_without('(?s:.*)' + _escaped(form.opening))}")  # also""",
        """_without('x' + _escaped(form.opening))}")  # also""",
        "tests/serve/test_chat_prompts.py::test_an_opening_written_by_letters",
    ),
    Mutant(
        "a form begins before the reasoning has ended",
        "src/foresay/serve/chat/grammar.py",
        'return StructuredOutputs(grammar=f"start: answer\\n{rules}", after=markers.closing)',
        'return StructuredOutputs(grammar=f"start: answer\\n{rules}")',
        "tests/serve/test_chat_prompts.py::test_grammars_behind_reasoning",
    ),
    Mutant(
        "usage tells what the server hides",
        "src/foresay/serve/answer.py",
        "        if not self._hide:\n            details.accepted",
        "        if True:\n            details.accepted",
        "tests/serve/test_chat_reasoning.py::test_usage_tells_of_drafts_unless_the_server_hides_them",
    ),
    Mutant(
        "what the system says late is told to templates that refuse it",
        "src/foresay/serve/chat/messages.py",
        'one = {**one, "role": "user"}',
        "pass",
        "tests/serve/test_chat_turns.py::test_in_turns",
    ),
    Mutant(
        "the last refusal of a template is told, not the first",
        "src/foresay/serve/chat/templates.py",
        "raise Refused(400, str(refusals[0])",
        "raise Refused(400, str(refusals[-1])",
        "tests/serve/test_chat_turns.py::test_the_first_refusal_is_told",
    ),
)
