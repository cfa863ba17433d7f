"""`vllm serve` as the README has it, and `foresay lossless --servers` between it and one without.

Three servers: without speculation, with the README's line, and with our proposer in a vLLM whose
sampler is not patched. The first two must be found equal, with a power that is told, and the third
must be found to be wrong.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import pytest

from foresay.errors import ServerError
from foresay.lossless.servers import Answer, Server, sampled_equality

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
MODEL = os.environ.get("FORESAY_TEST_MODEL", "")
PROMPTS = [
    "1. red 2. green 3. blue 4. red 5. green 6. blue 7. red 8.",
    "Monday, Tuesday, Wednesday, Monday, Tuesday,",
    "The old man walked to the sea. The sea was",
]
SAMPLES = 240  # of each server and prompt: as many as it takes to see a total variation of 0.25
FEW = 32  # for what is plainly wrong; the test asks four times as often before it says so
START = 600  # seconds that a server may take, on a machine with much else to do
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "passive",
    "TORCHDYNAMO_DISABLE": "1",
    "FORESAY_VLLM_MEASURE": "0",  # on a busy machine drafts might not pay
    "PYTHONPATH": str(HERE),  # for `unpatched`
}


def line_of_readme() -> list[str]:
    """The words of the command that the README gives for vLLM."""
    text = README.read_text(encoding="utf-8")
    begin = text.index("    vllm serve MODEL")
    words = shlex.split(text[begin : text.index("\n\n", begin)])
    assert words[:3] == ["vllm", "serve", "MODEL"] and words[3] == "--speculative-config"
    return [*words[:2], MODEL, *words[3:]]


class Serving:
    """A server in processes of its own, on a port that was free."""

    def __init__(self, words: list[str], log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        command = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
        command += ["--max-model-len", "256", "--max-num-seqs", "32", "--enforce-eager"]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                env=os.environ | SETTINGS,
                start_new_session=True,  # so that what it starts can be ended with it
            )

    def wait(self) -> Server:
        end = time.monotonic() + START
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-6000:]
            try:
                self.get("/health")
                return Server(self.url)
            except (URLError, OSError):
                time.sleep(0.5)
        raise AssertionError(f"no answer in {START} s: " + self.log.read_text()[-6000:])

    def get(self, path: str) -> str:
        with build_opener(ProxyHandler({})).open(self.url + path, timeout=5) as answer:
            return str(answer.read(), "utf-8")

    def counted(self) -> tuple[float, float]:
        """The tokens that were drafted so far, and those of them that were accepted."""
        text = self.get("/metrics")
        drafted, accepted = (
            sum(
                float(value)
                for value in re.findall(
                    rf"^vllm:spec_decode_num_{what}_total{{.*}} (\S+)$", text, re.M
                )
            )
            for what in ("draft_tokens", "accepted_tokens")
        )
        return drafted, accepted

    def end(self) -> None:
        """Ends all that it started, also what outlived it."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):  # of a group in which nobody is left
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def serving(words: list[str], log: Path) -> Iterator[Serving]:
    assert MODEL, "set FORESAY_TEST_MODEL to the folder of the default model"
    server = Serving(words, log)
    try:
        yield server
    finally:
        server.end()
    assert "nanobind: leaked" not in log.read_text()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(["vllm", "serve", MODEL], tmp_path_factory.mktemp("plain") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(line_of_readme(), tmp_path_factory.mktemp("ours") / "log") as server:
        yield server


@pytest.fixture
def unpatched(tmp_path: Path) -> Iterator[Serving]:
    words = line_of_readme()
    words[-1] = json.dumps(json.loads(words[-1]) | {"model": "unpatched.Unpatched"})
    with serving(words, tmp_path / "log") as server:
        yield server


@contextmanager
def drafting(server: Serving, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """What is done in here must be done with drafts, some of them accepted: texts that are equal
    because nothing was drafted would say nothing.
    """
    server.wait()
    before = server.counted()
    yield
    drafted, accepted = (after - b for after, b in zip(server.counted(), before, strict=True))
    tell(capsys, f"{accepted:.0f} of {drafted:.0f} drafted tokens accepted")
    assert drafted > 0 and accepted > 0


def lossless(
    one: Serving, other: Serving, folder: Path, samples: int
) -> tuple[int, dict[str, tuple[bool, str]]]:
    """What the command finds: its exit code, and for each check whether it is well, and why."""
    one.wait(), other.wait()
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(prompt + "\n" for prompt in PROMPTS))
    command = [sys.executable, "-m", "foresay", "lossless", "--json"]
    command += ["--servers", one.url, other.url, "--prompts", str(prompts)]
    command += ["--max-tokens", "24", "--tie", "0.001", "--samples", str(samples)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout, done.stderr
    checks = json.loads(done.stdout)["checks"]
    return done.returncode, {check["name"]: (check["ok"], check["result"]) for check in checks}


class Unseeded(Server):
    """Asks without a seed, so that vLLM itself tosses the coins."""

    __slots__ = ()

    def complete(self, prompt: str, **fields: object) -> list[Answer]:
        fields.pop("seed", None)
        return Server.complete(self, prompt, **fields)


def tell(capsys: pytest.CaptureFixture[str], sentence: str) -> None:
    with capsys.disabled():
        print(f"\n  {sentence}")


LEAVES_A_CHILD = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
signal.pause()
"""


def runs(stat: Path) -> bool:
    """Whether the process of that file lives; one that nobody has waited for yet does not."""
    try:
        return ") Z " not in stat.read_text()
    except OSError:
        return False


def test_what_outlives_a_server_is_ended_with_it(tmp_path: Path) -> None:
    left = Serving(["python", "-c", LEAVES_A_CHILD], tmp_path / "log")
    end = time.monotonic() + 60
    while not left.log.read_text().endswith("\n") and time.monotonic() < end:
        time.sleep(0.02)
    child = Path("/proc", left.log.read_text().strip(), "stat")
    assert runs(child)
    left.end()
    assert left.process.returncode == 0  # it ended by itself
    while runs(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not runs(child)


def test_a_wrong_setting_does_not_end_vllms_other_commands() -> None:
    command = [str(Path(sys.executable).with_name("vllm")), "--version"]
    environ = os.environ | SETTINGS | {"FORESAY_VLLM_GRACE": "-1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START, check=False, env=environ
    )
    assert done.returncode == 0 and "0.32.0" in done.stdout, done.stderr[-6000:]
    assert "foresay: FORESAY_VLLM_GRACE is -1; expected" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_readmes_line_runs(ours: Serving) -> None:
    (answer,) = ours.wait().complete(PROMPTS[0], max_tokens=8, temperature=0)
    assert answer.text
    log = ours.log.read_text()
    assert "foresay 0.1.0 in vLLM 0.32.0: custom_class, threads:" in log
    assert "settings: measure=False" in log


@pytest.mark.parametrize("fields", [{"min_p": 0.1}, {"logit_bias": {"5": 1.0}}])
def test_what_vllm_refuses_with_speculation(
    plain: Serving, ours: Serving, fields: dict[str, object]
) -> None:
    """The documents say so; when vLLM takes them, they are to be changed."""
    fields = {"max_tokens": 2, "temperature": 0.5, **fields}
    assert plain.wait().complete(PROMPTS[0], **fields)
    with pytest.raises(ServerError, match="status 400"):
        ours.wait().complete(PROMPTS[0], **fields)


def test_servers_with_and_without_drafts_are_equal(
    plain: Serving, ours: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with drafting(ours, capsys):
        code, checks = lossless(plain, ours, tmp_path, SAMPLES)
    for name, (_, says) in checks.items():
        tell(capsys, f"with and without drafts, {name}: {says}")
    assert (
        code == 0 and all(ok for ok, _ in checks.values()) and set(checks) == {"greedy", "sampled"}
    )


def test_a_seed_gives_one_text_with_and_without_drafts(
    plain: Serving, ours: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = plain.wait(), ours.wait()
    with drafting(ours, capsys):
        for seed, prompt in enumerate(PROMPTS):
            fields = {"max_tokens": 24, "temperature": 0.8, "seed": seed, "top_k": 40}
            (text,) = {server.complete(prompt, **fields)[0].text for server in (a, b, b)}
            assert text


def test_requests_without_a_seed_keep_their_distribution(
    plain: Serving, ours: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = {"top_p": 0.95}
    a, b = (Unseeded(server.wait().url, extra=extra) for server in (plain, ours))
    with drafting(ours, capsys):
        result = sampled_equality(a, b, PROMPTS, SAMPLES, max_tokens=3, temperature=0.7)
    tell(capsys, f"with and without drafts, no seeds: {result}")
    assert result.proved


def test_a_sampler_that_is_not_patched_is_found(
    plain: Serving, unpatched: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with drafting(unpatched, capsys):
        code, checks = lossless(plain, unpatched, tmp_path, FEW)
    tell(capsys, f"not patched: {checks['sampled'][1]}")
    assert code == 1 and checks["greedy"][0] and not checks["sampled"][0]
