"""The offline API: prompts in, answers out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from typing import Any, TypeAlias
from weakref import WeakSet

import numpy as np

from foresay.abilities import check_drafter
from foresay.arrays import Int32s, as_tokens, check_callable, check_flag, check_positive
from foresay.budget.policy import Policy, make_policy
from foresay.corpus.tokenizer import tokenizer_hash_in
from foresay.drafter import Drafter
from foresay.drafters.lineup import make_drafter
from foresay.engine.answers import Answer, Chunk, Result
from foresay.engine.engine import Engine
from foresay.engine.request import Request
from foresay.engine.samples import add_answers
from foresay.errors import InputError, StateError
from foresay.models.device import device_for
from foresay.models.load import find_model, load
from foresay.models.options import Dtype, LoadOptions, Quantise
from foresay.models.progress import Progress, silent
from foresay.models.reading import reading
from foresay.models.tokenizer import ChatMessage, Tokenizer
from foresay.models.weights import DEFAULT_MODEL, StoredModel
from foresay.sampling.params import SamplingParams
from foresay.structured.grammars import Grammars

__all__ = ["LLM", "Chunk", "Prompt", "Result", "drafter_of"]

Prompt: TypeAlias = "str | Sequence[int] | Int32s | Sequence[ChatMessage]"
Params: TypeAlias = "SamplingParams | Sequence[SamplingParams] | None"
_ROWS, _GPU_ROWS = 512, 1024  # prompt tokens in a step: enough to make good use of the device


class LLM:
    """A language model with exact speculative decoding.

    model          "smollm2-135m" (the default), a folder, a .gguf file, a name on the hub, or what
                   `models.load.find_model` found
    drafter        "suffix", "ngram", "recycle", "model:NAME" (a smaller model), "self",
                   "eagle:FOLDER", "mtp", several with + between, "none", or any Drafter
    policy         how much is verified: "adaptive", "fixed", "threshold", "dynamic-k", "none", or
                   a Policy
    dtype          "auto" (weights as they are stored), "bfloat16" or "float32"; on GPUs "float16"
    quantize       "q8_0" or "q4_0": quantise the matrices of safetensors when they are read; those
                   of a GGUF file are widened first. On processors only
    device         "auto" (a CUDA device where there is one), "cpu", "cuda" or "cuda:N"
    deterministic  batch-invariant: the same answer whatever other requests run
    memory         bytes for the KV cache; None: a quarter of what is free, on a GPU what its target
                   takes
    weight_memory  bytes of weights on a GPU; layers beyond that are streamed from the host's
                   memory in every step. None: all are there
    max_running    requests in one step; the others wait
    max_rows       prompt tokens in one step: a longer prefill takes several steps. None: 512, and
                   1024 on a GPU
    with_sources   note where each token was drafted from (`Result.sources`)
    progress       called in every stage that takes time: progress(stage, done, total), see
                   `foresay.models.progress`; what it raises ends the work

    `grammars` compiles the forms of structured answers (`SamplingParams.structured_outputs`).
    `device` says afterwards where it runs: "cpu", "cuda" or "cuda:N". The drafters "model:NAME",
    "eagle:FOLDER" and "mtp" run there as well.

    Mutates: through `generate` and `stream`: the drafter learns. Raises: ModelError,
    UnsupportedModel, InputError when constructed. One thread at a time may use it.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | StoredModel = DEFAULT_MODEL,
        drafter: str | Drafter[Any] | None = "suffix",
        policy: str | Policy = "adaptive",
        *,
        dtype: Dtype = "auto",
        quantize: Quantise | None = None,
        device: str = "auto",
        deterministic: bool = True,
        memory: int | None = None,
        weight_memory: int | None = None,
        max_running: int = 256,
        max_rows: int | None = None,
        with_sources: bool = False,
        progress: Progress | None = None,
    ) -> None:
        check_flag(deterministic, "deterministic")
        check_flag(with_sources, "with_sources")
        check_callable(progress, "progress")
        # All is checked before the long work, not after it.
        self._limits: dict[str, Any] = {
            "memory": _free_memory() // 4 if memory is None else memory,
            "max_running": max_running,
            "max_rows": _ROWS if max_rows is None else max_rows,
        }
        for name, value in self._limits.items():
            check_positive(value, name)
        options = LoadOptions(
            dtype, quantize, device=device, memory=memory, weight_memory=weight_memory
        )
        make_policy(policy)
        self.device = device_for(options)
        if max_rows is None and self.device != "cpu":
            self._limits["max_rows"] = _GPU_ROWS
        made = drafter_of(drafter, model, self.device)
        report = progress or silent
        how: dict[str, Any] = {"dtype": dtype, "quantize": quantize, "device": self.device}
        if not isinstance(model, StoredModel):
            model = find_model(model, progress=report, **how)
        self._model = replace(model, decoder=None)
        report("read", 0, None)
        with reading(model, self.device) if options.as_stored else nullcontext(model) as read:
            self.tokenizer = Tokenizer(model.folder)
            how |= {"deterministic": deterministic, "memory": memory, "progress": report}
            how["weight_memory"] = weight_memory
            self.target = load(read, **how)
        if self.target.memory is not None:
            self._limits["memory"] = self.target.memory
        self.tokenizer_hash = tokenizer_hash_in(model.folder)  # None: not known
        self.grammars = Grammars(self.tokenizer, self.target.vocabulary)
        self._sharing: WeakSet[LLM] = WeakSet()  # all with this target
        self._begin(made, policy, with_sources, report)

    def beside(
        self,
        drafter: str | Drafter[Any] | None = "suffix",
        policy: str | Policy = "adaptive",
        *,
        with_sources: bool = False,
        progress: Progress | None = None,
    ) -> LLM:
        """Another one with the same model in memory, and an engine of its own. On a GPU both have
        the same memory for keys and values, so that one at a time should have requests: then
        nothing is left of its prefix cache when they have ended.

        Raises: InputError.
        """
        check_flag(with_sources, "with_sources")
        other = object.__new__(LLM)
        other.tokenizer, other.target, other._limits = self.tokenizer, self.target, self._limits
        other.tokenizer_hash, other._model = self.tokenizer_hash, self._model
        other.grammars = self.grammars
        other.device = self.device
        other._sharing = self._sharing
        made = drafter_of(drafter, self._model, self.device)
        other._begin(made, policy, with_sources, progress or silent)
        self._leave_memory()
        return other

    def _begin(
        self,
        drafter: Drafter[Any] | None,
        policy: str | Policy,
        with_sources: bool,
        progress: Progress,
    ) -> None:
        """Make the engine, over the target that is there."""
        self.engine = Engine(
            self.target,
            drafter,
            policy=policy,
            tokenizer_hash=self.tokenizer_hash,
            grammars=self.grammars,
            with_sources=with_sources,
            progress=progress,
            **self._limits,
        )
        self._sharing.add(self)
        self._at_work: int | None = None  # the thread that uses the engine
        self._closed: list[Request] = []  # requests of streams that were closed meanwhile

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        chat: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[Result]:
        """The answers, in the order of the prompts, `params.n` for each.

        prompts   a prompt, or a list of them: a text, token ids, or a list of messages
        params    for all prompts, or one for each
        chat      take texts as a user's message
        progress  called for new tokens: progress(how many)

        A request that fails has its error in its result; the others go on.

        Raises: InputError for a prompt that cannot be answered; nothing was answered then.
        """
        check_callable(progress, "progress")
        answers = self._asked(prompts, params, chat, together=True)
        for chunk in self._streamed(answers):
            if progress is not None:
                progress(len(chunk.token_ids))
        return [answer.result() for answer in answers]

    def stream(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, chat: bool = False
    ) -> Iterator[Chunk]:
        """The answers piece by piece, streaming. Closing the iterator cancels them. Streams and
        other calls may take turns: every step advances all answers, and each goes to its own call.

        Raises: InputError for a prompt that cannot be answered.
        """
        stream = self._streamed(self._asked(prompts, params, chat))
        next(stream)  # begun, so that closing it cancels the answers also if nothing was taken
        return stream

    def _streamed(self, answers: list[Answer]) -> Iterator[Chunk]:
        """The chunks, after an empty one."""
        open_ones = answers
        try:
            yield Chunk(0, "", [])
            while open_ones:
                # Looked for in the answers themselves: their tokens may be of another call's steps.
                news = [answer for answer in open_ones if answer.has_news]
                for answer in news:
                    ends = answer.request.finished
                    yield answer.chunk(result=answer.result() if ends else None)
                if not news:
                    with self._working():
                        self._check_busy()
                        self._step()
                elif any(answer.ended for answer in news):
                    open_ones = [answer for answer in open_ones if not answer.ended]
        finally:
            self._end(answers)

    def _check_busy(self) -> None:
        """Raises: StateError if no step can bring anything new."""
        if not self.engine.busy:
            raise StateError(
                "the engine is not busy, though an answer has not ended: its request is paused; "
                "expected `engine.pause(request, False)` before its next token is asked for"
            )

    def _step(self) -> None:
        """A step of the engine. An interrupt may come amid its commit, when tokens, text and log
        probabilities of what runs no longer fit together: then answers of other calls end, too."""
        try:
            self.engine.step()
        except BaseException as error:
            if isinstance(error, MemoryError) or not isinstance(error, Exception):
                self.engine.cancel(*self.engine.scheduler.running)
            raise

    def _asked(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params,
        chat: bool,
        *,
        together: bool = False,
    ) -> list[Answer]:
        """All requests, or none."""
        check_flag(chat, "chat")
        listed = _as_list(prompts)
        each = _one_each(params, len(listed))
        answers: list[Answer] = []
        index = 0
        try:
            for index, (prompt, wanted) in enumerate(zip(listed, each, strict=True)):
                ids = self.encode(prompt, chat=chat)
                requests = add_answers(self.engine, self.tokenizer, ids, wanted, together=together)
                answers += [
                    Answer(request, prompt, len(answers) + sample, index, sample)
                    for sample, request in enumerate(requests)
                ]
        except InputError as error:
            self._end(answers)
            if len(listed) == 1:
                raise
            raise InputError(f"prompt {index + 1} of {len(listed)}: {error}") from error
        except BaseException:
            self._end(answers)
            raise
        return answers

    def encode(self, prompt: Prompt, *, chat: bool = False) -> Int32s:
        """A prompt's tokens.

        Raises: InputError.
        """
        if isinstance(prompt, str):
            message = {"role": "user", "content": prompt}
            return self.tokenizer.chat([message]) if chat else self.tokenizer.encode(prompt)
        if _are_messages(prompt):
            return self.tokenizer.chat(prompt)  # type: ignore[arg-type]
        if not isinstance(prompt, (Sequence, np.ndarray)) or isinstance(prompt, (bytes, bytearray)):
            raise InputError(f"a prompt is {prompt!r}; expected a text, token ids or messages")
        return as_tokens(prompt, "prompt")  # type: ignore[arg-type]

    def _end(self, answers: Sequence[Answer]) -> None:
        """Cancel what has not ended; after the step if one runs: a forgotten stream may be closed
        at any time, by the garbage collector."""
        self._closed += [answer.request for answer in answers]
        if self._at_work is None:
            with self._working():
                pass

    @contextmanager
    def _working(self) -> Iterator[None]:
        """While the body uses the engine, streams that are closed wait to be cancelled.

        Raises: StateError if another thread uses it.
        """
        if self._at_work not in (None, get_ident()):
            raise StateError(
                f"thread {get_ident()} asks for a step while thread {self._at_work} computes one; "
                "expected one thread at a time"
            )
        self._at_work = get_ident()
        try:
            yield
        finally:
            try:
                while closed := self._closed.copy():
                    self.engine.cancel(*closed)
                    del self._closed[: len(closed)]
                self._leave_memory()
            finally:
                self._at_work = None

    def _leave_memory(self) -> None:
        """If others use the memory of the target, too, and nothing runs here, none of it is held.
        An engine drops its own prefixes only, in its own thread."""
        if self.target.memory is not None and len(self._sharing) > 1 and not self.engine.busy:
            self.engine.scheduler.drop_prefixes()


def drafter_of(
    drafter: str | Drafter[Any] | None, model: Any = None, device: str = "cpu"
) -> Drafter[Any] | None:
    """The drafter of that name, which learns from all answers, or the given one, or None. `model`
    is the target, which some need, and `device` where it runs.

    Raises: InputError for a name that does not exist; for a drafter with weights also ModelError.
    """
    if drafter is None or (isinstance(drafter, str) and drafter == "none"):
        return None
    if isinstance(drafter, str):
        return make_drafter(drafter, share="all", model=model, device=device)
    check_drafter(drafter)
    return drafter


def _are_messages(prompt: object) -> bool:
    listed = isinstance(prompt, Sequence) and not isinstance(prompt, str) and len(prompt) > 0
    return listed and isinstance(prompt[0], Mapping)  # type: ignore[index]


def _as_list(prompts: Any) -> list[Any]:
    """One prompt or a list of prompts, as a list of prompts."""
    if isinstance(prompts, (str, np.ndarray)) or _are_messages(prompts):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, (bytes, bytearray)):
        raise InputError(
            f"prompts are {prompts!r}; expected a text, token ids, messages, or a list of them"
        )
    if prompts and isinstance(prompts[0], (int, np.integer)):
        return [prompts]
    return list(prompts)


def _one_each(params: Params, prompts: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [SamplingParams() if params is None else params] * prompts
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise InputError(f"params are {params!r}; expected SamplingParams, or one for each prompt")
    each = list(params)
    if len(each) != prompts:
        raise InputError(
            f"there are {prompts} prompts and {len(each)} params; expected one for each prompt"
        )
    return each


def _free_memory() -> int:
    """Bytes of memory that are available, the page cache among them; all there are where the system
    does not tell."""
    with suppress(OSError):  # a file of Linux
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
