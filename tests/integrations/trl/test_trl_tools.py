"""TRL's own loop of tool calls over the mixin: several turns of one sample.

A tiny model writes no call that could be parsed; so an odd first token is taken for one. All else
is TRL's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integrations.trl.training import NONE, SUFFIX, Trained, tokenizer, train

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}w0 {{ m['content'] }} "
    "{% elif m['role'] == 'assistant' %}w20 {{ m['content'] }} "
    "{% for c in m['tool_calls'] or [] %}w21 {{ c['function']['name'] }} "
    "{% for k, v in c['function']['arguments'].items() %}{{ k }} {{ v }} {% endfor %}{% endfor %}"
    "<eos> {% else %}w22 {{ m['content'] }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}w20 {% endif %}"
)


def w30(a: int) -> str:
    """A tool.

    Args:
        a: A number.
    """
    return f"w35 {a} w36"


def _parsed(tokens: Any, ids: list[int], **_: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": tokens.decode(ids)}
    if ids[0] % 2:
        call = {"name": "w30", "arguments": {"a": 3}}
        said["tool_calls"] = [{"type": "function", "function": call}]
    return said


def test_turns_after_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl.trainer.grpo_trainer.parse_response", _parsed)
    words = tokenizer()
    words.chat_template, words.response_template = TEMPLATE, {"known": True}
    done: list[Trained] = [
        train(
            tmp_path,
            "mixin",
            settings,
            prompts=[[{"role": "user", "content": text}] for text in ("w1 w2", "3 4 5")],
            arguments={"tools": [w30], "processing_class": words},
            max_steps=1,
            max_tool_calling_iterations=2,
        )
        for settings in (NONE, SUFFIX)
    ]
    plain, drafted = done
    assert drafted.texts == plain.texts and drafted.steps[0]["loss"] == plain.steps[0]["loss"]
    row = drafted.steps[0]
    assert row["tools/call_frequency"] > 0
    result = words.encode("w35 3 w36")
    assert any(result == text[at : at + 3] for text in drafted.texts[0] for at in range(len(text)))
    assert row["sampling/sampling_logp_difference/max"] < 1e-5  # without the tool's own tokens
