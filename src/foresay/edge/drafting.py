"""Drafts for one stream, by any drafter that needs nothing of the target but its tokens.

The drafter's state always stands at the committed text, never at drafts: to draft ahead it is asked
for more than what is in flight, and what lies beyond that is sent next. So there is nothing to roll
back. A drafter that raises costs its drafts only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from foresay.arrays import Int32s, IntsLike, as_tokens
from foresay.draft import Draft
from foresay.drafter import MAX_BUDGET, Drafter, SeededParams, Source, as_prompt, check_drafter
from foresay.drafters.lineup import check_name, make_drafter, parts_of, sees_target
from foresay.edge.text import best_chain, child_with
from foresay.errors import InputError
from foresay.sampling.signals import Signals
from foresay.verdict import Verdict, Wants

__all__ = [
    "LONGEST",
    "EdgeDrafts",
    "Part",
    "Proposal",
    "check_edge_drafter",
    "check_edge_name",
    "edge_drafter",
]

LONGEST = 64
"""Tokens that a model drafts beyond the committed text, at most."""
_NAMES = ("suffix", "sam", "ngram", "corpus", "merge")


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What can be sent: a draft behind those in flight, and where each node comes from.

    above    the chance that what lies before it will be committed
    signals  how uncertain the drafter was of each node; None: it does not say
    hard     how many of its tokens are hard, once the gate has looked at it; None: it has not
    """

    draft: Draft
    sources: tuple[Source, ...]
    above: float = 1.0
    signals: Signals | None = None
    hard: int | None = None

    def __len__(self) -> int:
        return len(self.draft)

    def first(self, count: int) -> Part:
        """Its first nodes; of a chain its beginning."""
        if count >= len(self):
            return self
        draft = self.draft
        scores = None if draft.scores is None else draft.scores[:count]
        first = Draft(draft.tokens[:count], draft.parents[:count], scores)
        signals = None if self.signals is None else self.signals.at(slice(count))
        return Part(first, self.sources[:count], self.above, signals)

    def likely(self, least: float) -> Part:
        """Of a chain with scores the tokens whose chance is at least this, from now on."""
        if self.draft.scores is None:
            return self
        return self.first(int(np.count_nonzero(self.draft.scores * self.above >= least)))

    def reaches(self, place: int, least: float) -> bool:
        """Whether it has a token at that place, from 0, whose chance is at least this."""
        if place >= len(self):
            return False
        scores = self.draft.scores
        return scores is None or float(scores[place]) * self.above >= least


NOTHING = Part(Draft.empty(), ())


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What a drafter says follows the text up to `position`: a tree. Valid for ever: it is a
    prediction, which later commits agree with or not."""

    position: int
    draft: Draft
    sources: tuple[Source, ...]
    seconds: float
    signals: Signals | None = None

    def beyond(self, following: Sequence[int], *, tree: bool = False) -> Part | None:
        """What it has beyond the tokens that follow its position; None if it disagrees with them.

        The best chain; with `tree` all nodes below.
        """
        node = -1
        for token in following:
            child = child_with(self.draft, node, token)
            if child is None:
                return None
            node = child
        if tree:
            return self._below(node)
        chain = best_chain(self.draft, node)
        tokens = self.draft.tokens[chain]
        above = 1.0 if node < 0 or self.draft.scores is None else float(self.draft.scores[node])
        scores, signals = self._scores(chain, node), self._signals(chain)
        return Part(Draft.chain(tokens, scores), self._sources(chain), above, signals)

    def _below(self, root: int) -> Part:
        kept: dict[int, int] = {root: -1}
        for node, parent in enumerate(self.draft.parents.tolist()):
            if parent in kept:
                kept[node] = len(kept) - 1
        nodes = [node for node in kept if node != root]
        parents = [kept[int(self.draft.parents[node])] for node in nodes]
        draft = Draft(
            self.draft.tokens[nodes], np.array(parents, np.int32), self._scores(nodes, root)
        )
        return Part(draft, self._sources(nodes), signals=self._signals(nodes))

    def _scores(self, nodes: list[int], root: int) -> Any:
        """The chance of each given that `root` is committed, which it is."""
        if self.draft.scores is None:
            return None
        scores = self.draft.scores[nodes]
        above = 1.0 if root < 0 else float(self.draft.scores[root])
        return np.minimum(scores / above, 1).astype(np.float32) if above > 0 else scores

    def _sources(self, nodes: list[int]) -> tuple[Source, ...]:
        return tuple(self.sources[node] for node in nodes)

    def _signals(self, nodes: list[int]) -> Signals | None:
        return None if self.signals is None else self.signals.at(nodes)


class EdgeDrafts:
    """One stream's drafts. One thread at a time may use it, and its drafter.

    drafter    see `check_edge_drafter`
    prompt     the text so far
    sampling   the parameters and the seed that the cloud uses; None: not known
    error      what the drafter raised; from then on there are no drafts
    position   up to where it has observed the text
    kv_length  tokens of it in a draft model's KV cache by then; None: no model drafts alone, or it
               has not read anything yet
    seconds    what drafting has taken in all

    `observe` and `propose` mutate the drafter's state of this stream. Raises: TokenTypeError,
    InputError when constructed, for what is no prompt; nothing later.
    """

    def __init__(
        self, drafter: Drafter[Any], prompt: IntsLike, sampling: SeededParams | None = None
    ) -> None:
        text: Int32s = as_prompt(prompt)
        self.error: Exception | None = None
        self.position = len(text)
        self.seconds = 0.0
        self.kv_length: int | None = None
        self._drafter = drafter
        self._stored = getattr(drafter, "kv_length", None)
        self._last: Draft | None = None
        self._began = False
        try:
            self._state = drafter.begin(text.copy(), sampling=sampling)
            self._began = True
        except Exception as error:  # whatever a drafter raises, the text goes on
            self.error = error

    def observe(self, tokens: IntsLike) -> None:
        """Committed tokens, in their order; none: nothing happens."""
        new = as_tokens(tokens)
        if self.error is not None or not len(new):
            return
        began = perf_counter()
        path: list[int] = []
        node: int | None = -1
        for token in new.tolist()[:-1] if self._last is not None else ():
            assert node is not None and self._last is not None
            node = child_with(self._last, node, token)
            if node is None:
                break
            path.append(node)
        try:
            self._drafter.observe([self._state], [Verdict(np.array(path, np.int32), new.copy())])
            if self._stored is not None:
                self.kv_length = self._stored(self._state) or None
        except Exception as error:
            self._fail(error)
        self._last = None
        self.position += len(new)
        self.seconds += perf_counter() - began

    def propose(self, budget: int) -> Proposal:
        """What follows the observed text, with at most so many nodes; empty after an error."""
        began = perf_counter()
        draft, sources, signals = Draft.empty(), (), None
        if self.error is None and budget > 0:
            try:
                draft, sources, signals = self._ask(min(budget, MAX_BUDGET))
            except Exception as error:
                self._fail(error)
        seconds = perf_counter() - began
        self.seconds += seconds
        return Proposal(self.position, draft, sources, seconds, signals)

    def _ask(self, budget: int) -> tuple[Draft, Any, Signals | None]:
        found = self._drafter.propose([self._state], [budget])[0]
        if not isinstance(found, Draft) or len(found) > budget:
            raise InputError(f"the drafter proposed {found!r}; expected at most {budget} nodes")
        # A copy without probs, and checked: its arrays may be the drafter's own.
        scores = None if found.scores is None else found.scores.copy()
        draft = Draft(found.tokens.copy(), found.parents.copy(), scores)
        say = getattr(self._drafter, "sources", None)
        said = say(self._state) if say is not None and len(draft) else []
        sources = tuple(node[0] if node else Source.OTHER for node in said)
        if len(sources) != len(draft):
            sources = (Source.OTHER,) * len(draft)
        uncertain = getattr(self._drafter, "signals", None)
        signals = uncertain(self._state) if uncertain is not None and len(draft) else None
        if signals is not None and len(signals) != len(draft):
            signals = None
        self._last = draft
        return draft, sources, signals

    def finish(self) -> None:
        """End the drafter's request. A second call does nothing."""
        if self._began:
            self._began = False
            try:
                self._drafter.finish(self._state)
            except Exception as error:
                self.error = self.error or error

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._last = None
        self.finish()


def check_edge_drafter(drafter: Drafter[Any]) -> None:
    """Refuse a drafter that needs to see the target, which only the cloud has; also in a merge.

    Raises: InputError.
    """
    check_drafter(drafter)
    for part in getattr(drafter, "drafters", ()):
        check_edge_drafter(part)
    if drafter.wants != Wants() or getattr(drafter, "needs_target", False):
        raise InputError(
            f"the drafter {type(drafter).__name__} needs to see the target, which only the cloud "
            "has; expected one that drafts from the text, such as suffix, corpus or model:NAME"
        )


def check_edge_name(name: str) -> None:
    """Refuse what is no name of a drafter for an edge, without looking for its files.

    Raises: InputError.
    """
    expected = f"expected one of {', '.join(_NAMES)}, model:NAME, several with + between, or none"
    for part in parts_of(name):
        bare = part.removeprefix("worker:")
        if sees_target(bare):
            raise InputError(
                f"the drafter {bare!r} needs to see the target, which only the cloud has; "
                f"{expected}"
            )
        if bare and bare not in _NAMES and not bare.startswith("model:"):
            raise InputError(f"there is no drafter {bare!r}; {expected}")
    check_name(name)


def edge_drafter(
    name: str,
    *,
    corpus: str | Path | None = None,
    tree: bool = False,
    signals: bool = False,
    dropout: int = 0,
) -> Drafter[Any]:
    """A drafter by its name, as `drafters.lineup` has them, for an edge. Models draft chains of up
    to `LONGEST` tokens.

    tree      it may branch
    signals   a model that drafts alone says how uncertain it was; in one tree with others it does
              not, since the scores there say more: they are calibrated by what came true
    dropout   passes with dropout for the variance too, 2 or more; 0: none

    Raises: as `make_drafter`; InputError for one that needs the target.
    """
    check_edge_name(name)
    made = make_drafter(
        name, share="all", corpus=corpus, verify=True, chain=not tree, shape=LONGEST
    )
    check_edge_drafter(made)
    if (signals or dropout) and hasattr(made, "keep_signals"):
        made.keep_signals(_dropout(name, dropout) if dropout else None)
    elif dropout:
        raise InputError(
            f"the drafter {name!r} cannot draft with dropout; expected a model alone, model:NAME"
        )
    return made


def _dropout(name: str, passes: int) -> Any:
    from foresay.drafters.decoding.dropout import Dropout
    from foresay.models.load import find_model
    from foresay.models.tables import tables_of

    return Dropout(tables_of(find_model(name.removeprefix("model:"))).output, passes)
