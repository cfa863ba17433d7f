"""What one stream cost, and what its drafts were good for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

__all__ = ["StreamStatistics"]

_RECENT = 64  # commits that a draft model may be behind


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
    _cloud_kv: dict[int, int] = field(default_factory=dict, repr=False)  # by position

    def note_cloud_kv(self, position: int, length: int | None) -> None:
        """The cloud has committed up to there, and has `length` tokens in its KV cache; None: it
        did not tell.

        After a round it has all of the text but its last token, which the next step reads. A draft
        model on the edge has the same; or one token less where its whole draft was accepted, since
        it never read the last token that it drafted; or less by what the cloud committed beyond the
        draft. A larger difference would not change the text, only show that an end forgot what it
        had computed.
        """
        if length is not None:
            self._cloud_kv[position] = length
            if len(self._cloud_kv) > _RECENT:
                del self._cloud_kv[next(iter(self._cloud_kv))]

    def note_edge_kv(self, position: int, length: int | None) -> None:
        """The draft model has heard of the text up to there; None: there is none, or it has not
        read anything yet. Compared where the cloud told of the same text."""
        cloud = self._cloud_kv.pop(position, None)
        if cloud is not None and length is not None:
            self.kv_rounds += 1
            self.kv_edge, self.kv_cloud = length, cloud
            self.kv_difference = max(self.kv_difference, abs(cloud - length))

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
        del values["rtts"], values["_cloud_kv"]
        computed = ("wasted", "alpha_mean", "la_over_k", "hard_ratio", "rtt")
        return {**values, **{name: getattr(self, name) for name in computed}}
