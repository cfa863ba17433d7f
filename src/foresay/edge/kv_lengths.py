"""The lengths of both ends' KV caches, compared where both told of the same text.

After a round the cloud's KV cache has all of the text but its last token, which the next step
reads. A draft model on the edge has the same; or one token less where its whole draft was accepted,
since it never read the last token that it drafted; or less by what the cloud committed beyond the
draft. It reads what is missing before it drafts again. A larger difference would not change the
text, only show that an end forgot what it had computed.
"""

from __future__ import annotations

from foresay.edge.statistics import StreamStatistics

__all__ = ["KvLengths"]

_RECENT = 64  # commits that a draft model may be behind


class KvLengths:
    """Of one stream; what both ends told of the same text goes into its statistics.

    Both methods mutate it and the statistics; lengths are in tokens of prompt and answer.
    """

    def __init__(self, statistics: StreamStatistics) -> None:
        self._counted = statistics
        self._cloud: dict[int, int] = {}  # by position

    def note_cloud(self, position: int, length: int | None) -> None:
        """The cloud has committed up to there; None: it did not tell its length."""
        if length is not None:
            self._cloud[position] = length
            if len(self._cloud) > _RECENT:
                del self._cloud[next(iter(self._cloud))]

    def note_edge(self, position: int, length: int | None) -> None:
        """The draft model has heard of the text up to there; None: there is none, or it has not
        read anything yet."""
        cloud = self._cloud.pop(position, None)
        if cloud is None or length is None:
            return
        counted = self._counted
        counted.kv_rounds += 1
        counted.kv_edge, counted.kv_cloud = length, cloud
        counted.kv_difference = max(counted.kv_difference, abs(cloud - length))
