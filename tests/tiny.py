"""A whole model that fits into a moment: random weights, a tokenizer of bytes, a chat template.

And the command line without a process for each call: importing torch takes longer than the work.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
import typer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import steady  # noqa: F401 - the command line imports the engine later
from foresay.cli import run

CONTEXT = 4096
_END = "<|end|>"
_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}model: {% endif %}"
)


def save_model(folder: Path, *, chats: bool = True) -> Path:
    """Write the model into a folder; its answers are nonsense, and always the same."""
    shutil.copytree(_saved(chats).name, folder, dirs_exist_ok=True)
    return folder


@cache
def _saved(chats: bool) -> TemporaryDirectory[str]:
    """It is made once, and removed with this process."""
    made = TemporaryDirectory(prefix="tiny")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=_END)
    if chats:
        tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(made.name)
    model = llama(len(tokenizer), tokenizer.eos_token_id, 48, CONTEXT)
    randomise(model, seed=1, size=0.3)
    model.save_pretrained(made.name)
    return made


def save_words_model(folder: Path) -> Path:
    """Write a model of two layers into a folder, with a tokenizer of 50 words that knows chats."""
    words = {"<end>": 0} | {f"w{i}": i for i in range(1, 50)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w1"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}w2 {{ m.content }} w3{% endfor %}"
    tokenizer.save_pretrained(folder)
    sizes: dict[str, int] = {
        "vocab_size": 50,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "eos_token_id": 0,
    }
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)  # type: ignore[arg-type]
    return folder


def llama(vocabulary: int, end: int, intermediate: int, context: int) -> LlamaForCausalLM:
    """Two layers, 32 wide, with the weights that torch's generator gives it."""
    shape = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        eos_token_id=end,
        bos_token_id=None,
    )
    return LlamaForCausalLM(shape)


def randomise(model: nn.Module, *, seed: int, size: float) -> None:
    """Large random weights by name, whatever torch's generator gave: the model repeats itself."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=draw) * size)


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other at tiny matrices take for ever on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Done:
    """What a call of the command line left behind."""

    status: int
    out: str
    err: str

    @property
    def complaints(self) -> str:
        """What was said on stderr but for what is done: lines `foresay [1.2 s]: …`, events, and
        what the server logs of it."""
        done = re.compile(r'foresay \[\d|\{"event"|[-\d]+ [:,\d]+ INFO ')
        lines = self.err.splitlines(keepends=True)
        return "".join(line for line in lines if not done.match(line))


_COMMANDS = cache(typer.main.get_command)  # they are the same in every call


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def call(
    *arguments: object, stdin: bytes = b"", terminal: bool = False, encoding: str = "utf-8"
) -> Done:
    """`foresay` with these arguments; stdout can be made to look like a terminal."""
    kind = _Terminal if terminal else io.TextIOWrapper
    raw, err = io.BytesIO(), io.StringIO()
    out = kind(raw, encoding=encoding)
    given = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    status = 0
    with (
        patch.object(typer.main, "get_command", _COMMANDS),
        patch.object(sys, "argv", ["foresay", *map(str, arguments)]),
        patch.object(sys, "stdin", given),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            run()
        except SystemExit as end:
            status = int(end.code or 0)
    out.flush()
    return Done(status, raw.getvalue().decode(encoding), err.getvalue())
