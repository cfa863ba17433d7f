"""When the edge sends its drafts, and how far it drafts ahead: never what is committed.

rules     hard tokens by their text; numbers, names: the patterns
corpus_words   how often a word occurs in a corpus file: which are rare
gate      hard tokens to a decision: send, draft on, or wait
auc       whether a signal foretells rejection

How uncertain a drafter was of each token: `sampling.signals`.
"""

from __future__ import annotations

from foresay.edge.gating.auc import Auc, auc, auc_by_signal
from foresay.edge.gating.corpus_words import CorpusWords
from foresay.edge.gating.gate import (
    OFF,
    Decision,
    Gate,
    Thresholds,
    block_rule,
    hard_ratio,
    nll_threshold,
    usual_gate,
)
from foresay.edge.gating.rules import (
    KINDS,
    Decode,
    Kind,
    Rules,
    Span,
    count_tokens,
    hard_spans,
    offsets_of_pieces,
    rare_tokens,
    rare_words,
    read_tokens,
    tokens_in,
)

__all__ = [
    "KINDS",
    "OFF",
    "Auc",
    "CorpusWords",
    "Decision",
    "Decode",
    "Gate",
    "Kind",
    "Rules",
    "Span",
    "Thresholds",
    "auc",
    "auc_by_signal",
    "block_rule",
    "count_tokens",
    "hard_ratio",
    "hard_spans",
    "nll_threshold",
    "offsets_of_pieces",
    "rare_tokens",
    "rare_words",
    "read_tokens",
    "tokens_in",
    "usual_gate",
]
