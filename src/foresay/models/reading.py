"""Weights that a thread reads while something else is done: an import, the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

from foresay.machine import usable_processors
from foresay.models.cpu.stored_decoder import decoder_of, runs_as_stored
from foresay.models.weights import StoredModel

__all__ = ["reading"]


class _Ended(Exception):
    """Nobody waits for the weights any more."""


@contextmanager
def reading(model: StoredModel, device: str = "cpu") -> Iterator[StoredModel]:
    """A context with the model, whose weights are being read where they are used as they are
    stored. `load.load` waits for them, and raises what was wrong with them. If they are not loaded
    in the context, the reading ends with it.

    device  as `device.device_for` says it; on a GPU nothing is read here
    """
    if device != "cpu" or model.decoder is not None or not runs_as_stored(model):
        yield model
        return
    ended = Event()

    def check(stage: str, done: int, total: int | None) -> None:
        if ended.is_set():
            raise _Ended

    with ThreadPoolExecutor(1, "foresay-reading") as pool:
        try:
            made = pool.submit(decoder_of, model, usable_processors(), check)
            yield replace(model, decoder=made)
        finally:
            ended.set()
