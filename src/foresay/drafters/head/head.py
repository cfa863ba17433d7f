"""What EagleDrafter and MtpDrafter draft with: a head that continues the target's features.

A row of a head's input is a pair: a feature, and the token that the target chose from it. Its
output predicts the next token, and is the feature of the next row. So a head goes on by itself
where the target's features end.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

__all__ = ["Head", "Kept"]


class Kept:
    """Keys and values [B, heads, T, width] of texts, padded on the right. Both may have other heads
    and widths: what a layer keeps is its own affair.

    Layers of transformers take it for their cache, of which they call `update` alone.
    """

    __slots__ = ("_end", "_places", "keys", "values")

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def next_at(self, places: Tensor, end: int) -> None:
        """The next rows have these places, int64[B, R], and see those before `end` at most."""
        self._places, self._end = places[:, None, :, None], end

    def update(self, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """Put rows [B, heads, R, width] at their places; all rows that they may see."""
        for kept, rows in (self.keys, key), (self.values, value):
            kept.scatter_(2, self._places.expand_as(rows), rows)
        return self.keys[:, :, : self._end], self.values[:, :, : self._end]


class Head(Protocol):
    """A head with the tables of its target.

    tokens  int64[drafted]: the token id of each column of the logits
    window  how many rows a row sees, itself included; 0: all before it
    """

    tokens: Tensor
    window: int

    @property
    def width(self) -> int:
        """Of the target's features."""
        ...

    @property
    def vocabulary(self) -> int:
        """Tokens that it can read."""
        ...

    def rows(self, features: Tensor) -> Tensor:
        """Rows [B, R, hidden] of the target's features [B, R, width]."""
        ...

    def room(self, texts: int, places: int) -> Kept:
        """For `places` rows of each text."""
        ...

    def read(
        self, rows: Tensor, tokens: Tensor, positions: Tensor, kept: Kept, visible: Tensor
    ) -> Tensor:
        """The output after rows with their tokens and positions, int64[B, R]. `visible` is
        bool[B, 1, R, T], at least one in a row."""
        ...

    def logits(self, rows: Tensor) -> Tensor:
        """Of the tokens that it can draft, from the output, as float32."""
        ...
