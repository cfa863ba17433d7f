"""Statistics of the proposer: sums, a line in vLLM's log, and a file with every step."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass, fields, replace

from foresay.counts import acceptance, tokens_per_step
from foresay.integrations.vllm.settings import VllmSettings

__all__ = ["Meter", "ProposerStats", "VersionLine"]

log = logging.getLogger("vllm.foresay")  # under vLLM's own logger, so that its settings hold
clock = time.perf_counter


@dataclass(slots=True)
class ProposerStats:
    """Sums since the start. `seconds` is the time spent in `propose`."""

    steps: int = 0
    rows: int = 0  # that got tokens, summed over the steps
    tokens: int = 0
    accepted: int = 0  # drafted tokens that were accepted
    drafted: int = 0
    closed: int = 0  # steps without drafting
    begun: int = 0  # texts that were new
    returned: int = 0  # texts that came back after some steps
    finished: int = 0
    running: int = 0  # texts that are tracked now
    errors: int = 0
    versions: int = 0  # changes of the weights
    seconds: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens per request and step."""
        return tokens_per_step(self.tokens, self.rows)

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were accepted."""
        return acceptance(self.accepted, self.drafted)

    def since(self, last: ProposerStats) -> ProposerStats:
        """What has come since earlier sums; of `running` by how many it has changed."""
        pairs = ((getattr(self, f.name), getattr(last, f.name)) for f in fields(self))
        return ProposerStats(*(now - before for now, before in pairs))


@dataclass(frozen=True, slots=True)
class VersionLine:
    """What one drafter did between two changes of the weights: a line of the versions file.

    pid      of its process
    version  how often the weights had changed before
    steps    in which any request got tokens
    rows     requests that got tokens, summed over the steps
    seconds  spent in drafting
    """

    pid: int
    version: int
    steps: int
    rows: int
    tokens: int
    drafted: int
    accepted: int
    seconds: float


class Meter:
    """Counts steps, and reports them as the settings say.

    Raises: OSError when constructed with a file that cannot be written.
    """

    def __init__(self, settings: VllmSettings) -> None:
        self.sums = ProposerStats()
        self._path = settings.steps_file
        self._pause = settings.log_seconds
        self._told = clock()
        self._last = ProposerStats()
        self._versions_path = settings.versions_file
        self._at_version = ProposerStats()
        for path in filter(None, (self._path, self._versions_path)):
            with open(path, "a", encoding="utf-8"):
                pass  # a path that cannot be written fails now

    def count(self, rows: int, tokens: int, drafted: int, seconds: float) -> None:
        """Count a step in which `rows` requests got `tokens`, and `drafted` tokens were proposed.

        Mutates: the sums; the file, if there is one.
        """
        sums = self.sums
        sums.steps += 1
        sums.rows += rows
        sums.tokens += tokens
        sums.accepted += tokens - rows
        sums.drafted += drafted
        sums.seconds += seconds
        if self._path:
            line = {
                "pid": os.getpid(),
                "step": sums.steps,
                "rows": rows,
                "tokens": tokens,
                "accepted": tokens - rows,
                "drafted": drafted,
                "microseconds": round(seconds * 1e6, 1),
            }
            self._path = _appended(self._path, line)

    def end_version(self) -> None:
        """The weights have changed: count it, and report the steps since the last change, if any,
        in the log and in the file, if there is one.
        """
        sums = self.sums
        new = sums.since(self._at_version)
        if new.steps:
            log.info(
                "foresay: weights changed %d times; Steps: %d, Tokens per step: %.2f, "
                "Draft acceptance rate: %.1f%%, Drafting: %.0f us/step",
                sums.versions + 1,
                new.steps,
                new.tokens_per_step,
                100 * new.acceptance,
                1e6 * new.seconds / new.steps,
            )
            if self._versions_path:
                line = VersionLine(
                    os.getpid(),
                    sums.versions,
                    new.steps,
                    new.rows,
                    new.tokens,
                    new.drafted,
                    new.accepted,
                    round(new.seconds, 6),
                )
                self._versions_path = _appended(self._versions_path, asdict(line))
        sums.versions += 1
        self._at_version = replace(sums)

    def tell(self) -> None:
        """Write a line to the log if it is time, of all steps since the last one."""
        now = clock()
        seconds = now - self._told
        if not self._pause or seconds < self._pause:
            return
        new = self.sums.since(self._last)
        self._told, self._last = now, replace(self.sums)
        if new.rows:
            log.info(
                "foresay: Running: %d reqs, Tokens per step: %.2f, Drafted throughput: %.2f "
                "tokens/s, Accepted throughput: %.2f tokens/s, Draft acceptance rate: %.1f%%, "
                "Drafting: %.0f us/step, Steps without drafts: %d of %d",
                new.rows // new.steps,
                new.tokens_per_step,
                new.drafted / seconds,
                new.accepted / seconds,
                100 * new.acceptance,
                1e6 * new.seconds / new.steps,
                new.closed,
                new.steps,
            )


def _appended(path: str, line: dict[str, float]) -> str:
    """Append a line to the file; returns where the next one goes: nowhere, if this failed.

    A process that was killed may have left half a line there, so this one begins anew.
    """
    try:
        begin = "" if _ends_line(path) else "\n"
        with open(path, "a", encoding="utf-8") as file:
            file.write(begin + json.dumps(line) + "\n")
    except OSError as error:  # ranks must not differ in their drafts
        log.warning("foresay: %s cannot be written any more (%s)", path, error)
        return ""
    return path


def _ends_line(path: str) -> bool:
    """Whether what follows is a new line: also where it cannot be known, as in a pipe."""
    try:
        if not os.path.isfile(path) or not os.path.getsize(path):
            return True
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return True
