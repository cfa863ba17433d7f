"""Models that are made at the same time know nothing of each other.

FORESAY_LOADS=500 makes as many.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from foresay import SamplingParams
from foresay.arrays import Int32s
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.models.load import load
from foresay.models.load_transformers import target_of
from foresay.models.options import Dtype
from foresay.models.target import Target
from models import zoo
from tiny import one_thread

LOADS = int(os.environ.get("FORESAY_LOADS", "16"))
THREADS = 8
NAMES = ["llama", "qwen3", "gemma3_text", "llama4_text"]
DTYPES: list[Dtype] = ["float32", "bfloat16"]
TOKENS = 12
PROMPT: Int32s = zoo.tokens(np.random.default_rng(5), 3 * zoo.WINDOW)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in NAMES:
        made[name] = tmp_path_factory.mktemp(name)
        zoo.make(name).save_pretrained(made[name])
    return made


def plain_text(name: str) -> list[int]:
    """What the model writes by itself: transformers' own attention, one token at a time."""
    model = zoo.make(name)
    model.set_attn_implementation("eager")
    text: list[int] = PROMPT.tolist()
    for _ in range(TOKENS):
        text.append(int(zoo.plain_logits(model, text)[-1].argmax()))
    return text[len(PROMPT) :]


def written(target: Target) -> list[int]:
    """What our engine writes, with drafts."""
    engine = Engine(target, SuffixDrafter(), policy="fixed", memory=1 << 24)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    request = engine.add(PROMPT, params, seed=0)
    while not request.finished:
        engine.step()
    return request.token_ids


@pytest.mark.slow
def test_every_text_is_right(folders: dict[str, Path]) -> None:
    """In float32 what transformers writes, in bfloat16 what a model that is loaded alone writes."""
    wanted = {(name, "float32"): plain_text(name) for name in NAMES}
    for name in NAMES:
        alone = load(folders[name], dtype="bfloat16", threads=1)
        wanted[name, "bfloat16"] = written(alone)
    together = threading.Barrier(THREADS)

    def loaded(thread: int) -> list[str]:
        wrong = []
        torch.set_num_threads(1)
        for first in range(0, LOADS, THREADS):
            together.wait(600)  # so that they are made at the same time, whatever their size
            at = first + thread
            name, dtype = NAMES[at % len(NAMES)], DTYPES[at // len(NAMES) % 2]
            try:
                text = written(load(folders[name], dtype=dtype, threads=1))
            except Exception as error:  # told with the others
                wrong.append(f"load {at}, {name}, {dtype}: {error!r}")
                continue
            if text != (right := wanted[name, dtype]):
                wrong.append(f"load {at}, {name}, {dtype}: {text} in place of {right}")
        return wrong

    with one_thread(), ThreadPoolExecutor(THREADS) as pool:
        assert not [said for each in pool.map(loaded, range(THREADS)) for said in each]


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "llama4_text"])
def test_what_is_loaded_elsewhere_does_not_show(name: str) -> None:
    """While transformers loads a bfloat16 model, that is the default dtype of the whole process."""
    model, wanted = zoo.make(name), plain_text(name)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert written(target_of(model, threads=1)) == wanted
    finally:
        torch.set_default_dtype(torch.float32)
