"""The model that has the last word: any causal LM of transformers, over our own keys and values.

A step is one forward pass over the rows of many texts at once: chunks of prompts, last tokens, and
trees of guesses. Where the model would keep a cache, each text has a `Kv`; where it would build
masks, the step knows who sees whom. A row's position is its place in the text, never in memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from foresay._core import AttentionStep, Kv, cpu_level
from foresay.arrays import Int32s, as_tokens
from foresay.draft import Draft
from foresay.errors import InputError, ModelError
from foresay.models import canaries, exactness, linears
from foresay.models.attention import Run, running
from foresay.models.blocks import fuse_blocks, fusible, restore
from foresay.models.linears import reading
from foresay.models.norms import fuse_norms
from foresay.models.progress import Progress, silent
from foresay.models.visibility import Visible, visible_by_layer

__all__ = ["Dtype", "Outputs", "Part", "Target"]

Dtype = Literal["auto", "bfloat16", "float32"]
# from_pretrained replaces functions of torch and of its own for the whole process while it runs
# (tie_weights, those that initialise, the default dtype), and two at once put back each other's.
_LOADING = threading.Lock()
_TRIALS = 5  # linear layers, what each layer sees, logits, whole layers, exactness
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One text's share of a step.

    kv      what is stored of the text
    tokens  int32[m], m >= 1: the text that follows, not stored yet
    draft   guesses after that
    wanted  whether logits are wanted, after the last token and after each guess
    read    how many of the tokens are read as a prompt's: many at once, which takes less time. A
            prompt's last token is not read, as everything after it is not; for a text to be the
            same to the bit, what is read must depend on the text alone
    early   how many of the tokens that are read, the last ones, want logits after them too

    Mutates: the kv, by `keep`. Valid until: the kv's next step. Raises: nothing. GIL: held.
    """

    kv: Kv
    tokens: Int32s
    draft: Draft
    wanted: bool
    read: int
    early: int
    stored: int
    """Tokens of the text that were stored when the part was made."""

    def keep(self, path: Int32s | Sequence[int] = ()) -> None:
        """Store the tokens and the accepted nodes, after `forward`; other guesses are forgotten.

        Mutates: the kv. Valid until: for ever. Raises: InputError for nodes that the draft has
        not, or out of order. GIL: released in the core.
        """
        tokens = len(self.tokens)
        rows = np.empty(tokens + len(path), np.int32)
        rows[:tokens] = np.arange(tokens)
        rows[tokens:] = np.asarray(path, np.int32) + tokens
        self.kv.keep(rows)


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """What a step gives for each row that needs logits: part by part, after its last token, then
    after each node of its draft; behind these, again part by part, the rows of prefill tokens.

    logits  [R, vocabulary]
    hidden  [R, width] | None   what the logits were computed from: the last hidden states
    """

    logits: Tensor
    hidden: Tensor | None = None


class Target:
    """A model, ready to be asked for logits. `load` or `of` makes one.

    model          the transformers model; call it through the target only
    vocabulary     columns of the logits
    context        tokens that a text may have
    layers         what each layer sees
    deterministic  whether care is taken that a row's bits depend on its text alone
    exact          whether that was found to hold on this machine; None: nobody asked

    Mutates: only the texts given to `forward`. Valid until: for ever. Raises: see the methods. GIL:
    released by torch and the core. Threads may share one if each has its own texts.
    """

    def __init__(self, model: PreTrainedModel, *, deterministic: bool, threads: int) -> None:
        config = model.config.get_text_config()
        canaries.check_config(model.config)
        self.model = model
        self.dtype: torch.dtype = next(model.parameters()).dtype
        self.vocabulary = int(config.vocab_size)
        self.context = _context_of(config)
        self.deterministic = deterministic
        self.threads = threads
        self.layers: list[Visible] = []
        self.shapes: list[tuple[int, int, int]] = []
        self.exact: bool | None = None
        self._picks_rows = "logits_to_keep" in signature(model.forward).parameters

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        dtype: Dtype = "auto",
        deterministic: bool = True,
        threads: int = 0,
        progress: Progress = silent,
    ) -> Target:
        """The model in a folder of config and safetensors (see `weights.find`), checked.

        dtype          "auto": bfloat16 where that is faster on this machine, else float32
        deterministic  give a row the same bits whatever else is in its step
        threads        of attention; 0: as many as torch uses
        progress       told when the model is read, and which trials of it are done

        Mutates: nothing. Valid until: for ever. Raises: ModelError for files that cannot be read,
        UnsupportedModel for a model that cannot be run exactly, InputError for another dtype or a
        FORESAY_CPU that this machine has not. GIL: released by torch.
        """
        transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        progress("read", 0, None)
        model = _read(folder, _dtype(dtype))
        slow = not _torch_multiplies_bfloat16()
        if dtype == "auto" and slow and linears.multiplied_by_torch(model, packed=False):
            model = _read(folder, torch.float32)
        return cls.of(model, deterministic=deterministic, threads=threads, progress=progress)

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        *,
        deterministic: bool = True,
        threads: int = 0,
        progress: Progress = silent,
    ) -> Target:
        """A model of transformers, which belongs to the target from now on.

        Mutates: the model: its attention function, layers and norms. Valid until: for ever.
        Raises: UnsupportedModel, InputError for a FORESAY_CPU that this machine has not, and what
        `progress` raises. GIL: released by torch.
        """
        cpu_level()
        model.train(False).requires_grad_(False)
        _without_far_scaling(model)
        if deterministic:
            exactness.steady(model)
        self = cls(model, deterministic=deterministic, threads=threads or torch.get_num_threads())
        progress("try", 0, _TRIALS)
        linears.pack(model, deterministic=deterministic)
        linears.warn_if_slow(model)
        progress("try", 1, _TRIALS)
        self.layers = visible_by_layer(model, self.context)
        self.shapes = canaries.layer_shapes(model)
        fuse_norms(model)
        progress("try", 2, _TRIALS)
        canaries.check_logits(self)
        progress("try", 3, _TRIALS)
        if fusible(model):
            before, layers = canaries.trial(self), fuse_blocks(model)
            if not canaries.alike(canaries.trial(self), before):
                restore(model, layers)
        progress("try", 4, _TRIALS)
        if deterministic:
            self.exact = exactness.holds(self)
        return self

    @property
    def bytes_per_token(self) -> int:
        """What one token's keys and values take, filled up to whole vectors."""
        kv = self.open()
        kv.reserve(1)
        return kv.bytes // kv.capacity

    def open(self) -> Kv:
        """Room for a new text.

        Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
        """
        return Kv(self.shapes, str(self.dtype).removeprefix("torch."))

    def part(
        self,
        kv: Kv,
        tokens: Int32s,
        draft: Draft | None = None,
        *,
        wanted: bool = True,
        read: int = 0,
        early: int = 0,
    ) -> Part:
        """A text's share of a step.

        Mutates: nothing. Valid until: the kv's next step. Raises: InputError for no tokens, tokens
        outside the vocabulary, or a text or guesses beyond the context. GIL: held.
        """
        draft, tokens = Draft.empty() if draft is None else draft, as_tokens(tokens)
        if not len(tokens):
            raise InputError("a part of a step has no tokens; at least 1 is needed")
        for given in (tokens, draft.tokens):
            if len(given) and not 0 <= given.min() <= given.max() < self.vocabulary:
                raise InputError(
                    f"token {given[(given < 0) | (given >= self.vocabulary)][0]} is not in the "
                    f"vocabulary; valid are 0 to {self.vocabulary - 1}"
                )
        text = kv.length + len(tokens)
        if text > self.context:
            raise InputError(f"the text has {text} tokens; the model takes {self.context}")
        if text + len(draft) > self.context and text + _depth(draft) > self.context:
            raise InputError(
                f"the draft reaches {text + _depth(draft)} tokens; the model takes {self.context}"
            )
        if type(read) is not int or not 0 <= read <= len(tokens):
            raise InputError(f"{read} tokens are read; valid are 0 to the part's {len(tokens)}")
        if type(early) is not int or not 0 <= early <= read:
            raise InputError(f"{early} early tokens want logits; valid are 0 to the {read} read")
        return Part(kv, tokens, draft, wanted, read, early, kv.length)

    def forward(self, parts: Sequence[Part], *, hidden: bool = False) -> Outputs:
        """One pass over the rows of all parts: their logits, and the last hidden states if asked.

        Mutates: the parts' texts have new rows that `Part.keep` stores or the next step forgets.
        Valid until: for ever. Raises: InputError for no parts, or a text that is there twice. GIL:
        released.
        """
        if not parts:
            raise InputError("the step has no parts; at least 1 is needed")
        for part in parts:
            if part.kv.length != part.stored:
                raise InputError(
                    f"a part was made when {part.stored} tokens were stored, and now there are "
                    f"{part.kv.length}; make a new one for each step"
                )
        tokens, parents, offsets, wanted, read = _packed(parts)
        step = AttentionStep([part.kv for part in parts], offsets, parents)
        run = Run(step, self.layers, self.threads)
        ids = torch.from_numpy(tokens.astype(np.int64))
        places = torch.from_numpy(step.positions)
        # The head is slow, and some models cannot do without a row.
        # And it must not take its rows for the step's, of which some are read in another way.
        spare = not len(wanted) or (len(wanted) == len(tokens) and read.any())
        picked = torch.from_numpy(np.append(wanted, 0) if spare else wanted)
        head = _HeadInput(self.model) if hidden else nullcontext()
        with torch.inference_mode(), running(run), reading(torch.from_numpy(read)), head:
            if self._picks_rows:
                logits = self._call(ids, places, logits_to_keep=picked)
            else:
                logits = self._call(ids, places)[picked]
        if not isinstance(head, _HeadInput):
            return Outputs(logits[: len(wanted)])
        states = head.rows if self._picks_rows else head.rows[picked]
        return Outputs(logits[: len(wanted)], states[: len(wanted)])

    def _call(self, ids: Tensor, places: Tensor, **options: Any) -> Tensor:
        out = self.model(input_ids=ids[None], position_ids=places[None], use_cache=False, **options)
        logits: Tensor = out.logits[0]
        return logits


class _HeadInput:
    """While the body runs, what the present thread gives to the model's head is noted in `rows`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._head = model.get_output_embeddings()
        self._thread = threading.get_ident()
        self.rows = torch.empty(0)

    def __enter__(self) -> _HeadInput:
        self._hook = self._head.register_forward_pre_hook(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _note(self, head: object, given: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == self._thread:
            self.rows = given[0].reshape(-1, given[0].shape[-1])


def _packed(
    parts: Sequence[Part],
) -> tuple[Int32s, Int32s, Int32s, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Tokens and parents of all rows, where each part's begin, which are wanted, which are read."""
    tokens: list[Int32s] = []
    parents: list[Int32s] = []
    wanted: list[np.ndarray[Any, Any]] = []
    early: list[np.ndarray[Any, Any]] = []
    read: list[np.ndarray[Any, Any]] = []
    offsets = np.zeros(len(parts) + 1, np.int32)
    for at, part in enumerate(parts):
        size, guesses = len(part.tokens), len(part.draft)
        start, end = offsets[at], offsets[at] + size + guesses
        tokens += [part.tokens, part.draft.tokens]
        parents += [np.arange(-1, size - 1, dtype=np.int32), part.draft.parents + np.int32(size)]
        if guesses:
            parents[-1][part.draft.parents < 0] = size - 1
        offsets[at + 1] = end
        read.append(np.arange(end - start) < part.read)
        if part.wanted:
            wanted.append(np.arange(start + size - 1, end))
        if part.early:
            early.append(np.arange(start + part.read - part.early, start + part.read))
    wanted += early
    picked = np.concatenate(wanted) if wanted else np.zeros(0, np.int64)
    return (
        np.concatenate(tokens),
        np.concatenate(parents),
        offsets,
        picked.astype(np.int64),
        np.concatenate(read),
    )


def _depth(draft: Draft) -> int:
    """Tokens of the longest path."""
    depths: list[int] = []
    for parent in draft.parents.tolist():
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)


def _read(folder: str | os.PathLike[str], dtype: torch.dtype) -> PreTrainedModel:
    try:
        with _LOADING:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                Path(folder),
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        said = str(error).strip().splitlines()
        raise ModelError(
            f"the model in '{folder}' cannot be loaded: {said[0] if said else error!r}"
        ) from error
    return model


def _torch_multiplies_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _dtype(name: str) -> torch.dtype:
    """Where torch has no fast product of bfloat16 the core's takes its place. With NEON it is
    faster than float32 where few tokens are written, by what is not read from memory, and about as
    fast where a prompt is read; on other levels that was not measured.
    """
    if not isinstance(name, str):
        raise InputError(f"dtype is {name!r}; valid are auto, {', '.join(_DTYPES)}")
    if name == "auto":
        fast = _torch_multiplies_bfloat16() or cpu_level() == "neon"
        return torch.bfloat16 if fast else torch.float32
    if name not in _DTYPES:
        raise InputError(f"dtype is {name!r}; valid are auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _context_of(config: Any) -> int:
    """How long a text may be."""
    context = getattr(config, "max_position_embeddings", None) or 1 << 20
    if getattr(config, "attn_temperature_tuning", False):
        context = min(context, int(config.floor_scale) - 1)  # see _without_far_scaling
    return int(context)


def _without_far_scaling(model: PreTrainedModel) -> None:
    """Llama 4 scales the queries of far positions, and takes a row's number for its position. Up to
    the context that we give it the scale is 1.
    """
    for module in model.modules():
        if getattr(module, "attn_temperature_tuning", False):
            setattr(module, "attn_temperature_tuning", False)  # noqa: B010 (not known to mypy)
