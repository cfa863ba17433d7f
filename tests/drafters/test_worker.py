"""WorkerDrafter: whatever happens to its process, nothing hangs and the text is the same."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import test_drafters as table
from conformance import SCENARIOS, drive
from doubles import tokens
from drafters.forked_worker import ForkedWorker
from drafters.odd_worker import Odd, OddWorker
from drafters.small_models import draft_model
from engine.asking import ASKED, answers, prompts, wanted
from foresay import LLM, Draft, SamplingParams, SeededParams, Verdict
from foresay.budget.policy import Fixed
from foresay.drafters import MergeDrafter, ModelDrafter, SuffixDrafter, WorkerDrafter
from foresay.drafters.worker import RESTARTS
from foresay.engine.engine import Engine
from foresay.errors import InputError
from tiny import save_model

ONE = {"OMP_NUM_THREADS": "1"}
ASKS = list(zip(prompts(6), ASKED, strict=False))
TEXT = tokens(1, 2, 3, 4, 1, 2)


@pytest.fixture(scope="module")
def answered() -> list[list[int]]:
    return wanted(draft_model("same"), ASKS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def shared() -> Iterator[WorkerDrafter]:
    drafter = WorkerDrafter("suffix", timeout=20, environ=ONE)
    yield drafter
    drafter.close()


@pytest.fixture(scope="module")
def model_worker(folder: Path) -> Iterator[WorkerDrafter]:
    drafter = ForkedWorker(f"model:{folder}", timeout=20, environ=ONE, shape=(3, 2))
    yield drafter
    drafter.close()


@pytest.fixture
def model(model_worker: WorkerDrafter) -> WorkerDrafter:
    model_worker.restarts = 0
    return model_worker


@pytest.fixture
def suffix(shared: WorkerDrafter) -> WorkerDrafter:
    assert shared.ready(20) and not shared.tokens_held()
    shared.restarts, shared._timeout = 0, 20.0
    shared._failures.clear()
    return shared


def gone(pid: int, seconds: float = 20.0) -> bool:
    """Whether a process ends; a zombie has ended, once it has no other threads."""
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            threads = os.listdir(f"/proc/{pid}/task")
        except (FileNotFoundError, ProcessLookupError):
            return True
        if stat.rpartition(")")[2].split()[0] == "Z" and len(threads) < 2:
            return True
        time.sleep(0.01)
    return False


class Troubled:
    """A drafter to whose worker something happens in the third call of some name; then it waits for
    the next worker."""

    def __init__(self, inner: WorkerDrafter, where: str, how: Callable[[int], None]) -> None:
        self.inner, self.where, self.how = inner, where, how
        self.calls = 0
        self.wants = inner.wants

    def trouble(self, name: str) -> None:
        self.calls += name == self.where
        if self.calls == 3 and name == self.where:
            assert self.inner.pid is not None
            self.how(self.inner.pid)
        elif self.calls >= 3:
            assert self.inner.ready(20)

    def begin(self, *values: Any, **about: Any) -> Any:
        self.trouble("begin")
        return self.inner.begin(*values, **about)

    def propose(self, states: Any, budgets: Any, /) -> Any:
        self.trouble("propose")
        self.inner.start(states, budgets)
        if self.where == "start":
            self.calls += 1
            if self.calls == 3:
                assert self.inner.pid is not None
                self.how(self.inner.pid)
        return self.inner.propose(states, budgets)

    def observe(self, *values: Any) -> None:
        self.trouble("observe")
        self.inner.observe(*values)

    def finish(self, state: Any, /) -> None:
        self.trouble("finish")
        self.inner.finish(state)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


MOMENTS = [(where, kill) for where in ("begin", "start", "propose", "observe", "finish")]


@pytest.mark.parametrize(("where", "how"), [*MOMENTS, ("start", stop), ("observe", stop)])
def test_the_text_is_the_same(
    answered: list[list[int]], suffix: WorkerDrafter, where: str, how: Callable[[int], None]
) -> None:
    suffix._timeout = 20 if how is kill else 0.5
    drafter = Troubled(suffix, where, how)
    engine = Engine(draft_model("same"), drafter, policy=Fixed(k=6), max_running=4)
    began = time.monotonic()
    requests = answers(engine, ASKS)
    assert time.monotonic() - began < 30
    assert [request.token_ids for request in requests] == answered
    assert drafter.calls >= 3 and suffix.restarts == 1
    assert sum(request.stats.accepted for request in requests) > 5
    assert suffix.tokens_held() == 0


@pytest.mark.parametrize("kind", ["hanging", "raising", "nonsense:no frame", "nonsense:a half"])
def test_faults_of_the_worker(answered: list[list[int]], tmp_path: Path, kind: str) -> None:
    drafter = OddWorker(f"{kind}:{tmp_path / 'flag'}", timeout=0.5, environ=ONE)
    first = drafter.pid
    engine = Engine(draft_model("same"), drafter, policy=Fixed(k=6), max_running=4)
    requests = answers(engine, ASKS)
    assert [request.token_ids for request in requests] == answered
    assert (tmp_path / "flag").exists() and drafter.restarts == 1, drafter.last_failure
    assert first is not None and not Path(f"/proc/{first}").exists()  # nor a zombie
    assert drafter.ready(20)
    state = drafter.begin(TEXT)
    assert drafter.propose([state], [2])[0].tokens.tolist() == [3, 4]
    drafter.close()
    expected = {"hanging": "not come in time", "raising": "ZeroDivisionError: by chance"}
    assert expected.get(kind, "") in drafter.last_failure


def test_requests_are_begun_anew_with_what_was_committed(
    folder: Path, model: WorkerDrafter
) -> None:
    """The same drafts as without the fault: parameters, seed, prompt and answer are all there."""
    alone = ModelDrafter(folder, shape=(3, 2))
    worker = model
    params = [
        SamplingParams(temperature=0.9, top_p=0.9, presence_penalty=0.5, max_tokens=20),
        SamplingParams(temperature=0.7, logit_bias={3: -np.inf, 9: 2.0}, stop=["a", 7]),
        SamplingParams(temperature=0, repetition_penalty=1.3),
        SamplingParams(temperature=np.float32(0.8), top_k=np.int64(9), rule="rejection"),
    ]
    drafters: list[Any] = [alone, worker]
    states = [
        [d.begin(TEXT + i, sampling=SeededParams(p, 2**64 - 1 - i)) for i, p in enumerate(params)]
        for d in drafters
    ]
    for step in range(3):
        mine, theirs = (d.propose(s, [5] * 4) for d, s in zip(drafters, states, strict=True))
        for a, b in zip(mine[:3], theirs[:3], strict=True):  # those of the fourth are sampled
            assert a == b and len(a)
        assert theirs[3].probs is not None and theirs[3].probs.shape == mine[3].probs.shape
        commits = [Verdict([0], [int(d.tokens[0]), 40 + step]) for d in mine[:3]]
        for drafter, its, last in zip(drafters, states, (mine[3], theirs[3]), strict=True):
            drafter.observe(its, [*commits, Verdict([0], [int(last.tokens[0]), 9])])
        if step == 1:
            kill(worker.pid or 0)
            assert worker.propose(states[1], [5] * 4) == [Draft.empty()] * 4
            assert worker.ready(60) and worker.restarts == 1
    assert worker.text(states[1][0]).tolist() == alone.text(states[0][0]).tolist()
    assert worker.bytes_used() > 4 * worker.tokens_held()
    for state in states[1]:
        worker.finish(state)
    assert worker.tokens_held() == 0


def test_models_side_by_side(folder: Path, model: WorkerDrafter) -> None:
    """In one tree, while one of them is killed."""
    llm = LLM(folder, None, dtype="float32", memory=1 << 24)
    ask = ["Hello, hello, hello", "one two three one two three one", "a"]
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=24)
    expected = [r.token_ids for r in llm.generate(ask, params)]
    ngram = WorkerDrafter("ngram")
    beside = llm.beside(MergeDrafter(model, ngram), "fixed")
    with pytest.raises(InputError, match="the target's has 128; expected the same, or"):
        model.fit(draft_model("same"))
    for trouble in (False, True):
        if trouble:
            kill(model.pid or 0)
        found = beside.generate(ask, params)
        assert [r.token_ids for r in found] == expected
        assert trouble or sum(r.stats.accepted for r in found) > 20
    assert model.restarts == 1 and ngram.restarts == 0
    ngram.close()


def test_who_answers_first_changes_nothing() -> None:
    text, kinds = tokens(1, 2, 3, 1, 2, 4, 1, 2), ("first", "latest")
    plain = MergeDrafter(*(Odd(lambda _: None, occurrence=kind) for kind in kinds))
    (expected,) = plain.propose([plain.begin(text)], [6])
    made = {(s, kind): OddWorker(f"sleepy:{s}:{kind}") for s in (0.0, 0.5) for kind in kinds}
    for sleeps in ((0.0, 0.5), (0.5, 0.0), (0.5, 0.5)):
        merge = MergeDrafter(*(made[pair] for pair in zip(sleeps, kinds, strict=True)))
        state = merge.begin(text)
        began = time.monotonic()
        (draft,) = merge.propose([state], [6])
        took = time.monotonic() - began
        assert draft == expected and merge.proposers(state)[0]
        assert took < 0.95  # both at once
    for worker in made.values():
        worker.close()


def test_what_was_asked_and_not_collected() -> None:
    drafter = OddWorker("sleepy:0.05:latest")
    a, b = drafter.begin(TEXT), drafter.begin(TEXT + 10)
    drafter.start([a, b], [2, 2])
    assert drafter.propose([b], [1])[0].tokens.tolist() == [13]  # another question
    drafter.start([a], [2])
    drafter.observe([a], [Verdict([], [3])])
    assert drafter.propose([a], [2])[0].tokens.tolist() == [4, 1]
    drafter.start([a, b], [2, 2])
    drafter.finish(a)
    assert drafter.propose([b], [2])[0].tokens.tolist() == [13, 14]
    drafter.observe([b], [Verdict([], [13])])
    drafter.start([b], [2])
    kill(drafter.pid or 0)
    assert len(drafter.propose([b], [2])[0]) == 0 and drafter.restarts == 1
    # A path of a draft of the process before says nothing to the next one.
    assert drafter.ready(20)
    assert drafter.propose([b], [2])[0].tokens.tolist() == [14, 11]
    kill(drafter.pid or 0)
    c = drafter.begin(TEXT)
    assert len(drafter.propose([c], [1])[0]) == 0 and drafter.ready(20)
    drafter.observe([b], [Verdict([0, 1], [14, 11, 12])])
    assert [d.tolist() for d in (x.tokens for x in drafter.propose([b, c], [1, 1]))] == [[13], [3]]
    drafter.close()
    assert len(drafter.propose([b], [2])[0]) == 0
    drafter.finish(b)


def test_a_worker_that_fails_too_often(answered: list[list[int]], tmp_path: Path) -> None:
    needed = tmp_path / "needed"
    needed.touch()
    drafter = OddWorker(f"needs:{needed}", timeout=20)
    state = drafter.begin(TEXT)
    needed.unlink()
    kill(drafter.pid or 0)
    assert len(drafter.propose([state], [2])[0]) == 0
    with pytest.warns(UserWarning, match=rf"failed {RESTARTS + 1} times .*: there is no {needed}"):
        assert not drafter.ready(60)
    assert drafter.pid is None and drafter.restarts == RESTARTS
    engine = Engine(draft_model("same"), drafter, policy=Fixed(k=6))
    assert [request.token_ids for request in answers(engine, ASKS)] == answered


def test_an_interrupt_in_the_middle_of_an_answer() -> None:
    drafter = OddWorker("sleepy:0.5:latest")
    state = drafter.begin(TEXT)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            drafter.propose([state], [2])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert drafter.ready(20)
    assert drafter.propose([state], [2])[0].tokens.tolist() == [3, 4]
    drafter.close()


ENDS = {
    "killed": "os.kill(os.getpid(), 9)",
    "killed while it works": "d.start([d.begin([1])], [1]); os.kill(os.getpid(), 9)",
    "at the end": "",
    "by an error": "1 / 0",
}


@pytest.mark.parametrize("how", ENDS.values(), ids=list(ENDS))
def test_no_process_is_left(how: str) -> None:
    code = (
        "import os, sys, time; from drafters.odd_worker import OddWorker as W;"
        "d = W('sleepy:1000:latest'); print(d.pid, flush=True);"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-W", "error", "-c", code + how]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert gone(pid)
        process.kill()


def test_collected_here() -> None:
    drafter = OddWorker("sleepy:0:latest")
    pid = drafter.pid
    drafter.begin(TEXT)
    del drafter
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()


def test_a_fork_gets_a_worker_of_its_own() -> None:
    code = (
        "import os, sys; from foresay.drafters import WorkerDrafter;"
        "d = WorkerDrafter('ngram'); s = d.begin([1, 2, 3, 1, 2]); first = d.pid;"
        "child = os.fork(); assert d.ready(20) and (d.pid == first) == bool(child);"
        "assert d.propose([s], [1])[0].tokens.tolist() == [3];"
        "sys.exit(0) if not child else None;"
        "assert os.waitpid(child, 0)[1] == 0;"
        "assert d.propose([s], [1])[0].tokens.tolist() == [3] and d.restarts == 0;"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_parameters_of_any_kind_of_number(shared: WorkerDrafter) -> None:
    other = shared.begin(TEXT)
    params = SamplingParams(temperature=Fraction(1, 2), top_p=np.float32(0.5))  # type: ignore[arg-type]
    state = shared.begin(TEXT, sampling=SeededParams(params, seed=np.int64(3)))
    before = shared.restarts
    assert shared.ready(20)
    assert [len(draft) for draft in shared.propose([other, state], [1, 1])] == [1, 1]
    assert shared.restarts == before
    shared.finish(other)
    shared.finish(state)


def test_the_contract() -> None:
    suffix = WorkerDrafter("suffix", timeout=20)
    assert drive(suffix, SCENARIOS) == drive(SuffixDrafter(history=False), SCENARIOS) > 50
    assert suffix.restarts == suffix.tokens_held() == 0

    table.refuses_what_is_wrong(lambda: suffix)
    wrong: Any = suffix
    for name, given, said in (
        ("drop_group", (None,), "group is None"),
        ("add_to_group", (None, [1], [2]), "group is None"),
        ("new_version", (2**200,), "keep is 16069"),
    ):
        with pytest.raises(InputError, match=said):
            getattr(wrong, name)(*given)
    assert suffix.restarts == 0
    suffix.close()
