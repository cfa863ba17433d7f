"""Steps that are started before the one before has been read, and what can go wrong meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from engine.asking import GREEDY, added, prompts, tokens_of, wanted
from engine.on_device import PLAIN
from foresay.drafters import SuffixDrafter
from foresay.engine.ahead import StepsAhead
from foresay.engine.engine import Engine
from foresay.errors import LogitsError
from foresay.models.target import Outputs


def test_a_row_that_fails_fails_alone(device: Any) -> None:
    asked = [(prompt, GREEDY) for prompt in ([5] * 11, [7] * 20, [9] * 30)]
    expected = wanted(device.target, asked, ())
    device.spoiled = {20 + 4}
    engine = Engine(device)
    requests = added(engine, asked, ())
    engine.run()
    assert isinstance(requests[1].error, LogitsError)
    assert requests[1].token_ids == expected[1][:4]
    others = [requests[0], requests[2]]
    assert [one.token_ids for one in others if one.error is None] == [
        text
        for one, text in zip(others, [expected[0], expected[2]], strict=True)
        if one.error is None
    ]
    assert any(one.error is None for one in others) and device.ahead > 3


def test_a_step_after_a_failure(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails while the next step is started changes nothing: the step is taken again."""
    asked = [(prompt, params) for prompt, params in zip(prompts(4), PLAIN, strict=False)]
    engine = Engine(device)
    requests = added(engine, asked)
    for _ in range(3):
        engine.step()
    failing = 0

    def fails(*given: Any) -> Outputs:
        nonlocal failing
        failing += 1
        raise RuntimeError("the device is lost") if failing < 3 else MemoryError()

    with monkeypatch.context() as broken:
        broken.setattr(device, "forward_next", fails, raising=False)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="lost"):
                while engine.busy:
                    engine.step()
        for _ in range(3):  # without pages for it, steps are taken one after the other
            engine.step()
    engine.run()
    engine.check_integrity()
    assert tokens_of(requests) == wanted(device.target, asked)
    assert failing > 3


PLACES = ["taken", "begun", "stored", "meanwhile", "read", "commit", "after", "finished"]


@pytest.mark.parametrize("where", PLACES)
def test_an_interrupt(device: Any, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Wherever it comes, no wrong token is committed afterwards."""
    from foresay.engine import ahead
    from foresay.engine import engine as its
    from foresay.engine.scheduler import Scheduler
    from foresay.sampling.acceptance.upload import Download

    at, times = 0, 0

    def interrupted(real: Any, *, after: bool = False) -> Any:
        def call(*given: Any) -> Any:
            nonlocal at, times
            at += 1
            found = real(*given) if after else None
            if at % 4 == 3:
                times += 1
                raise KeyboardInterrupt
            return found if after else real(*given)

        return call

    owner, name = {
        "taken": (StepsAhead, "take"),
        "begun": (Scheduler, "hold_next"),
        "stored": (ahead, "keep_first_rows"),
        "meanwhile": (Engine, "_learn"),
        "read": (Download, "values"),
        "commit": (its, "append_committed"),
        "after": (its, "append_committed"),
        "finished": (SuffixDrafter, "finish"),
    }[where]
    after = where in ("taken", "stored", "after", "finished")
    monkeypatch.setattr(owner, name, interrupted(getattr(owner, name), after=after))
    asked = [(prompt, PLAIN[at % len(PLAIN)]) for at, prompt in enumerate(prompts(12))]
    engine = Engine(device, SuffixDrafter(), policy="none")
    requests, cancelled = added(engine, asked), 0
    while engine.busy:
        try:
            engine.step()
        except KeyboardInterrupt:
            running = engine.scheduler.running
            if where != "finished" and len(running) > 4 and times % 2:
                engine.cancel(running[0])
                cancelled += 1
            elif where == "finished":
                engine.cancel(*[one for one in running if one.kv is None])
    engine.check_integrity()
    for found, text, request in zip(
        tokens_of(requests), wanted(device.target, asked), requests, strict=True
    ):
        assert found == (text[: len(found)] if request.finish_reason == "cancelled" else text)
    assert times > 2 and device.ahead > 3 and (cancelled or where == "finished")
