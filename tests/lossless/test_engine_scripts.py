"""The whole engine over random scripts: it is exact, and every wrong one is found, as by
`foresay lossless --quick`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from foresay.engine import compute, logprobs
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import InputError
from foresay.lossless import prove
from foresay.lossless.engine_controls import ENGINE_CONTROLS
from foresay.lossless.engine_scripts import run_engine
from foresay.lossless.prove import QUICK
from foresay.lossless.toy import Toy
from foresay.lossless.toy_target import ToyKv, ToyTarget
from foresay.models.target import SequenceInput
from foresay.sampling.acceptance import verify
from foresay.sampling.acceptance.match import match

SCRIPTS = 8


def test_the_engine_equals_plain_decoding() -> None:
    seen: list[tuple[int, int]] = []
    found = run_engine(SCRIPTS, progress=lambda done, of: seen.append((done, of)))
    assert found.differences == ()
    assert seen == [(i + 1, SCRIPTS) for i in range(SCRIPTS)]
    assert found.counts["scripts"] == SCRIPTS
    assert found.equal, "nothing is proved of what no script does"


@pytest.mark.parametrize("name", ENGINE_CONTROLS)
def test_a_wrong_engine_is_found(name: str) -> None:
    wrong, sentence = ENGINE_CONTROLS[name]
    assert run_engine(SCRIPTS, enough=1, **wrong).differences, sentence


def test_a_script_is_the_same_again() -> None:
    assert run_engine(2, seed=4) == run_engine(2, seed=4)


# That the proof is one: the code itself is broken.


def _no_stop_string(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IncrementalDetokenizer, "_hits", lambda text, new: [])


def _all_by_match(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verify, "rejection", match)


def _logprobs_of_the_next_row(patch: pytest.MonkeyPatch) -> None:
    right = logprobs.logprobs_for

    def wrong(requests: Any, verified: Any, drafts: Any, logits: Any, asks: Any) -> Any:
        moved = replace(verified, rows=np.minimum(verified.rows + 1, len(logits) - 1))
        return right(requests, moved, drafts, logits, asks)

    patch.setattr(compute, "logprobs_for", wrong)


@pytest.mark.parametrize("broken", [_no_stop_string, _all_by_match, _logprobs_of_the_next_row])
def test_broken_code_is_found_by_the_quick_proof(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert QUICK.engine >= SCRIPTS
    broken(monkeypatch)
    check = next(prove._engine(replace(QUICK, engine=SCRIPTS), 0, lambda name, done: None))
    assert (check.layer, check.ok) == ("engine", False) and "; the first: script" in check.result


def test_what_a_toy_target_refuses() -> None:
    target = ToyTarget(Toy(8, 0))
    kv, other = target.open(), target.open_filled(3)
    part = SequenceInput.of(target, kv, np.array([1, 2], np.int32))
    with pytest.raises(InputError, match="expected parts"):
        target.forward([])
    with pytest.raises(InputError, match="hidden is True"):
        target.forward([part], hidden=True)
    target.forward([part])
    with pytest.raises(InputError, match=r"rows are \[0, 2\]; expected 0 to 1"):
        kv.keep(np.array([0, 2], np.int32))
    part.keep()
    with pytest.raises(InputError, match="length is 3; expected 0 to 2"):
        kv.cut(3)
    with pytest.raises(InputError, match="length is 4; expected 0 to 3"):
        ToyKv().copy_from(other, 4)
    with pytest.raises(InputError, match="nothing stored"):
        kv.copy_from(other, 1)
    with pytest.raises(InputError, match="no weights"):
        target.replace_weights({})
    assert target.weight_shapes() == {} and (kv.length, other.length) == (2, 3)
