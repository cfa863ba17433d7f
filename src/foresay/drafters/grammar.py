"""Text that the form of an answer forces, as drafts.

Where a grammar leaves one text to write (the name of a field, what is between two values), that
text is drafted as the tokenizer writes it, and verified like any draft. It stands alone, or around
another drafter: then the nodes that the grammar forbids are left out of the other's drafts, and the
forced text is put between and behind the rest. Requests without a form get the other's drafts as
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foresay.arrays import Int32s, IntsLike
from foresay.draft import Draft, DraftBatch
from foresay.drafter import (
    Drafter,
    SeededParams,
    Source,
    as_asked,
    as_budgets,
    as_commits,
    as_prompt,
    as_states,
    check_lengths,
)
from foresay.errors import InputError
from foresay.structured.grammars import Grammars
from foresay.structured.matcher import GrammarMatcher
from foresay.structured.tree import Completed, completed
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["GrammarDrafter"]

_TRIED, _RIGHT = 20.0, 19.0  # what is known of forced tokens before any was tried


@dataclass(slots=True)
class _Form:
    """A structured answer: its grammar behind the text so far, and its last draft."""

    matcher: GrammarMatcher | None  # None: nothing more is drafted
    last: Completed = field(default_factory=lambda: Completed([], [], [], []))
    sampled: bool = False  # the last draft is the inner drafter's own


class GrammarDrafter:
    """Drafts what the form of an answer forces (`SamplingParams.structured_outputs`).

    inner  the drafter whose drafts it completes; None: nothing else is drafted. What that one can
           do besides, this one can. Its states are the inner one's.

    It drafts nothing of its own before it was told of the tokenizer's grammars (`use_grammars`).

    Raises: InputError for an inner drafter that wants to see more than the committed tokens; such
    ones and this one draft together in a MergeDrafter.
    """

    def __init__(self, inner: Drafter[Any] | None = None) -> None:
        self._inner: Any = _Silent() if inner is None else inner
        if self._inner.wants != Wants():
            raise InputError(
                f"the inner drafter wants {self._inner.wants}; expected one that wants nothing. "
                "Use MergeDrafter(inner, GrammarDrafter())"
            )
        self.wants = Wants()
        self._grammars: Grammars | None = None
        self._forms: dict[int, _Form] = {}  # of requests that have one, by the id of their state
        self._tried, self._right = _TRIED, _RIGHT

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # it is not there yet
            raise AttributeError(name)
        return getattr(self._inner, name)

    def use_grammars(self, grammars: Grammars, /) -> None:
        """Those of the target's tokenizer: from now on requests with a form get drafts of it."""
        self._grammars = grammars

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> Any:
        """Start a request in the inner drafter.

        A form is drafted only if its grammar is there already: the engine compiles it, not this.

        Raises: as the inner drafter.
        """
        outputs = None if sampling is None else sampling.params.structured_outputs
        grammar = None
        if outputs is not None and self._grammars is not None:
            grammar = self._grammars.known(outputs)
        state = self._inner.begin(prompt, group=group, tenant=tenant, sampling=sampling)
        if grammar is not None:
            self._forms[id(state)] = _Form(grammar.matcher())
        return state

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> Sequence[Draft]:
        """The inner drafter's drafts, completed where there is a form.

        Raises: as the inner drafter.
        """
        given = self._inner.propose(states, budgets)
        if not self._forms:
            return given  # type: ignore[no-any-return]
        batch = DraftBatch.of(given)
        scored = batch.scores is not None or not len(batch.tokens)
        drafts = list(batch)
        limits = as_budgets(budgets, len(states))
        for at, (state, budget) in enumerate(zip(states, limits, strict=True)):
            form = self._forms.get(id(state))
            if form is None:
                continue
            # Sampled drafts stay whole: which of them are verified must not depend on their tokens.
            form.sampled = batch[at].probs is not None
            if not form.sampled:
                drafts[at] = self._completed(form, batch[at], budget, scored)
        return DraftBatch.of(drafts)

    def observe(self, states: Sequence[Any], verdicts: Sequence[Verdict], /) -> None:
        """Tell the inner drafter, in the numbers of its own nodes, and the grammars.

        Raises: as the inner drafter; InputError for a path that does not fit the last proposal.
        """
        if not self._forms:
            self._inner.observe(states, verdicts)
            return
        batch = VerdictBatch.of(verdicts)
        check_lengths(len(states), len(batch), "verdicts")
        forms = [self._forms.get(id(state)) for state in states]
        pairs = list(zip(forms, batch, strict=True))
        self._inner.observe(
            states, [each if form is None else _own(form, each) for form, each in pairs]
        )
        for form, verdict in pairs:
            if form is not None:
                self._follow(form, verdict.tokens.tolist())

    def finish(self, state: Any, /) -> None:
        """End the request in the inner drafter.

        Raises: as the inner drafter.
        """
        self._forms.pop(id(state), None)
        self._inner.finish(state)

    def sources(self, state: Any, /) -> list[tuple[Source, ...]]:
        """For each node of the state's last draft the inner drafter's sources, the grammar, or
        both.

        Raises: StateError.
        """
        form, said = self._forms.get(id(state)), self._inner.sources(state)
        if form is None or form.sampled:
            return said  # type: ignore[no-any-return]
        pairs = zip(form.last.own, form.last.forced, strict=True)
        by_form = (Source.GRAMMAR,)
        return [(*(said[own] if own >= 0 else ()), *(by_form if f else ())) for own, f in pairs]

    def _completed(self, form: _Form, draft: Draft, budget: int, scored: bool) -> Draft:
        form.last = Completed([], [], [], [])
        if form.matcher is None or not budget:
            return Draft.empty()
        try:
            found = completed(form.matcher, draft, budget)
        except InputError:  # it takes too much work: the target's own grammar says so, too
            form.matcher = None
            return Draft.empty()
        scores = self._scores(found, draft)
        best = range(len(found.tokens))
        if len(best) > budget:  # parents have the higher scores, and come first
            order = np.argsort(-scores, kind="stable") if scored else np.array(best)
            best = np.sort(order[:budget]).tolist()
        place = {-1: -1} | {old: new for new, old in enumerate(best)}
        form.last = Completed(
            [found.tokens[node] for node in best],
            [place[found.parents[node]] for node in best],
            [found.own[node] for node in best],
            [found.forced[node] for node in best],
        )
        chances = scores[[*best]] if scored else None
        return Draft(form.last.tokens, form.last.parents, chances)

    def _scores(self, found: Completed, draft: Draft) -> Any:
        """Each node's chance: its parent's, times what forced tokens were worth so far, or what the
        inner drafter thinks of its node behind that parent."""
        given = np.ones(len(draft)) if draft.scores is None else draft.scores
        above, scores = draft.parents, np.empty(len(found.tokens), np.float32)
        rate = self._right / self._tried
        for node, (parent, own, forced) in enumerate(
            zip(found.parents, found.own, found.forced, strict=True)
        ):
            chance = rate
            if not forced:
                before = 1.0 if above[own] < 0 else float(given[above[own]])
                chance = min(float(given[own]) / before, 1.0) if before > 0 else 0.0
            scores[node] = chance * (1.0 if parent < 0 else scores[parent])
        return scores

    def _follow(self, form: _Form, tokens: list[int]) -> None:
        """Learn what forced tokens were worth, and go behind what was committed."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(form.last.parents):
            children.setdefault(parent, []).append(node)
        place: int | None = -1
        for token in tokens:
            below = [] if place is None else children.get(place, [])
            right = [node for node in below if form.last.tokens[node] == token]
            if any(form.last.forced[node] for node in below):
                self._tried += 1
                self._right += bool(right)
            place = right[0] if right else None
        form.last = Completed([], [], [], [])
        try:
            if form.matcher is not None and not all(map(form.matcher.advance, tokens)):
                form.matcher = None  # the answer has ended
        except InputError:
            form.matcher = None


def _own(form: _Form, verdict: Verdict) -> Verdict:
    """The verdict on the inner drafter's nodes: what is accepted of them is the beginning."""
    if form.sampled:
        return verdict
    path = list[int]()
    for node in verdict.path.tolist():
        if not 0 <= node < len(form.last.own):
            raise InputError(
                f"a path has node {node}; the last draft has {len(form.last.own)} nodes"
            )
        if form.last.own[node] < 0:
            break
        path.append(form.last.own[node])
    return Verdict(path, verdict.tokens)


class _Silent:
    """Drafts nothing, and keeps the text."""

    wants = Wants()
    looks_up = True

    def begin(self, prompt: IntsLike, /, **about: object) -> _SilentState:
        return _SilentState(self, [as_prompt(prompt).copy()])

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> DraftBatch:
        return DraftBatch.of([Draft.empty() for _ in as_asked(states, budgets, _SilentState, self)])

    def observe(self, states: Sequence[Any], verdicts: Sequence[Verdict], /) -> None:
        for state, tokens in as_commits(states, verdicts, _SilentState, self):
            state.texts.append(tokens.copy())

    def finish(self, state: Any, /) -> None:
        as_states([state], _SilentState, self)
        state.finished = True

    def sources(self, state: Any, /) -> list[tuple[Source, ...]]:
        as_states([state], _SilentState, self)
        return []

    def text(self, state: Any, /) -> Int32s:
        as_states([state], _SilentState, self)
        return np.concatenate(state.texts)


@dataclass(slots=True, eq=False)
class _SilentState:
    owner: _Silent
    texts: list[Int32s]
    finished: bool = False
