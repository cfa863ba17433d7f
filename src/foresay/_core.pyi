"""The C++ core of foresay. Use the classes of foresay, not these."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray


class FrozenIndex:
    """An immutable index over a corpus file. Threads may share it."""

    @staticmethod
    def open(path: str, tokenizer_hash: bytes | None = None) -> FrozenIndex: ...

    def summary(self) -> dict[str, Any]: ...

    def verify(self) -> None: ...

    def advance(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[int, int, int]:
        """(length, lo, hi) of the longest suffix of the tokens that occurs."""

    def advance_steps(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[int]:
        """How many entries of the file's tables each token of a text searches."""

    def contexts(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], width: int = 8) -> list[tuple[int, int, int, int, list[tuple[int, int]]]]:
        """[(length, total, latest, first, [(token, count)])], longest first."""

    def continuation(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], limit: int, latest: bool = True) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """
        What follows the last (or first) occurrence of the longest suffix, up to the end of its document.
        """

    def contexts_shortened(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], length: int, width: int = 8) -> list[tuple[int, int, int, int, list[tuple[int, int]]]]:
        """contexts() after the match was cut to `length` tokens."""

    def match_lengths(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """The length of the match after each token."""

    def count_contexts(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], width: int = 8) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """How many contexts a query after each token visits."""

class FrozenBuilder:
    """Writes a corpus file; not for several threads at a time."""

    def __init__(self, path: str, *, vocabulary: int, tokenizer_hash: bytes, max_context: int = 32, memory_bytes: int = 1073741824, threads: int = 2) -> None: ...

    def add_document(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def finish(self, progress: Callable[[str, float], None] | None = None) -> None: ...

    def abandon(self) -> None: ...

    @property
    def tokens(self) -> int: ...

    @property
    def documents(self) -> int: ...

class Automaton:
    """
    An online suffix automaton over many growing sequences. Not for several threads at a time.
    """

    def __init__(self, occurrences: bool = False) -> None:
        """Counts every occurrence, or novelties only."""

    def begin(self) -> int:
        """A new sequence's number."""

    def extend(self, sequence: int, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def match_length(self, sequence: int) -> int:
        """Length of the sequence's longest suffix that occurs elsewhere too."""

    def find(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> dict[str, Any]:
        """What is known of the longest suffix of the tokens that occurs."""

    def advance_steps(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[int]:
        """How many suffixes each token of a text tries."""

    def contexts(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
        """
        [(length, total, latest, [(token, count)])], longest first, the empty context last.
        """

    def inner_states(self) -> list[Any]:
        """
        [(length, shortest, length of the link, first, occurrences, {token: count})]
        """

    @property
    def size(self) -> int: ...

    @property
    def num_inner_states(self) -> int: ...

    @property
    def link_steps(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def check_integrity(self) -> None: ...

COUNTED: int = 16

def time_extends(tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], occurrences: bool = False) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
    """Microseconds of each single extend, for benchmarks."""

class Request:
    """One request's state in a TextDrafter."""

    @property
    def prompt_length(self) -> int: ...

    @property
    def finished(self) -> bool: ...

class SamRule:
    def __init__(self, *, l_threshold: int, l_bias: int, latest: bool, topk_succ: int, length_factor: float, max_predicts: int, to_anc: bool) -> None: ...

class TextDrafter:
    """
    Drafts from text that exists. Each call locks it, so threads may share it.
    """

    def __init__(self, corpora: Sequence[FrozenIndex], *, own: bool, history: bool, history_bytes: int, tenant_bytes: int, group_bytes: int, own_bytes: int, max_tenants: int, max_tokens: int, threads: int, chain: bool, sam: SamRule | None) -> None: ...

    def begin(self, prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], group: str | None, tenant: str | None) -> Request: ...

    def propose(self, states: list[Request], budgets: object, least: float = 0.0) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))]]:
        """(tokens, parents, offsets, scores)"""

    def observe(self, states: list[Request], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def step(self, states: list[Request], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], budgets: object, least: float = 0.0) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))]]:
        """observe() and propose() in one."""

    def finish(self, state: Request) -> None: ...

    def text(self, state: Request) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    def kinds(self, state: Request) -> list[int]:
        """
        Of source that had seen each node of the state's last draft: a bit set.
        """

    def add_to_group(self, group: str, tenant: str | None, prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], answer: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def new_version(self, tenant: str | None, keep: int) -> None: ...

    def drop_group(self, group: str, tenant: str | None) -> None: ...

    def drop_tenant(self, tenant: str) -> None: ...

    @property
    def bytes(self) -> int: ...

    def bytes_of(self, tenant: str | None) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def groups(self) -> int: ...

    def check_integrity(self) -> None: ...

def read_rows(sampled: list[list[int]], lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], texts: Annotated[NDArray[numpy.int32], dict(shape=(None, None), device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]:
    """
    (numbers, lengths, tokens, offsets, keys before, keys after) of the rows that got tokens.
    """

def lists(values: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[list[int]]:
    """[values[offsets[i] : offsets[i + 1]].tolist()] for each i."""

def check_drafts(tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None:
    """Refuses what are no draft trees."""

class ClassTable:
    """
    What the verified nodes of one tenant taught; see csrc/budget/worth.hpp.
    """

    def __init__(self, edges: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], prior: float, memory: float) -> None: ...

class RequestFactors:
    """What a request's last drafts were worth; see csrc/budget/worth.hpp."""

    def __init__(self, prior: float, memory: float, most: int) -> None: ...

    def of(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

def calibrated(tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], tables: list[ClassTable], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
    """The chance of each node; see csrc/budget/worth.hpp."""

def learn(tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], accepted: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)], tables: list[ClassTable], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], factors: RequestFactors | None, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None:
    """Learns from verified nodes; see csrc/budget/worth.hpp."""

def follow_places(means: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')], nodes: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], accepted: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)], asked: int, requests: int, rate: float) -> None:
    """Writes into `means`; see csrc/budget/worth.hpp."""

def packed(tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, keep: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))]]:
    """(tokens, parents, offsets, scores, nodes) of the kept nodes."""

def numbered(path: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], path_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], nodes: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
    """Paths through packed drafts as paths through all nodes."""

def accepted(path: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], path_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], keep: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """Whether each kept node is on its draft's path."""

def step_rows(tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], draft_tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], draft_parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], draft_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], needs_logits: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)], prefill: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], prefill_logits: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
    """(tokens, parents, offsets, needed, prefill); see csrc/step/rows.hpp."""

def kept_rows(tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], path: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], path_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
    """The rows of each text that are stored; see csrc/step/rows.hpp."""

def selection(parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], chances: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], worth: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], left: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], contexts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, knots: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], shape: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], extras: tuple[float, float, float], level: float, other_rows: int, other_reads: int, tokens: float, seconds: float, overlaps: bool, bearable: float) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.float64], dict(shape=(None,))], Annotated[NDArray[numpy.float64], dict(shape=(None,))], int, int]:
    """(order, tokens, seconds, best, most); see csrc/budget/ranking.hpp."""

class RecycleRequest:
    """One request's state in a RecycleDrafter."""

class RecycleDrafter:
    """Drafts from what the target found likely before. Each call locks it."""

    def __init__(self, *, k: int, orders: int, bytes: int, max_tenants: int, fixed: bool, chain: bool) -> None: ...

    def begin(self, prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tenant: str | None, seed: int, temperature: float) -> RecycleRequest: ...

    def propose(self, states: list[RecycleRequest], budgets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], least: float = 0.0) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))]]:
        """(tokens, parents, offsets, scores)"""

    def adopt(self, states: list[RecycleRequest], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def observe(self, states: list[RecycleRequest], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], likeliest: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], logprobs: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], row_offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def finish(self, state: RecycleRequest) -> None: ...

    def text(self, state: RecycleRequest) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    def drafted(self, state: RecycleRequest) -> int:
        """Nodes of its own last draft, until that is observed."""

    def table(self, tenant: str | None) -> tuple[Annotated[NDArray[numpy.uint64], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
        """(keys, tokens, levels) of a tenant's table"""

    def add_table(self, tenant: str | None, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], levels: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def forget(self, tenant: str | None) -> None: ...

    @property
    def bytes(self) -> int: ...

    def bytes_of(self, tenant: str | None) -> int: ...

class MergeMemory:
    """What one request's last merge considered."""

class TreeMerge:
    """Several drafters' trees in one. Each call locks it."""

    def __init__(self, drafters: int, prior: float) -> None: ...

    def begin(self, tenant: str | None) -> MergeMemory: ...

    def forget(self, tenant: str | None) -> None: ...

    def merge(self, batches: Sequence[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None]], budgets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], seeds: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], temperatures: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], memories: list[MergeMemory]) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))], list[Annotated[NDArray[numpy.int32], dict(shape=(None,))]]]:
        """(tokens, parents, offsets, scores, [where each drafter's nodes went])"""

    def learn(self, memories: list[MergeMemory], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

def forbid(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], *, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], masks: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], threads: int) -> None:
    """
    Writes -inf where a row's mask has no bit; see csrc/sampling/masks.hpp.
    """

def uniforms(seed: int, position: int, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], stream: int = 0) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

def gumbels(seed: int, position: int, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], stream: int = 0) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

def choose(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, temperatures: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], seeds: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], stream: int, threads: int, level: str = '') -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.float64], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
    """(chosen, values, statuses) of each row; see csrc/sampling/noise.hpp."""

def match(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], temperatures: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], seeds: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], room: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stop_owners: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stops: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stream: int, threads: int, level: str = '') -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
    """
    (tokens, offsets, path, path_offsets, rows, statuses); see csrc/sampling/match.hpp.
    """

def follow(codes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], room: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stop_owners: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stops: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
    """The same from each row's token, or -1 - its status, chosen elsewhere."""

def topk(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)], k: int, *, threads: int, level: str = '') -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None, None))], Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]:
    """
    (tokens, logprobs) of each row, the likeliest first; see csrc/sampling/logprobs.hpp.
    """

def token_logprobs(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], temperatures: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], top: int = 0, threads: int, level: str = '') -> tuple[Annotated[NDArray[numpy.float64], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None, None))], Annotated[NDArray[numpy.float64], dict(shape=(None, None))]]:
    """
    (logprobs, top_tokens, top_logprobs) of each token; see csrc/sampling/logprobs.hpp.
    """

def unnormalised_softmax(scores: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], temperatures: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], residual: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')], walks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], threads: int, level: str = '') -> tuple[Annotated[NDArray[numpy.float64], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]:
    """
    Writes into the residual. (totals, statuses) of each walk; see csrc/sampling/residual.hpp.
    """

def sums(probs: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], threads: int, level: str = '') -> tuple[Annotated[NDArray[numpy.float64], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))]]:
    """(sums, least) of each row; a NaN makes the sum NaN."""

def subtract(residual: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')], *, walks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], totals: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], probs: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sums: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], threads: int, level: str = '') -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
    """
    Writes into the residual. The new totals; see csrc/sampling/residual.hpp.
    """

def draw(residual: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')], coins: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, threads: int, level: str = '') -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
    """A token of each row of the residual."""

class Kv:
    """
    The keys and values of one text, of all layers. Not for several threads at a time.
    """

    def __init__(self, layers: Sequence[tuple[int, int, int]], dtype: str) -> None:
        """layers: (kv_heads, key_dim, value_dim) of each."""

    @property
    def length(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def reserve(self, tokens: int) -> None: ...

    def keep(self, path: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """The rows of the last step that become the text's next tokens."""

    def cut(self, length: int) -> None: ...

    def copy_from(self, other: Kv, length: int) -> None: ...

    def keys(self, layer: int) -> Any:
        """
        A copy, [kv_heads, tokens and rows of the last step, key_dim]; bfloat16 as uint16.
        """

    def values(self, layer: int) -> Any: ...

    def check_integrity(self) -> None: ...

class AttentionStep:
    """One forward; see csrc/cpu/attention.hpp."""

    def __init__(self, kvs: Sequence[Kv], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], level: str = '', kept: Sequence[int] = []) -> None: ...

    @property
    def positions(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def attend(self, layer: int, query: object, key: object, value: object, out: object, scaling: float, window: int = 0, chunk: int = 0, softcap: float = 0, sinks: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, threads: int = 1) -> None:
        """
        Stores keys and values, writes into out. Arrays of numpy (bfloat16 as uint16) or torch, of the Kv's dtype.
        """

class Linear:
    """
    x @ weight.T + bias of bfloat16; see csrc/cpu/linear.hpp. Threads may share it.
    """

    def __init__(self, weight: object, bias: object | None = None, level: str = '') -> None:
        """
        weight [outs, ins] and bias [outs], of torch or numpy (bits as uint16). Copies both.
        """

    @property
    def in_features(self) -> int: ...

    @property
    def out_features(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def multiply(self, x: object, out: object, threads: int = 1) -> None:
        """
        x [..., rows, ins] into out [..., rows, outs], contiguous; bfloat16 or its bits as uint16.
        """

class DecoderLayer:
    """
    A layer of a decoder in one call; see csrc/cpu/decoder_layer.hpp. Threads may share it.
    """

    def __init__(self, query: Linear, key: Linear, value: Linear, out: Linear, gate: Linear, up: Linear, down: Linear, attention_norm: tuple[object, float], mlp_norm: tuple[object, float], head: int, query_norm: tuple[object, float] | None = None, key_norm: tuple[object, float] | None = None) -> None:
        """A norm is its weight and eps. Shares the layers, copies the norms."""

    def forward(self, step: AttentionStep, layer: int, x: object, cos: object, sin: object, scaling: float, window: int = 0, chunk: int = 0, threads: int = 1) -> None:
        """
        Changes x [..., rows, width]; cos and sin are [..., rows, head]. All of bfloat16 or its bits as uint16, contiguous.
        """

def rms_norm(x: object, weight: object, eps: float, out: object, level: str = '') -> None:
    """
    x [..., rows, width] into out, contiguous; bfloat16 or its bits as uint16. See csrc/cpu/decoder_layer.hpp.
    """

class BlockLinear:
    """
    x @ weight.T + bias with weights as GGUF stores them; see csrc/cpu/block_linear.hpp. Threads may share it.
    """

    def __init__(self, format: str, weight: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], outs: int, ins: int, order: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, level: str = '') -> None:
        """
        weight: the bytes of `outs` rows of `ins` numbers; output i is row order[i]. Copies all.
        """

    @property
    def in_features(self) -> int: ...

    @property
    def out_features(self) -> int: ...

    @property
    def format(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def stored_bytes(self) -> int: ...

    def row(self, out: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """The weights of one output as floats."""

    def multiply(self, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1) -> None:
        """x [rows, ins] into out [rows, outs], float32 and contiguous."""

def read_linears(file: str, linears: Sequence[tuple[str, str, int, int, int, Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None]], threads: int = 1, level: str = '') -> list[BlockLinear]:
    """
    A BlockLinear of each (name, format, start, outs, ins, order, bias): as BlockLinear, with the weights that begin at byte `start` of the file.
    """

class BlockLayer:
    """The parts of one layer of a Decoder. Norms are their weights, or None."""

    def __init__(self, query: BlockLinear, key: BlockLinear, value: BlockLinear, out: BlockLinear, gate: BlockLinear, up: BlockLinear, down: BlockLinear, attention_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], mlp_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], query_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, key_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, after_attention_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, after_mlp_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, window: int = 0, rope: int = 0) -> None: ...

class Decoder:
    """
    A whole decoder in one call; see csrc/cpu/decoder.hpp. Threads may share it.
    """

    def __init__(self, embedding: BlockLinear, layers: Sequence[BlockLayer], norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], head: BlockLinear | None, head_dim: int, eps: float, scaling: float, frequencies: Sequence[Sequence[float]], activation: str = 'silu', embedding_scale: float = 1.0, rope_scale: float = 1.0, score_cap: float = 0.0, logit_cap: float = 0.0) -> None:
        """Shares the linear layers, copies the norms."""

    @property
    def width(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def shapes(self) -> list[tuple[int, int, int]]: ...

    def forward(self, step: AttentionStep, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], needed: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], hidden: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None = None, threads: int = 1) -> None:
        """
        The step's tokens; writes the logits [needed, vocabulary] and last hidden states [needed, width] of the rows `needed`.
        """

class PagePool:
    """Which pages of a device's memory are free; see csrc/paged/pages.hpp."""

    def __init__(self, pages: int) -> None: ...

    @property
    def pages(self) -> int: ...

    @property
    def free(self) -> int: ...

    def next_copies(self) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))]] | None:
        """
        The next batch of slots that the device has to copy: from, to, offsets of groups.
        """

    def copied(self) -> None:
        """The device was given that batch."""

    PAGE: int = 64

class PagedText:
    """
    The pages of one text's keys and values. Not for several threads at a time.
    """

    def __init__(self, pool: PagePool) -> None: ...

    @property
    def length(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    def slots(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """Of the stored tokens, then of the last step's rows."""

    def keep(self, path: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """The rows of the last step that become the text's next tokens."""

    def cut(self, length: int) -> None: ...

    def copy_from(self, other: PagedText, length: int) -> None:
        """Full pages are shared."""

    def begin_step(self, rows: int) -> None: ...

    def end_step(self, rows: int) -> None: ...

    def check_integrity(self) -> None: ...

def keep_together(texts: tuple[PagedText, ...], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """
    Each text keeps its rows, as its `keep` does; if one cannot, none does.
    """

class PagedStep:
    """What a device must know of a step; see csrc/paged/step.hpp."""

    def __init__(self, texts: tuple[PagedText, ...], offsets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tile_rows: int, least_items: int = 0, chunk: int = 2) -> None: ...

    @property
    def rows(self) -> int: ...

    @property
    def items(self) -> int: ...

    @property
    def by_span(self) -> bool: ...

    @property
    def results(self) -> int: ...

    def size(self, row_capacity: int, item_capacity: int) -> int: ...

    def fill(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], row_capacity: int, item_capacity: int, out: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Writes into out."""

    def end(self) -> None: ...

    ROW_FIELDS: int = 7

    ITEM_FIELDS: int = 10

def cpu_levels() -> list[str]:
    """The levels of processors that this machine can run, the best first."""

def cpu_level() -> str:
    """
    The level in use: the best, or what FORESAY_CPU names. InputError if that cannot be run here.
    """

def better_cpu_levels() -> list[tuple[str, str]]:
    """
    The levels of this kind of processor that are better than the one in use, the best first, and why each is not used.
    """

def build_info() -> dict[str, Any]: ...
