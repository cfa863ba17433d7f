"""When the edge sends its drafts, and how far it drafts ahead: never what is committed.

signals   how uncertain the drafter was of each token
rules     hard tokens by their text; numbers, names: the patterns
gate      hard tokens to a decision: send, draft on, or wait
auc       whether a signal foretells rejection
"""

from __future__ import annotations

from foresay.edge.gating.auc import Auc, auc, auc_by_signal
from foresay.edge.gating.gate import (
    OFF,
    Decision,
    Gate,
    Thresholds,
    block_rule,
    hard_ratio,
    nll_threshold,
)
from foresay.edge.gating.rules import (
    KINDS,
    Kind,
    Rules,
    Span,
    count_tokens,
    hard_spans,
    offsets_of_pieces,
    rare_tokens,
    rare_words,
    tokens_in,
)
from foresay.edge.gating.signals import (
    Signals,
    Unit,
    entropy,
    margin,
    mc_variance,
    nll,
    nll_of_scores,
    signals_of,
)

__all__ = [
    "KINDS",
    "OFF",
    "Auc",
    "Decision",
    "Gate",
    "Kind",
    "Rules",
    "Signals",
    "Span",
    "Thresholds",
    "Unit",
    "auc",
    "auc_by_signal",
    "block_rule",
    "count_tokens",
    "entropy",
    "hard_ratio",
    "hard_spans",
    "margin",
    "mc_variance",
    "nll",
    "nll_of_scores",
    "nll_threshold",
    "offsets_of_pieces",
    "rare_tokens",
    "rare_words",
    "signals_of",
    "tokens_in",
]
