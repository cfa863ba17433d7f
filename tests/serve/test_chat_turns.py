"""Chat templates that want one system message and turns, and what agents send: several system
messages, also late ones, and several messages of the user at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foresay.models.tokenizer import Tokenizer
from foresay.serve.chat.formats import format_of
from foresay.serve.chat.messages import in_turns
from foresay.serve.chat.templates import Templates
from foresay.serve.limits import Refused
from foresay.serve.schema import CalledFunction, ChatMessage, ToolCall
from serve.test_chat_prompts import grammars, saved

SHOWN = "{% for m in messages %}[{{ m.role }}: {{ m.content }}{{ m.tool_calls }}]{% endfor %}"
STRICT = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('The system has to be first.') }}{% endif %}"
    "{% if not loop.first and m.role == loop.previtem.role %}"
    "{{ raise_exception('Roles have to alternate.') }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ CALL }}{% endfor %}"
    "{% endfor %}" + SHOWN
)
TEXTS = STRICT.replace("CALL", "c.function.arguments + ''")  # an object cannot be added to a text


def message(role: str, content: str = "", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_in_turns() -> None:
    calls = [{"function": {"name": "f", "arguments": {}}}]
    given = [
        *(message("system", "a"), message("system", "b"), message("developer", "c")),
        *(message("user", "d"), message("user", "e"), message("system", "f")),
        *(message("assistant", "g", tool_calls=calls), message("assistant", "h")),
        *(message("tool", "i", tool_call_id="1"), message("tool", "j", tool_call_id="2")),
        *(message("developer", "k"), message("user", "l")),
    ]
    assert in_turns(given) == [
        *(message("system", "a\n\nb"), message("developer", "c"), message("user", "d\n\ne\n\nf")),
        *(message("assistant", "g", tool_calls=calls), message("assistant", "h")),
        *(message("tool", "i", tool_call_id="1"), message("tool", "j", tool_call_id="2")),
        message("user", "k\n\nl"),
    ]
    told = in_turns(given, system=False)
    assert told[0] == message("user", "a\n\nb\n\nc\n\nd\n\ne\n\nf")
    assert told[1:] == in_turns(given)[3:]
    assert in_turns([]) == [] and given[0] == message("system", "a")


AGENT = [
    *(ChatMessage("developer", "Be good."), ChatMessage("developer", "Be brief.")),
    *(ChatMessage("user", "It is Monday."), ChatMessage("user", "Look.")),
    ChatMessage("system", "There are no agents."),
]
CALLED = [
    *AGENT,
    ChatMessage("assistant", "", [ToolCall(CalledFunction("f", '{"a":1}'), "1", "function")]),
    ChatMessage("tool", "b", tool_call_id="1"),
]


def rendered(folder: Path, template: str, messages: list[ChatMessage]) -> str:
    tokenizer = Tokenizer(saved(folder, f"{{# tool_calls #}}{template}", "text"))
    return Templates(tokenizer, grammars(tokenizer)).render(messages, None)


def test_what_agents_send_is_told_in_turns_where_it_must_be(tmp_path: Path) -> None:
    turns = "[system: Be good.\n\nBe brief.][user: It is Monday.\n\nLook.\n\nThere are no agents.]"
    strict = STRICT.replace("CALL", "''")
    assert rendered(tmp_path, strict, AGENT) == turns
    # The ones that a template takes stay as they are.
    assert rendered(tmp_path, SHOWN, AGENT) == (
        "[system: Be good.][system: Be brief.][user: It is Monday.][user: Look.]"
        "[system: There are no agents.]"
    )
    for template, arguments in ((strict, "{'a': 1}"), (TEXTS, """'{"a": 1}'""")):
        shown = rendered(tmp_path, template, CALLED)
        assert turns in shown and f"'arguments': {arguments}" in shown
        assert shown.endswith("[tool: b]")


def test_a_template_without_a_system_is_told_all_by_the_user(tmp_path: Path) -> None:
    none = "{% if messages[0].role == 'system' %}{{ raise_exception('No system.') }}{% endif %}"
    shown = rendered(tmp_path, none + STRICT.replace("CALL", "''"), AGENT)
    assert shown.startswith("[user: Be good.\n\nBe brief.\n\nIt is Monday.")


def test_ids_that_mistrals_templates_want(tmp_path: Path) -> None:
    """Nine letters and digits, also where calls are not written in Mistral's older format."""
    wants = (
        "[TOOL_CALLS][ARGS]{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('Ids have 9 characters.') }}{% endif %}"
        "{{ c.id }}{% endfor %}{{ m.tool_call_id }}{% endfor %}"
    )
    shown = rendered(tmp_path, wants, CALLED).removeprefix("[TOOL_CALLS][ARGS]")
    assert len(shown) == 18 and shown[:9] == shown[9:] and shown.isalnum()
    assert len(format_of(wants).new_id()) == 9 and format_of(wants).name == "json"


def test_a_template_that_names_developers_need_not_know_their_role(tmp_path: Path) -> None:
    """A token for developers is no role."""
    told = AGENT[:1]
    named = "{% set token = '<|developer_start|>' %}" + SHOWN
    assert rendered(tmp_path, named, told) == "[system: Be good.]"
    for quoted in ("'developer'", '"developer"'):
        known = f"{{% if messages[0].role == {quoted} %}}yes{{% endif %}}"
        assert rendered(tmp_path, known, told) == "yes"


def test_the_first_refusal_is_told(tmp_path: Path) -> None:
    """That of the messages as they came."""
    never = STRICT.replace("CALL", "raise_exception('No calls.')")
    with pytest.raises(Refused, match=r"The system has to be first\."):
        rendered(tmp_path, never, CALLED)
    with pytest.raises(Refused, match=r"No calls\."):
        rendered(tmp_path, never, CALLED[-2:])
