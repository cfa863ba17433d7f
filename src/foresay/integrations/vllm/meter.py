"""Statistics of the proposer: sums, a line in vLLM's log, and a file with every step."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass, replace

from foresay.counts import tokens_per_step
from foresay.integrations.vllm.settings import VllmSettings

__all__ = ["Meter", "ProposerStats"]

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
        last, sums = self._at_version, self.sums
        steps, rows = sums.steps - last.steps, sums.rows - last.rows
        if steps:
            tokens, drafted = sums.tokens - last.tokens, sums.drafted - last.drafted
            accepted = sums.accepted - last.accepted
            line = {
                "pid": os.getpid(),
                "version": sums.versions,
                "steps": steps,
                "rows": rows,
                "tokens": tokens,
                "drafted": drafted,
                "accepted": accepted,
                "seconds": round(sums.seconds - last.seconds, 6),
            }
            log.info(
                "foresay: weights changed %d times; Steps: %d, Tokens per step: %.2f, "
                "Draft acceptance rate: %.1f%%, Drafting: %.0f us/step",
                sums.versions + 1,
                steps,
                tokens_per_step(tokens, rows),
                100 * accepted / drafted if drafted else 0.0,
                1e6 * (sums.seconds - last.seconds) / steps,
            )
            if self._versions_path:
                self._versions_path = _appended(self._versions_path, line)
        sums.versions += 1
        self._at_version = replace(sums)

    def tell(self) -> None:
        """Write a line to the log if it is time, of all steps since the last one."""
        now = clock()
        seconds = now - self._told
        if not self._pause or seconds < self._pause:
            return
        last, sums = self._last, self.sums
        self._told, self._last = now, replace(sums)
        steps, rows = sums.steps - last.steps, sums.rows - last.rows
        drafted, accepted = sums.drafted - last.drafted, sums.accepted - last.accepted
        if rows:
            log.info(
                "foresay: Running: %d reqs, Tokens per step: %.2f, Drafted throughput: %.2f "
                "tokens/s, Accepted throughput: %.2f tokens/s, Draft acceptance rate: %.1f%%, "
                "Drafting: %.0f us/step, Steps without drafts: %d of %d",
                rows // steps,
                tokens_per_step(sums.tokens - last.tokens, rows),
                drafted / seconds,
                accepted / seconds,
                100 * accepted / drafted if drafted else 0.0,
                1e6 * (sums.seconds - last.seconds) / steps,
                sums.closed - last.closed,
                steps,
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
