"""Drafts for one stream, by any drafter that needs nothing of the target but its tokens.

The drafter's state always stands at the committed text, never at drafts: to draft ahead it is asked
for more than what is in flight, and what lies beyond that is sent next. So there is nothing to roll
back. A drafter that raises costs its drafts only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from foresay.abilities import abilities_of
from foresay.arrays import Int32s, IntsLike, as_tokens
from foresay.draft import Draft
from foresay.drafter import MAX_BUDGET, Drafter, SeededParams, Source, as_prompt
from foresay.drafters.lineup import check_drafter_name, make_drafter, parts_of, sees_target
from foresay.drafters.merge import MergeDrafter
from foresay.drafters.model import ModelDrafter
from foresay.edge.text import best_chain, child_with
from foresay.errors import InputError, StreamError
from foresay.sampling.signals import Signals
from foresay.verdict import Verdict, Wants

__all__ = [
    "EDGE_ONLY",
    "LONGEST",
    "EdgeDrafts",
    "Proposal",
    "check_edge_drafter",
    "check_edge_name",
    "edge_drafter",
    "model_in",
    "write_edge_only",
]

LONGEST = 64
"""Tokens that a model drafts beyond the committed text, at most."""
EDGE_ONLY = "edge-only: this is not the target model"
_NAMES = ("suffix", "sam", "ngram", "corpus", "merge")
_STEP = 8  # tokens that are written at a time without the cloud


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What a drafter says follows the text up to `position`: a tree. Valid for ever: it is a
    prediction, which later commits agree with or not.

    sources   where each node comes from
    seconds   that drafting it took
    signals   how uncertain the drafter was of each node; None: it does not say
    above     the chance that what lies before it will be committed
    hard      which of its tokens are hard, by the gate; None: there is none
    """

    position: int
    draft: Draft
    sources: tuple[Source, ...] = ()
    seconds: float = 0.0
    signals: Signals | None = None
    above: float = 1.0
    hard: list[bool] | None = None

    def __len__(self) -> int:
        return len(self.draft)

    def first(self, count: int) -> Proposal:
        """Its first nodes; of a chain its beginning."""
        if count >= len(self):
            return self
        draft = self.draft
        scores = None if draft.scores is None else draft.scores[:count]
        return replace(
            self,
            draft=Draft(draft.tokens[:count], draft.parents[:count], scores),
            sources=self.sources[:count],
            signals=None if self.signals is None else self.signals.at(slice(count)),
        )

    def likely(self, least: float) -> int:
        """Of a chain the tokens whose chance is at least this, from now on; without scores all."""
        scores = self.draft.scores
        return len(self) if scores is None else int(np.sum(scores * self.above >= least))

    def beyond(self, following: Sequence[int], *, tree: bool = False) -> Proposal | None:
        """What it has beyond the tokens that follow its position; None if it disagrees with them.

        The best chain; with `tree` all nodes below. Scores are chances given these tokens.
        """
        draft, root = self.draft, -1
        for token in following:
            child = child_with(draft, root, token)
            if child is None:
                return None
            root = child
        nodes = best_chain(draft, root)
        parents = list(range(-1, len(nodes) - 1))
        if tree:
            places = {root: -1}
            for node, parent in enumerate(draft.parents.tolist()):
                if parent in places:
                    places[node] = len(places) - 1
            nodes = list(places)[1:]
            parents = [places[int(draft.parents[node])] for node in nodes]
        scores, above = None, 1.0
        if draft.scores is not None:
            scores, above = draft.scores[nodes], 1.0 if root < 0 else float(draft.scores[root])
            if above > 0:
                scores = np.minimum(scores / above, 1).astype(np.float32)
        return Proposal(
            self.position + len(following),
            Draft(draft.tokens[nodes], np.array(parents, np.int32), scores),
            tuple(self.sources[node] for node in nodes),
            signals=None if self.signals is None else self.signals.at(nodes),
            above=above,
        )


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
        self._able = abilities_of(drafter)
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
            if self._able.kv_length is not None:
                self.kv_length = self._able.kv_length.kv_length(self._state) or None
        except Exception as error:
            self._fail(error)
        self._last = None
        self.position += len(new)
        self.seconds += perf_counter() - began

    def propose(self, budget: int) -> Proposal:
        """What follows the observed text, with at most `budget` nodes; empty after an error."""
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
        told: Sequence[tuple[Source, ...]] = ()
        signals = None
        if len(draft) and self._able.sources is not None:
            told = self._able.sources.sources(self._state)
        if len(draft) and self._able.signals is not None:
            signals = self._able.signals.signals(self._state)
        if len(told) != len(draft):
            told = [()] * len(draft)
        if signals is not None and len(signals) != len(draft):
            signals = None
        sources = tuple(node[0] if node else Source.OTHER for node in told)
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
    fits = abilities_of(drafter).fits
    for part in drafter.drafters if isinstance(drafter, MergeDrafter) else ():
        check_edge_drafter(part)
    if drafter.wants != Wants() or (fits is not None and fits.needs_target):
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
    check_drafter_name(name)


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
    able = abilities_of(made).signals
    if (signals or dropout) and able is not None:
        able.keep_signals(_dropout(name, dropout) if dropout else None)
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


def model_in(drafter: Drafter[Any] | None) -> ModelDrafter:
    """The model among a client's drafters.

    Raises: InputError if there is none.
    """
    for part in drafter.drafters if isinstance(drafter, MergeDrafter) else (drafter,):
        if isinstance(part, ModelDrafter):
            return part
    raise InputError(
        "edge_only is True, but no model drafts; expected a drafter with model:NAME, since only a "
        "model can write without the cloud"
    )


def write_edge_only(
    model: ModelDrafter,
    text: IntsLike,
    sampling: SeededParams,
    *,
    tokens: int,
    ends: Sequence[int],
) -> Iterator[tuple[list[int], str]]:
    """What the edge's model writes after a text where the cloud cannot be reached: tokens, and at
    the end the finish reason. This is not the target model: nothing of it enters an `EdgeText`.

    tokens: how many at most; ends: ids that end it. Stop strings are not looked for. Each step
    blocks for as long as the model takes. Raises: StreamError if the model cannot go on.
    """
    # One more: a drafter leaves the last token of an answer to the target.
    longer = replace(sampling.params, max_tokens=sampling.params.max_tokens + 1)
    drafts = EdgeDrafts(model, text, SeededParams(longer, sampling.seed))
    try:
        while tokens > 0:
            proposal = drafts.propose(min(tokens, _STEP))
            part = proposal.beyond(())
            if part is None or not len(part):
                raise StreamError(
                    f"{EDGE_ONLY}, and it cannot go on: "
                    f"{drafts.error or 'the text is too long for it, or has tokens it lacks'}",
                    "unreachable",
                )
            new = part.draft.tokens.tolist()
            at = next((i for i, token in enumerate(new) if token in ends), None)
            new = new if at is None else new[: at + 1]
            tokens -= len(new)
            yield new, "stop" if at is not None else "" if tokens else "length"
            if at is not None:
                return
            drafts.observe(new)
    finally:
        drafts.finish()
