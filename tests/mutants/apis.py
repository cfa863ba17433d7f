"""Mutants of `/v1/responses` and `/v1/messages`."""

from __future__ import annotations

from mutants.mutant import Mutant

__all__ = ["APIS"]

_RESPONSES, _MESSAGES = "src/foresay/serve/responses/", "src/foresay/serve/messages/"

APIS = (
    Mutant(
        "a response is kept that shall not be",
        _RESPONSES + "routes.py",
        "keep = None if body.store is False else partial(self.kept.put, tenant)",
        "keep = partial(self.kept.put, tenant)",
        "tests/serve/test_responses_kept.py::test_nothing_is_kept_that_shall_not_be",
    ),
    Mutant(
        "a response is found by any tenant",
        _RESPONSES + "kept.py",
        "        own = self._of.get(tenant)\n",
        "        own = next((each for each in self._of.values() if name in each), None)\n",
        "tests/serve/test_responses_kept.py::test_one_tenants_responses_are_not_anothers",
    ),
    Mutant(
        "a response that is read goes as if it were not",
        _RESPONSES + "kept.py",
        "        own.move_to_end(name)\n",
        "",
        "tests/serve/test_items.py::test_a_conversation_is_used_as_a_whole",
    ),
    Mutant(
        "a response that was dropped counts as if it were kept",
        _RESPONSES + "kept.py",
        "            if gone is not None:\n                self._bytes[tenant] -= gone.size\n",
        "",
        "tests/serve/test_items.py::test_what_is_kept_stays_within_its_bounds",
    ),
    Mutant(
        "the answers of a conversation are left out",
        _RESPONSES + "routes.py",
        "            items += msgspec.json.decode(kept.answer, type=_Output).output\n",
        "",
        "tests/serve/test_responses.py::test_a_conversation_goes_on",
    ),
    Mutant(
        "an item that begins has the text that it will have",
        _RESPONSES + "output.py",
        "told = msgspec.structs.replace(item)",
        "told = item",
        "tests/serve/test_items.py::test_the_items_of_a_response",
    ),
    Mutant(
        "two calls are one",
        _RESPONSES + "output.py",
        """            found = self._close("completed")
            namespace, name =""",
        """            found: list[Event] = []
            namespace, name =""",
        "tests/serve/test_items.py::test_the_items_of_a_response",
    ),
    Mutant(
        "a response that was cut off is completed",
        _RESPONSES + "shape.py",
        'complete=reason != "length"',
        "complete=True",
        "tests/serve/test_responses.py::test_the_events_of_a_text_in_their_order",
    ),
    Mutant(
        "a call of a function in a namespace comes without it",
        _RESPONSES + "output.py",
        'more = {"namespace": namespace} if namespace else {}',
        "more: dict[str, str] = {}",
        "tests/serve/test_agents.py::test_what_codex_sends",
    ),
    Mutant(
        "reasoning is a message of its own",
        _RESPONSES + "items.py",
        """if "content" in turn or "tool_calls" in turn:""",
        "if turn:",
        "tests/serve/test_items.py::test_a_turn_of_the_assistant_is_one_message",
    ),
    Mutant(
        "thinking is shown to who has not asked for it",
        _MESSAGES + "blocks.py",
        "        if not self._thinking:\n            return []\n",
        "",
        "tests/serve/test_items.py::test_the_blocks_of_a_message",
    ),
    Mutant(
        "an end by a stop sequence is one by the model",
        _MESSAGES + "shape.py",
        'message.stop_reason = "stop_sequence"',
        "pass",
        "tests/serve/test_messages.py::test_stop_sequences_are_named",
    ),
    Mutant(
        "tokens from the prefix cache count twice",
        _MESSAGES + "shape.py",
        "fresh = usage.prompt_tokens - cached",
        "fresh = usage.prompt_tokens",
        "tests/serve/test_messages.py::test_the_text_is_that_of_the_plain_loop",
    ),
    Mutant(
        "a model is not told that a tool has failed",
        _MESSAGES + "translate.py",
        "if block.is_error:",
        "if block.is_error is None:",
        "tests/serve/test_claude_code.py::test_the_model_is_told_that_a_tool_has_failed",
    ),
    Mutant(
        "an answer that fills the context ends as if it had all its tokens",
        _MESSAGES + "shape.py",
        'if reason == "length" and self._cut:',
        'if reason == "stop" and self._cut:',
        "tests/serve/test_claude_code.py::test_the_rest_of_the_context_is_the_most",
    ),
    Mutant(
        "a full context has an error that Claude Code does not know",
        _MESSAGES + "errors.py",
        'message = f"prompt is too long: {message}"',
        "pass",
        "tests/serve/test_claude_code.py::test_what_it_is_told_when_it_asks_for_too_much",
    ),
    Mutant(
        "plain requests wait until slow forms are compiled",
        "src/foresay/serve/app.py",
        "await self._compilers.run(",
        "await self._readers.run(",
        "tests/serve/test_hostile_forms.py::test_plain_requests_wait_for_no_slow_form",
    ),
    Mutant(
        "a request does not hold its grammar until the engine begins",
        "src/foresay/serve/app.py",
        "request.state.grammar = await self._compiled",
        "await self._compiled",
        "tests/serve/test_hostile_forms.py::test_a_request_holds_its_grammar",
    ),
    Mutant(
        "a wrong key is made good by another header",
        "src/foresay/serve/admission.py",
        "if given is None and other is not None else given",
        "if other is not None else given",
        "tests/serve/test_routes.py::test_a_key_opens_as_anthropics_clients_send_it",
    ),
)
