"""The target on processors for weights as they are stored: a whole decoder of the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy as copy_of

import numpy as np
import torch
from torch import Tensor

from foresay._core import AttentionStep, Decoder, Kv
from foresay.errors import InputError, UnsupportedModel
from foresay.models.cpu.decoder import LayeredDecoder
from foresay.models.cpu.kv import bytes_per_token, filled_kv
from foresay.models.cpu.quantised_decoder import quantised_config, quantised_decoder
from foresay.models.cpu.stored_decoder import decoder_of
from foresay.models.invariance import is_batch_invariant
from foresay.models.options import LoadOptions
from foresay.models.parts import kvs_of
from foresay.models.remembered import Memory, is_remembering
from foresay.models.replacing import cannot_replace
from foresay.models.rows import StepRows
from foresay.models.target import Hidden, Outputs, SequenceInput
from foresay.models.weights.stored import StoredModel

__all__ = ["StoredTarget", "load_blocks"]

_TRIED = 48  # tokens of the prompt that batch invariance is tried with: it holds by arithmetic


class StoredTarget:
    """A `Target`; `load.load` makes one. It is batch-invariant: products are sums of integers, and
    everything else is made for each row by itself.

    decoder    the model in the core
    dtype      of keys, values and queries; the rest is float32
    kept       the layers of the texts that the decoder's layers are; (): all (see `skipping`)

    Only the texts given to `forward` are changed.
    """

    dtype: torch.dtype = torch.bfloat16
    depth = 0  # the core gives the last hidden states only

    def __init__(
        self, decoder: Decoder, *, context: int, threads: int, identity: str | None = None
    ) -> None:
        self.decoder = decoder
        self.vocabulary = decoder.vocabulary
        self.context = context
        self.shapes = decoder.shapes
        self.threads = threads
        self.identity = identity
        self.memory: int | None = None
        self.kept: Sequence[int] = ()
        self.exact: bool | None = None
        self.version = 0

    @property
    def bytes_per_token(self) -> int:
        """With padding to whole vectors."""
        return bytes_per_token(self.open())

    def open(self) -> Kv:
        return Kv(self.shapes, "bfloat16")

    def open_filled(self, tokens: int) -> Kv:
        return filled_kv(self.open(), self.shapes, self.dtype, tokens)

    def forward(self, parts: Sequence[SequenceInput], *, hidden: Hidden = False) -> Outputs:
        if isinstance(hidden, tuple):
            raise InputError(
                f"hidden states of layers {list(hidden)} are asked for, but weights that are used "
                "as they are stored give the last ones only; expected True or False"
            )
        rows = StepRows.of(parts)
        kvs = kvs_of(parts)
        step = AttentionStep(kvs, rows.offsets, rows.parents, kept=self.kept)
        logits = np.empty((len(rows.needed), self.vocabulary), np.float32)
        states = np.empty((len(rows.needed), self.decoder.width), np.float32) if hidden else None
        self.decoder.forward(step, rows.tokens, rows.needed, logits, states, self.threads)
        found = None if states is None else torch.from_numpy(states)
        return Outputs(torch.from_numpy(logits), found)

    def only(self, kept: Sequence[int]) -> StoredTarget:
        """See `skipping.HasLayers`."""
        if not isinstance(self.decoder, LayeredDecoder):
            raise UnsupportedModel("the decoder's layers are not known; expected make_decoder's")
        made = copy_of(self)
        made.kept, made.decoder = list(kept), self.decoder.only(kept)
        return made

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """None: what is stored in blocks cannot be replaced."""
        return {}

    def replace_weights(self, weights: Mapping[str, Tensor], *, copy: bool = True) -> None:
        """Raises: InputError; nothing changes."""
        raise cannot_replace(next(iter(weights), "(none)"))


def load_blocks(model: StoredModel, options: LoadOptions) -> StoredTarget:
    """The target of a GGUF file that `runs_as_stored`, or of a folder of safetensors whose matrices
    are quantised when they are read. It waits for weights that are being read.

    Raises: ModelError naming the tensor that is damaged; for a folder as `quantised_decoder`.
    """
    threads = options.threads or torch.get_num_threads()
    if model.plan is None:
        assert options.quantize is not None
        context = quantised_config(model.folder).context
        decoder = quantised_decoder(model.folder, options.quantize, options.progress)
    else:
        context = model.plan.config["max_position_embeddings"]
        decoder = (
            decoder_of(model, threads, options.progress)
            if model.decoder is None
            else model.decoder.result()
        )
    identity = f"{model.identity} {options.quantize or 'as stored'}"
    target = StoredTarget(decoder, context=context, threads=threads, identity=identity)
    if options.deterministic:
        target.exact = _is_exact(target, decoder, options)
    return target


def _is_exact(target: StoredTarget, decoder: LayeredDecoder, options: LoadOptions) -> bool:
    """Whether the target is batch-invariant here. Layers of one kind run the same kernels over
    other numbers, so one of each kind is tried, with the head behind them. What an earlier start
    has found is not tried again.
    """
    memory = Memory("batch-invariant", str(target.identity), target.threads)
    if is_remembering() and memory.read() is True:
        return True
    options.progress("try", 0, 1)
    tried = StoredTarget(decoder.one_of_each_kind(), context=target.context, threads=target.threads)
    exact = is_batch_invariant(tried, prompt=_TRIED, hidden=True)
    if is_remembering() and exact:
        memory.write(True)
    return exact
