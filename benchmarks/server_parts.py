"""The parts of server.py: its processes, and what is measured of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from foresay.bench.cloud import Child, child
from server_client import ask_together, question

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
HISTORY_MB = 8  # of the crowd's answers: full within the warm-up
SAMPLE = 1.0  # seconds between two looks at the server's memory


@dataclass(frozen=True)
class EngineSettings:
    """What the server and the engine alone have in common."""

    folder: str
    memory_mb: int
    dtype: str
    drafter: str
    policy: str

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "folder"}


def cpu(one: Child) -> float:
    """Seconds of processor that a process has used."""
    fields = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(one: Child) -> tuple[float, float]:
    """MB in memory, and MB of them that are not mapped from files."""
    fields = Path(f"/proc/{one.pid}/statm").read_text().split()
    resident, shared = int(fields[1]), int(fields[2])
    return resident * PAGE / 1e6, (resident - shared) * PAGE / 1e6


def server(settings: EngineSettings, *more: str) -> Any:
    """`foresay serve`, to be used in a `with`."""
    options = ["--port", "0", "--json", "--memory-mb", str(settings.memory_mb)]
    options += ["--dtype", settings.dtype, "--drafter", settings.drafter]
    options += ["--policy", settings.policy, *more]
    return child("-m", "foresay", "serve", settings.folder, *options)


def counted(url: str) -> tuple[int, int]:
    """Steps that a server has made, and tokens that it has drafted and verified."""
    with urlopen(url + "/metrics", timeout=60) as response:
        text = response.read().decode()
    names = "foresay_steps", "vllm:spec_decode_num_draft_tokens"
    found = [re.search(rf"^{name}_total{{.*}} (\S+)$", text, re.M) for name in names]
    steps, drafted = (int(float(match.group(1))) if match else 0 for match in found)
    return steps, drafted


def measure_overhead(
    settings: EngineSettings, at_once: int, rounds: int, tokens: int
) -> dict[str, Any]:
    """Rounds of the same questions, of the server and of the engine alone, which take turns."""
    wanted = json.dumps(asdict(settings))
    turns, different = [], 0
    with server(settings) as one, child(str(HERE / "server_engine.py"), wanted) as other:

        def through_the_server(bodies: list[dict[str, Any]]) -> dict[str, Any]:
            url, ran = one.ready["url"], cpu(one)
            before, own = counted(url), time.process_time()
            seconds, answers = asyncio.run(ask_together(url, bodies))
            for answer in answers:
                if answer.error is not None:
                    sys.exit(f"a client got no answer: {answer.error}")
            used, client_used = cpu(one) - ran, time.process_time() - own
            steps, drafted = (b - a for a, b in zip(before, counted(url), strict=True))
            return {
                "seconds": seconds,
                "cpu_seconds": used,
                "client_cpu_seconds": client_used,
                "tokens": sum(answer.tokens for answer in answers),
                "texts": [answer.text for answer in answers],
                "steps": steps,
                "drafted": drafted,
            }

        def by_the_engine(bodies: list[dict[str, Any]]) -> dict[str, Any]:
            found: dict[str, Any] = other.say(json.dumps(bodies))
            return found

        for turn in range(rounds + 1):  # the first one warms up
            numbers = range(turn * at_once, (turn + 1) * at_once)
            bodies = [question(number, tokens, past_the_end=True) for number in numbers]
            ways = [("server", through_the_server), ("engine", by_the_engine)]
            found = {name: ask(bodies) for name, ask in (ways if turn % 2 else ways[::-1])}
            texts = [found[name].pop("texts") for name in ("server", "engine")]
            different += sum(a != b for a, b in zip(*texts, strict=True))
            if turn:
                turns.append(_compared(found))
    return {
        "at_once": at_once,
        "tokens": tokens,
        "times": round(statistics.median(t["times"] for t in turns), 4),
        "cpu_times": round(statistics.median(t["cpu_times"] for t in turns), 4),
        "different_texts": different,
        "rounds": turns,
    }


def _compared(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One round: what both took, and the server's part in terms of the engine's."""
    server, engine = found["server"], found["engine"]
    if server["tokens"] != engine["tokens"]:
        sys.exit(f"the server wrote {server['tokens']} tokens, the engine {engine['tokens']}")
    for one in found.values():
        one["tokens_per_second"] = round(one["tokens"] / one["seconds"], 2)
    return {
        **found,
        "times": round(server["seconds"] / engine["seconds"], 4),
        "cpu_times": round(server["cpu_seconds"] / engine["cpu_seconds"], 4),
    }


def measure_load(settings: EngineSettings, clients: int, seconds: float) -> dict[str, Any]:
    """Many clients for so long, while the server's memory is looked at."""
    warm_up = seconds / 5
    with server(settings, "--tenant-mb", str(HISTORY_MB)) as one:
        limits = "--seconds", str(seconds), "--warm-up", str(warm_up)
        command = [sys.executable, str(HERE / "server_client.py"), one.ready["url"], *limits]
        command += ["--clients", str(clients)]
        start, ran = time.monotonic(), cpu(one)
        samples: list[tuple[float, float, float]] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as crowd:
            try:
                while crowd.poll() is None:
                    now = time.monotonic() - start
                    # Answers that end later are not counted: the crowd gets smaller by then.
                    if now <= seconds:
                        samples.append((now, *memory(one)))
                    time.sleep(SAMPLE)
            except BaseException:
                crowd.kill()
                raise
            assert crowd.stdout is not None
            said = crowd.stdout.read()
        took = time.monotonic() - start
        if crowd.returncode:
            sys.exit(f"the clients have ended with status {crowd.returncode}")
        share = (cpu(one) - ran) / took
    return {
        "seconds": seconds,
        "warm_up_seconds": warm_up,
        "history_mb": HISTORY_MB,
        "server_cpu_share": round(share, 3),
        "clients": json.loads(said),
        "memory": memory_slopes(samples, warm_up),
    }


def memory_slopes(samples: list[tuple[float, float, float]], warm_up: float) -> dict[str, Any]:
    """Slopes by least squares after the warm-up, and where the line comes from. Buffers come and go
    with the steps: a leak also lifts the lowest values of each stretch, which they do not.
    """
    after = np.array([sample for sample in samples if sample[0] >= warm_up] or samples[-1:])
    minutes, resident, anonymous = after.T[0] / 60, after.T[1], after.T[2]
    return {
        "slope_mb_per_minute": _slope(minutes, resident),
        "anonymous_slope_mb_per_minute": _slope(minutes, anonymous),
        "slope_error_mb_per_minute": _error(minutes, resident),
        "lowest_slope_mb_per_minute": _slope(*_lowest(minutes, resident)),
        "first_mb": round(float(resident[0]), 1),
        "last_mb": round(float(resident[-1]), 1),
        "most_mb": round(float(resident.max()), 1),
        "samples": len(after),
        "every_10_seconds_mb": [round(mb, 1) for _, mb, _ in samples[::10]],
    }


def _stretches(values: Any) -> list[Any]:
    return np.array_split(np.arange(len(values)), min(16, len(values)))


def _error(minutes: Any, values: Any) -> float | None:
    """The standard error of the slope, from the means of stretches: neighbours are not independent.
    None if there are too few.
    """
    if len(values) < 48:
        return None
    x, y = (np.array([v[s].mean() for s in _stretches(values)]) for v in (minutes, values))
    left = y - np.polyval(np.polyfit(x, y, 1), x)
    return round(float(np.sqrt((left**2).sum() / (len(x) - 2) / ((x - x.mean()) ** 2).sum())), 4)


def _lowest(minutes: Any, values: Any) -> tuple[Any, Any]:
    """The least value of each of up to 16 stretches, and when it was."""
    stretches = _stretches(values)
    at = [int(stretch[values[stretch].argmin()]) for stretch in stretches]
    return minutes[at], values[at]


def _slope(minutes: Any, values: Any) -> float:
    if len(values) < 2:
        return 0.0
    return round(float(np.polyfit(minutes, values, 1)[0]), 4)
