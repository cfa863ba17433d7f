"""The proposer for vLLM's method `custom_class`: see `SuffixProposer`."""

from __future__ import annotations

import hashlib
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay._core import Request, lists
from foresay.arrays import Int32s
from foresay.budget.least_chance import LeastChance
from foresay.drafters import SuffixDrafter
from foresay.drafters.suffix import default_threads
from foresay.errors import UnknownGroup
from foresay.integrations.vllm.host import drafts_by_rows, set_up
from foresay.integrations.vllm.meter import Meter, ProposerStats, clock, log
from foresay.integrations.vllm.rows import Rows, Texts
from foresay.integrations.vllm.settings import VllmSettings, read_settings
from foresay.integrations.vllm.versions import changes, watch
from foresay.verdict import Verdict, VerdictBatch

__all__ = ["SuffixProposer"]

_NO_PATH: Int32s = np.empty(0, np.int32)
_MOST_GROUPS = 1 << 16  # whose age is known


class SuffixProposer:
    """Drafts for vLLM from existing text: each request's own, that of requests with the same
    prompt, and the answers of finished requests.

        --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
                               "model": "foresay.integrations.vllm.SuffixProposer"}'

    Rows are matched to requests by their text (`rows`). The text of a row when it is first seen is
    its prompt. A request that is absent for a while (preempted, not scheduled, in another
    micro-batch of a pipeline) continues where it was; after `grace` steps it counts as finished,
    and its answer may be drafted from. An exception in here costs drafts, never the step: it is
    logged once, and the proposer starts anew. In a vLLM that would give sampled requests wrong
    texts (`sampler_patch`) nothing is drafted.

    Where a trainer changes the weights (`versions`), finished texts are drafted from until the
    weights have changed more than `versions` times since; a group goes whole, with its oldest.

    All ranks of a tensor-parallel group get the same rows and draft the same: nothing depends on
    time there. With one rank, measured times may shorten drafts (`foresay.budget.least_chance`).

    Mutates: only through `propose`; inside vLLM, its rejection sampler (`sampler_patch`). Raises:
    InputError when constructed with a setting (`settings`) that is not valid.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.settings: VllmSettings = read_settings()
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(vllm_config.model_config.max_model_len)
        self._by_rows = drafts_by_rows(vllm_config.speculative_config)
        self._ranks = int(vllm_config.parallel_config.tensor_parallel_size)
        # Half of the processors: all threads wait for one that loses its processor.
        self._threads = self.settings.threads or default_threads(2 * self._ranks)
        self._meter = Meter(self.settings)
        self._changes = changes()  # of the weights
        self._begin_anew()
        self._may_draft = set_up(self.settings, self._threads)
        # vLLM freezes what the garbage collector knows, and holds this in a cycle: without help,
        # its texts would still be there when Python has ended, and be reported as leaked.
        weakref.finalize(self, self.__dict__.clear)

    def _begin_anew(self) -> None:
        s = self.settings
        self._drafter = SuffixDrafter(
            chain=True,
            history=s.history,
            history_bytes=s.history_bytes,
            group_bytes=s.group_bytes,
            threads=self._threads,
            corpus=s.corpus or None,
            verify=True,
        )
        self._chance = LeastChance(
            s.least_chance,
            max_requests=s.max_requests,
            measure=s.measure and self._ranks == 1,
        )
        self._texts: Texts[Request] = Texts(s.grace)
        self._prompts: dict[Request, str] = {}  # the hash of each text's prompt
        self._members: dict[str, list[Request]] = {}  # the texts with this prompt
        self._groups: set[str] = set()  # prompts with more than one text at a time
        self._born: dict[str, int] = {}  # the version in which a group began, oldest first
        self._ended = 0.0
        self._nodes = 0  # drafted in the last step
        self._draft_seconds = 0.0
        self._least = 0.0  # the least chance of those

    def load_model(self, model: Any = None, *args: Any, **kwargs: Any) -> None:
        """There is no model to load. The target's is watched: new weights begin a new version."""
        watch(model)

    def stats(self) -> ProposerStats:
        """Sums since the start.

        Valid until: for ever, it is a copy.
        """
        return replace(self._meter.sums, running=len(self._texts), returned=self._texts.returned)

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[Any],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
        **later: Any,
    ) -> list[list[int]]:
        """Observe the tokens that each row got, and draft what follows: a chain per row, or [].

        num_tokens_no_spec[i] tokens of token_ids_cpu[i] are row i's text, the last of which are
        sampled_token_ids[i]; a row without such tokens is in prefill and gets no draft. Arguments
        of later versions of vLLM are ignored.
        """
        if not self._may_draft:
            return [[] for _ in sampled_token_ids]
        begun = clock()
        try:
            drafts = self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, begun)
        except Exception:
            self._meter.sums.errors += 1
            if self._meter.sums.errors == 1:
                log.exception("foresay: a step failed and got no drafts; later ones are not logged")
            with suppress(Exception):
                self._begin_anew()
            drafts = [[] for _ in sampled_token_ids]
        self._meter.tell()
        self._ended = clock()
        return drafts

    def _propose(
        self,
        sampled: list[list[int]],
        num_tokens: NDArray[Any],
        token_ids: NDArray[np.int32],
        begun: float,
    ) -> list[list[int]]:
        if self._changes != changes():
            self._changes = changes()
            self._begin_version()
        rows = Rows(sampled, num_tokens, token_ids)
        if not len(rows):
            return [[] for _ in sampled]
        whole = len(rows) == len(sampled)
        texts = self._recognise(token_ids, rows)
        if whole and self._texts.unmoved and self._ended:  # nothing but these rows took the time
            seconds = begun - self._ended
            tokens, drafting = len(rows.tokens), self._draft_seconds
            self._chance.observe(len(rows), self._nodes, tokens, seconds, drafting, self._least)
        for text in self._texts.store(rows.after, texts):
            self._finish(text)
        drafts = self._draft(texts, rows, self._most_of(len(sampled)))
        self._meter.count(len(rows), len(rows.tokens), self._nodes, clock() - begun)
        if whole:
            return drafts
        out: list[list[int]] = [[] for _ in sampled]
        for row, draft in zip(rows.numbers.tolist(), drafts, strict=True):
            out[row] = draft
        return out

    def _recognise(self, token_ids: NDArray[np.int32], rows: Rows) -> list[Request]:
        """Each row's text; a new one for rows that are seen for the first time."""
        texts = self._texts.claim(rows.before)
        if not self._texts.unmoved:
            before = rows.lengths - np.diff(rows.offsets)
            for at, text in enumerate(texts):
                if text is None:
                    self._begin(token_ids[rows.numbers[at], : before[at]].copy(), texts, at)
        return texts  # type: ignore[return-value]

    def _begin(self, prompt: Int32s, texts: list[Request | None], at: int) -> None:
        """A text for the prompt, in a group with all texts of that prompt if there are others."""
        self._meter.sums.begun += 1
        name = hashlib.blake2b(prompt.tobytes(), digest_size=16).hexdigest()
        members = self._members.setdefault(name, [])
        if members and self.settings.groups and name not in self._groups:
            self._groups.add(name)
            self._born.setdefault(name, self._meter.sums.versions)
            if len(self._born) > _MOST_GROUPS:
                self._forget(next(iter(self._born)))
            if members[0] in texts:  # if it is absent, it may be finished
                self._regroup(members[0], name, texts)
        text = self._drafter.begin(prompt, group=name if name in self._groups else None)
        self._prompts[text] = name
        members.append(text)
        texts[at] = text

    def _regroup(self, text: Request, name: str, texts: list[Request | None]) -> None:
        """Replace a text by one with the same tokens, in the group. The old one is dropped without
        `finish`: it is not a finished answer, and must not be drafted from.
        """
        tokens, length = self._drafter.text(text), text.prompt_length
        member = self._drafter.begin(tokens[:length], group=name)
        if len(tokens) > length:
            self._drafter.observe([member], [Verdict(_NO_PATH, tokens[length:])])
        texts[texts.index(text)] = member
        self._members[name][0] = member
        self._prompts[member] = self._prompts.pop(text)

    def _finish(self, text: Request) -> None:
        self._meter.sums.finished += 1
        name = self._prompts.pop(text)
        self._members[name].remove(text)
        if not self._members[name]:
            del self._members[name]
            self._groups.discard(name)
        self._drafter.finish(text)

    def _begin_version(self) -> None:
        """The weights have changed. What is absent now is finished: trainers wait for the answers,
        or ask again for the rest of them.
        """
        self._ended = 0.0  # the time until now was not a step's
        for text in self._texts.end_absent():
            self._finish(text)
        kept = self.settings.versions
        self._drafter.new_version(kept)
        self._meter.end_version()
        for name, born in list(self._born.items()):
            if self._meter.sums.versions - born > kept and name not in self._groups:
                self._forget(name)

    def _forget(self, group: str) -> None:
        del self._born[group]
        with suppress(UnknownGroup):  # it was dropped for its bytes
            self._drafter.drop_group(group)

    def _most_of(self, rows: int) -> int:
        """The most tokens of a draft in a step of this number of requests."""
        most = self._most
        for first, drafted in self._by_rows:
            if first <= rows:
                most = min(self._most, drafted)
        return most

    def _draft(self, texts: list[Request], rows: Rows, most: int) -> list[list[int]]:
        """Observe what the rows got, and draft what follows, at most `most` tokens each."""
        self._nodes, begun = 0, clock()
        no_path = np.zeros(len(rows) + 1, np.int32)
        verdicts = VerdictBatch._trusted(rows.tokens, rows.offsets, _NO_PATH, no_path)
        least = self._chance.of(len(rows)) if most else None
        if least is None:
            self._meter.sums.closed += 1
            self._drafter.observe(texts, verdicts)
            return [[] for _ in texts]
        # Draft and the target's own next token stay within the model's length.
        budgets = np.minimum(self._max_length - 1 - rows.lengths, most)
        if len(rows) >= self.settings.many_requests:
            # With many requests, a draft is at most twice the tokens of the last step: nearly as
            # many tokens per step, for less work.
            np.minimum(budgets, np.maximum(2 * np.diff(rows.offsets), 3), out=budgets)
        given: Any = np.maximum(budgets, 0, out=budgets)
        drafts = self._drafter.step(texts, verdicts, given, least=least)
        out = lists(drafts.tokens, drafts.offsets)
        self._nodes, self._draft_seconds = len(drafts.tokens), clock() - begun
        self._least = least
        return out
