"""What is on a device stays there: the plain target, verification, and drafters that run a model.

torch's lazy device stands for a GPU: it computes on the CPU, and refuses tensors that are not its
own. Each test is a process of its own, since that device cannot be put away.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import forks

# Its views do not work in inference mode; without it, those of `chunk` lose their device.
_BEGIN = """
import sys; sys.path.insert(0, "tests")
import numpy as np, torch, torch._lazy.ts_backend
torch._lazy.ts_backend.init()
torch.inference_mode = lambda *given: torch.no_grad(*given)
def halves(rows, parts, axis):
    assert (parts, axis) == (2, -1)
    half = rows.shape[-1] // 2
    return rows[..., :half], rows[..., half:]
torch.Tensor.chunk = halves
from foresay.models import checks
compare = checks._difference
checks._difference = lambda one, other: compare(one.cpu(), other.cpu())
import steady
from foresay import SamplingParams, SeededParams, Verdict
from foresay.drafters import *
from foresay.models.load_transformers import plain_target_of
from models import zoo
"""


def same_on_both(code: str) -> None:
    """`found(device)` of the code is the same on the CPU and elsewhere."""
    end = "one, other = found('cpu'), found('lazy')\nassert one == other, (one, other)\n"
    done = forks.run("-c", f"{_BEGIN}{code}\n{end}", cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


_ENGINE = """
from foresay.engine.engine import Engine
ASKED = [
    SamplingParams(temperature=0, max_tokens=12, logprobs=2),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.2, seed=3,
                   logprobs=1, max_tokens=12),
    SamplingParams(temperature=0.9, rule="rejection", seed=3, max_tokens=12),
]
def found(device):
    target = plain_target_of(zoo.make("llama").to(device))
    assert target.device.type == device
    made = {
        "recycle": RecycleDrafter,
        "model": lambda: ModelDrafter(plain_target_of(zoo.make("llama").to(device))),
        "self": lambda: SelfDrafter(layers=[0, 1]),
    }
    engine = Engine(target, made[DRAFTER](), policy="fixed", memory=1 << 24)
    prompt = np.tile(np.arange(3, 12), 4).astype(np.int32)
    requests = [engine.add(prompt, params) for params in ASKED]
    requests.append(engine.add(prompt, ASKED[0], prompt_logprobs=1))
    engine.run()
    assert not any(request.error for request in requests)
    assert sum(request.stats.accepted for request in requests) > 3
    own = [request for request in requests if request.params.rule == "match"]
    return [r.token_ids for r in own], [round(p.logprob, 3) for r in own for p in r.logprobs]
"""


@pytest.mark.parametrize("drafter", ["recycle", "model", "self"])
def test_the_engine_gives_the_same_texts(drafter: str) -> None:
    same_on_both(f"DRAFTER = {drafter!r}\n{_ENGINE}")


_HEAD = """
from eagle.heads import random_head
from foresay.drafters import EagleDrafter
def found(device):
    drafter = EagleDrafter(random_head().requires_grad_(False).to(device))
    drafts = []
    params = SamplingParams(temperature=0.8, repetition_penalty=1.2, top_k=9)
    for sampling in (None, SeededParams(params, 1)):
        state = drafter.begin([1, 2, 3], sampling=sampling)
        hidden = np.random.default_rng(1).normal(size=(2, 32)).astype(np.float32)
        drafter.observe([state], [Verdict([0], [4, 5], hidden=hidden)])
        (draft,) = drafter.propose([state], [8])
        assert len(draft) == 8 and drafter.bytes_used()
        drafts.append((draft.tokens.tolist(), draft.parents.tolist()))
    return drafts
"""


def test_a_head_drafts_the_same() -> None:
    same_on_both(_HEAD)


_TARGETS = """
from foresay.models import visibility
from foresay.models.target import SequenceInput
def found(device):
    for name in ("mistral", "gemma2", "cohere2"):
        target = plain_target_of(zoo.make(name).to(device))
        kv = target.open_filled(5)
        part = SequenceInput.of(target, kv, np.array([3, 4], np.int32))
        assert target.forward([part], hidden=True).hidden.device.type == device
        part.keep()
        kv.check_integrity()
    # As of chunks: the rule holds how far each text is padded.
    padding = torch.zeros(1, dtype=torch.long, device=device)
    rule = lambda text, head, query, key: (key - padding[text]) <= query - padding[text]
    return visibility._row(rule, 4, torch.device(device)).cpu().tolist()
"""


def test_models_are_checked_where_they_are() -> None:
    same_on_both(_TARGETS)
