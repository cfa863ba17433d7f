"""Models whose answers are known: the last token alone decides which one follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from tiny import CONTEXT, llama, save_model

_SURE = 20.0  # what follows is all but certain, at a temperature of 1, too
_TURNS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% set said = (messages | rejectattr('role', 'equalto', 'system') | list)[-1].content %}"
)


def save_scripted(folder: Path, script: Sequence[str], *, context: int = CONTEXT) -> Path:
    """A model that answers everything with these tokens, which differ, one after the other, and
    again from the first."""
    save_model(folder)
    after = dict(zip(script, (*script[1:], script[0]), strict=True))
    return _save(folder, after, script[0], AutoTokenizer.from_pretrained(folder), context)


def save_agent(
    folder: Path,
    answers: Mapping[str, Sequence[str]],
    *,
    tokenizer: Path | None = None,
    context: int = CONTEXT,
) -> Path:
    """A model that answers by what the last message says that is not the system's: the tokens of
    the first of the answers whose key is in it. No two tokens of all the answers are the same.

    tokenizer  the folder of one; None: one of bytes
    """
    if tokenizer is None:
        save_model(folder)
    read: Any = AutoTokenizer.from_pretrained(tokenizer or folder)
    after: dict[str, str] = {}
    prompts = ""
    for at, (key, tokens) in enumerate(answers.items()):
        begin = f"<|{at}|>"
        prompts += f"{{% {'elif' if at else 'if'} '{key}' in said %}}{begin}"
        after |= zip((begin, *tokens), (*tokens, read.eos_token), strict=True)
    read.chat_template = f"{{# <think> #}}{_TURNS}{prompts}{{% else %}}model: {{% endif %}}"
    return _save(folder, after, read.eos_token, read, context)


def _save(
    folder: Path, after: Mapping[str, str], else_after: str, tokenizer: Any, context: int
) -> Path:
    tokenizer.add_tokens([token for token in after if len(token) > 1])
    tokenizer.save_pretrained(folder)
    model: Any = llama(len(tokenizer), tokenizer.eos_token_id, 48, context)
    number = tokenizer.convert_tokens_to_ids
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()  # so that the last token alone decides
        embed, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        width = embed.shape[1]
        assert len(after) < width
        embed.zero_()
        head.zero_()
        embed[:, -1] = 1
        head[number(else_after), -1] = _SURE
        for at, (token, follower) in enumerate(after.items()):
            embed[number(token)] = torch.eye(width)[at]
            head[number(follower), at] = _SURE
    model.save_pretrained(folder)
    return folder
