"""Let a target write the answers that its drafters are trained on.

Its prompts come from files, or it invents them: where its chat template would put what a user says,
it writes on by itself (as in Magpie). So nothing but the model is needed, and it is asked about
what it knows. The next turns of a conversation are invented in the same way.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch

from foresay.arrays import Int32s
from foresay.errors import InputError
from foresay.files import whole_file
from foresay.models import weights
from foresay.models.progress import Progress, silent
from foresay.models.teacher import Teacher, check_device
from foresay.models.tokenizer import ChatMessage, Tokenizer
from foresay.train.settings import check_settings, check_writing

__all__ = ["Corpus", "write"]

_MARK = "\x02here\x03"  # stands for what the user says, to find where that begins
_MOST_SAID = 256  # tokens of what a user says


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus that was written.

    answers  how many, with how many `tokens` in all
    sha256   of the file before compression
    """

    out: str
    target: str
    answers: int
    tokens: int
    sha256: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def write(
    target: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    invented: int = 0,
    prompts: Sequence[str | os.PathLike[str]] = (),
    turns: int = 1,
    temperatures: Sequence[float] = (0.0, 0.8),
    most: int = 384,
    longest: int = 1024,
    batch: int = 64,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress = silent,
) -> Corpus:
    """Let a model answer, and write a trace file of its answers, gzipped.

    target        a model with a chat template, by any name that `foresay generate --model` takes
    out           the file, which ends with .jsonl.gz; it appears when it is complete
    invented      how many conversations begin with a prompt that the model invents
    prompts       files of JSON lines with a "prompt", a "question" or "turns", of which the first
                  is taken: each begins a conversation
    turns         of each conversation; those after the first are invented
    temperatures  conversations have them in turns; 0 is greedy
    most          tokens of an answer
    longest       a conversation ends before it has more tokens
    batch         conversations that are continued at the same time
    progress      called with "write": answers

    Answers depend on the device and on `batch`; the same call on the same machine writes the same.

    Raises: InputError, ModelError, TraceError, OSError.
    """
    began = perf_counter()
    check_settings(turns=turns, most=most, longest=longest, batch=batch, seed=seed)
    check_device(device)
    path, given = check_writing(out, invented, prompts, temperatures)
    folder = weights.find(target, convert=True, progress=progress)
    progress("read", 0, None)
    tokenizer = Tokenizer(folder)
    if not tokenizer.chats:
        raise InputError(f"'{target}' has no chat template; expected a model that answers prompts")
    writer = _Writer(Teacher(folder, device=device), tokenizer, batch, longest)
    total = (invented + len(given)) * turns
    conversations: list[list[ChatMessage]] = [[] for _ in range(invented)]
    conversations += [[{"role": "user", "content": said}] for said in given]
    heats = [temperatures[at % len(temperatures)] for at in range(len(conversations))]
    lines: list[dict[str, Any]] = []
    tokens = 0
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        for turn in range(turns):
            progress("write", turn * len(conversations), total)
            writer.invent(conversations)
            for at, asked, answer in writer.answer(
                conversations, heats, most, lambda done: progress("write", len(lines) + done, total)
            ):
                tokens += len(answer)
                name = f"{at}.{len(conversations[at]) // 2 - 1}"
                ids = {"prompt": asked.tolist(), "output": answer.tolist()}
                lines.append({"id": name, "group": str(at), **ids})
    if not lines:
        raise InputError(
            f"the model invented no prompt that ends, or none fits into {longest} tokens with its "
            "answer; expected prompts from a file, or a larger `longest`"
        )
    progress("write", total, total)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        part.write_bytes(gzip.compress(text, mtime=0))
    sha256 = hashlib.sha256(text).hexdigest()
    return Corpus(str(path), str(target), len(lines), tokens, sha256, perf_counter() - began)


class _Writer:
    """A model that continues many conversations at once."""

    def __init__(self, teacher: Teacher, tokenizer: Tokenizer, batch: int, longest: int) -> None:
        self.teacher, self.tokenizer, self.batch = teacher, tokenizer, batch
        self.longest = min(longest, teacher.context)

    def invent(self, conversations: list[list[ChatMessage]]) -> None:
        """Add what the user says to conversations that wait for it. One that gets too long, or
        whose user says nothing, stays as it is."""
        waiting = [at for at, said in enumerate(conversations) if len(said) % 2 == 0]
        begun = {at: self._before_user(conversations[at]) for at in waiting}
        waiting = [at for at in waiting if len(begun[at]) + _MOST_SAID <= self.longest]
        for batch in self._continued(waiting, begun, _MOST_SAID, 1.0):
            for at, said in batch:
                content = self.tokenizer.decode(said.tolist()).strip()
                if content and int(said[-1]) in self.tokenizer.ends:  # else it was cut off
                    conversations[at].append({"role": "user", "content": content})

    def answer(
        self,
        conversations: list[list[ChatMessage]],
        temperatures: Sequence[float],
        most: int,
        report: Any,
    ) -> list[tuple[int, Int32s, Int32s]]:
        """Answer what users said: which conversation, its prompt and the answer, which is added to
        the conversation."""
        waiting = [at for at, said in enumerate(conversations) if len(said) % 2]
        asked = {at: self.tokenizer.chat(conversations[at]) for at in waiting}
        waiting = [at for at in waiting if len(asked[at]) + most <= self.longest]
        answered = []
        for temperature in sorted(set(temperatures)):
            alike = [at for at in waiting if temperatures[at] == temperature]
            for batch in self._continued(alike, asked, most, temperature):
                for at, answer in batch:
                    said = self.tokenizer.decode(answer.tolist())
                    conversations[at].append({"role": "assistant", "content": said})
                    answered.append((at, asked[at], answer))
                report(len(answered))
        return sorted(answered, key=lambda one: one[0])

    def _before_user(self, said: list[ChatMessage]) -> Int32s:
        """The tokens up to where the user speaks next."""
        marked = self.tokenizer.render([*said, {"role": "user", "content": _MARK}])
        before, mark, _ = marked.partition(_MARK)
        if not mark:
            raise InputError(
                "the model's chat template changes what a user says, so nothing can be invented; "
                "expected prompts from a file"
            )
        return self.tokenizer.encode(before, special=False)

    def _continued(
        self, which: Sequence[int], texts: dict[int, Int32s], most: int, temperature: float
    ) -> Iterator[list[tuple[int, Int32s]]]:
        """Which text, and what follows it; in batches of about one length."""
        order = sorted(which, key=lambda at: (len(texts[at]), at))
        for begin in range(0, len(order), self.batch):
            some = order[begin : begin + self.batch]
            found = self.teacher.continued(
                [texts[at] for at in some],
                most=most,
                ends=self.tokenizer.ends,
                temperature=temperature,
            )
            yield list(zip(some, found, strict=True))
