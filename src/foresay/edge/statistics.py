"""What one stream cost, and what its drafts were good for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

__all__ = ["StreamStatistics"]


@dataclass(slots=True)
class StreamStatistics:
    """Of one stream, which counts into it as it runs; seconds by the edge's clock.

    prompt_tokens, tokens    of the prompt, of the answer
    seed, wait               that the cloud used
    rounds                   drafts that the text reached
    drafts, sent, accepted   messages with a draft; drafted tokens in them, of trees all nodes;
                             those committed
    wasted                   drafted tokens that were sent and not committed
    rolled_back              of these on the path in flight when a commit disagreed with it
    lost                     of these in flight when a connection was lost
    stale                    drafts that the cloud had not seen when it committed the text there
    examined, accepted_at    by position in a draft: drafts right up to there, and at it
    alpha_mean, la_over_k    accepted by examined tokens, by sent tokens; None: there were none
    commits                  messages with new tokens
    bytes_up, bytes_down     of messages
    wire_up, wire_down       the same with WebSocket's headers, without TCP and TLS
    messages_up, messages_down
    connects, resumes, reopens, retries    connections; RESUMEs that were answered; streams that
                             were opened again because the cloud had lost them; waits before one
    damaged                  messages of the cloud whose check differed
    ttft, seconds            from the start to the first token, to the end
    draft_seconds            that drafting took
    rtts                     round trips of the network alone: without the cloud's own time
    hard_tokens, hard_ratio  of sent tokens, by the gate; None: no gate
    kv_rounds                rounds after which both ends told the length of their KV caches
    kv_edge, kv_cloud        these lengths after the last such round; None: there was none
    kv_difference            the most tokens by which they differed after a round
    drafter_error            why there were no more drafts; None: there was no error
    edge_only                tokens that the edge's own model wrote, which are not the target's
    """

    prompt_tokens: int = 0
    tokens: int = 0
    seed: int | None = None
    wait: str = ""
    rounds: int = 0
    drafts: int = 0
    sent: int = 0
    accepted: int = 0
    rolled_back: int = 0
    lost: int = 0
    stale: int = 0
    examined: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    commits: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wire_up: int = 0
    wire_down: int = 0
    messages_up: int = 0
    messages_down: int = 0
    connects: int = 0
    resumes: int = 0
    reopens: int = 0
    retries: int = 0
    damaged: int = 0
    ttft: float | None = None
    seconds: float = 0.0
    draft_seconds: float = 0.0
    rtts: list[float] = field(default_factory=list)
    hard_tokens: int | None = None
    kv_rounds: int = 0
    kv_edge: int | None = None
    kv_cloud: int | None = None
    kv_difference: int = 0
    drafter_error: str | None = None
    edge_only: int = 0

    @property
    def wasted(self) -> int:
        return self.sent - self.accepted

    @property
    def alpha_mean(self) -> float | None:
        examined = sum(self.examined)
        return sum(self.accepted_at) / examined if examined else None

    @property
    def la_over_k(self) -> float | None:
        return self.accepted / self.sent if self.sent else None

    @property
    def hard_ratio(self) -> float | None:
        return None if self.hard_tokens is None else self.hard_tokens / max(self.sent, 1)

    @property
    def rtt(self) -> float | None:
        """The median round trip; None: none was measured."""
        return median(self.rtts) if self.rtts else None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, with `rtt` instead of all round trips."""
        values = asdict(self)
        del values["rtts"]
        computed = ("wasted", "alpha_mean", "la_over_k", "hard_ratio", "rtt")
        return {**values, **{name: getattr(self, name) for name in computed}}
