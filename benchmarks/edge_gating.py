"""Part of `edge.py`: whether the gate's signals and rules foretell rejection.

Every position of the target's own answers is an examined token: the edge's drafter proposes the
next token after the true text, and it is rejected if the target wrote another. A rule is a signal
of 0 or 1. The edge's model draws with the target's noise, so the target itself would never be
rejected: it has to be another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from foresay.arrays import Int32s
from foresay.bench.questions import Question
from foresay.drafter import SeededParams
from foresay.edge.drafting import EdgeDrafts, edge_drafter
from foresay.edge.gating import KINDS, CorpusWords, Rules, auc, auc_by_signal, read_tokens
from foresay.edge.sending import CONTEXT
from foresay.engine.llm import LLM
from foresay.sampling.signals import Signals, nll_of_scores

TEMPERATURE = 0.8
PASSES = 8  # with dropout


class _Seen:
    """What a drafter said of each token, and whether it was rejected."""

    def __init__(self) -> None:
        self.signals: list[Signals] = []
        self.rejected: list[bool] = []
        self.marks: dict[str, list[bool]] = {}

    def areas(self) -> dict[str, Any]:
        found = auc_by_signal(Signals.joined(self.signals), self.rejected)
        for name, marks in self.marks.items():
            found[name] = auc(np.array(marks, float), self.rejected)
        return {
            name: {**area._asdict(), "marked": sum(self.marks[name])}
            if name in self.marks
            else area._asdict()
            for name, area in found.items()
        }


def measure(
    questions: Sequence[Question], model: str, edge_model: str, corpus: Path | None, memory: int
) -> dict[str, Any]:
    """The area of each signal and rule, of the edge's model and of the suffix drafter."""
    target = LLM(model, None, memory=memory)
    rules: dict[str, Rules] = {kind: Rules((kind,)) for kind in KINDS}
    rules["any rule"] = Rules()
    if corpus is not None:
        words = CorpusWords.of(corpus, target.tokenizer)
        rules["rare word"] = Rules((), word_counts=words)
        rules["any rule"] = Rules(word_counts=words)
    drafters = {
        "model": edge_drafter(f"model:{edge_model}", signals=True, dropout=PASSES),
        "suffix": edge_drafter("suffix", corpus=corpus),
    }
    seen = {name: _Seen() for name in drafters}
    for question in questions:
        params = replace(question.params, temperature=TEMPERATURE, seed=1)
        prompt = target.encode(
            [{"role": "user", "content": question.turns[0]}]
            if target.tokenizer.chats
            else question.turns[0]
        )
        answer = np.array(target.generate(prompt, params)[0].token_ids, np.int32)
        sampling = SeededParams(replace(params, max_tokens=len(answer) + 2), 1)
        for name, drafter in drafters.items():
            drafts = EdgeDrafts(drafter, prompt, sampling)
            _walk(drafts, prompt, answer, seen[name], rules, target.tokenizer.decode)
            drafts.finish()
            if drafts.error is not None:
                raise drafts.error
    return {
        "edge_model": Path(edge_model).name,
        "same_model": edge_model == model,
        "temperature": TEMPERATURE,
        "passes": PASSES,
        "prompts": len(questions),
        "areas": {name: each.areas() for name, each in seen.items()},
    }


def _walk(
    drafts: EdgeDrafts,
    prompt: Int32s,
    answer: Int32s,
    seen: _Seen,
    rules: dict[str, Rules],
    decode: Any,
) -> None:
    text = [*prompt.tolist(), *answer.tolist()]
    for at, token in enumerate(answer.tolist()):
        found = drafts.propose(1)
        if len(found.draft):
            drafted = int(found.draft.tokens[0])
            scores = found.draft.scores
            assert scores is not None
            seen.signals.append(found.signals or Signals(nll=nll_of_scores(np.minimum(scores, 1))))
            seen.rejected.append(drafted != token)
            end = len(prompt) + at
            read, offsets = read_tokens(decode, text[max(0, end - CONTEXT) : end], [drafted])
            for name, rule in rules.items():
                mark = bool(rule.mask(read, offsets, [drafted])[0])
                seen.marks.setdefault(name, []).append(mark)
        drafts.observe(np.array([token], np.int32))
