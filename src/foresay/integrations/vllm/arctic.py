"""vLLM's method `suffix` on foresay's core: a replacement for the cache of ArcticInference.

With FORESAY_VLLM_SUFFIX=1 `register`, which vLLM calls in each of its processes as a plugin, puts
`SuffixDecodingCache` where vLLM imports it from. Without the variable, or if the real package has
been imported already, nothing is changed.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Hashable, KeysView, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

from foresay._core import Request
from foresay.arrays import Int32s
from foresay.drafters import SuffixDrafter
from foresay.errors import InputError
from foresay.integrations.vllm.host import set_up
from foresay.integrations.vllm.meter import log
from foresay.integrations.vllm.settings import asks_for_suffix, read_settings
from foresay.integrations.vllm.versions import changes, run_hooks
from foresay.verdict import VerdictBatch

__all__ = ["SuffixDecodingCache", "SuffixDecodingDraft", "register"]

_HOME = "arctic_inference"
_NO_PATH: Int32s = np.empty(0, np.int32)
_NO_PATHS: Int32s = np.zeros(2, np.int32)
_REMEMBERED = 256  # stopped requests that may come back
_MOST_LISTED = 1 << 16  # ids of cached answers, where the caller sets no bound


@dataclass(slots=True)
class SuffixDecodingDraft:
    """A draft in the form that vLLM reads; it uses only `token_ids`.

    `probs` are chances to be accepted, `score` their sum; `match_len` is always 0, since the core
    combines matches of all lengths.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    score: float = 0.0
    match_len: int = 0


class SuffixDecodingCache:
    """ArcticInference's interface over foresay's drafter.

    max_tree_depth       kept for callers; the core matches contexts of any length
    max_cached_requests  0: finished answers are not drafted from; else they are, within the setting
                         history_bytes, and so many of their ids are listed; below 0: 65536 ids

    A request that was stopped and comes back with the same prompt continues with all of its text.

    Raises: InputError for a value or a setting that is not valid.
    """

    def __init__(self, max_tree_depth: int = 64, max_cached_requests: int = -1) -> None:
        settings = read_settings()
        if max_tree_depth < 1:
            raise InputError(
                f"max_tree_depth is {max_tree_depth!r}; expected a whole number from 1"
            )
        self.max_tree_depth = max_tree_depth
        self.max_cached_requests = max_cached_requests
        self._drafter = SuffixDrafter(
            chain=True,
            history=settings.history and max_cached_requests != 0,
            history_bytes=settings.history_bytes,
            threads=1,  # vLLM asks for one request at a time
            corpus=settings.corpus or None,
            verify=True,
        )
        self._may_draft = set_up("suffix", settings, 1)
        self._changes, self._kept = changes(), settings.versions
        self._active: dict[Hashable, Request] = {}
        self._cached: dict[Hashable, None] = {}  # oldest first
        self._stopped: OrderedDict[Hashable, tuple[int, Int32s]] = OrderedDict()
        weakref.finalize(self, self.__dict__.clear)  # as SuffixProposer

    @property
    def active_requests(self) -> KeysView[Hashable]:
        """The ids that were started and not stopped."""
        return self._active.keys()

    @property
    def cached_requests(self) -> KeysView[Hashable]:
        """The ids of answers that may be drafted from."""
        return self._cached.keys()

    def start_request(self, req_id: Hashable, prompt_token_ids: Int32s | Sequence[int]) -> None:
        """A request begins, or comes back.

        Raises: InputError, a ValueError, if the id is active or the prompt is empty.
        """
        if req_id in self._active:
            raise InputError(f"request {req_id!r} is active; expected a stopped or a new one")
        prompt = np.array(prompt_token_ids, np.int32)
        if self._changes != changes():  # of the weights
            self._changes = changes()
            self._drafter.new_version(self._kept)
        text = prompt
        length, earlier = self._stopped.pop(req_id, (0, prompt))
        if length == len(prompt) and np.array_equal(earlier[:length], prompt):
            text = earlier  # with the tokens that it had decoded
        self._active[req_id] = self._drafter.begin(text)

    def stop_request(self, req_id: Hashable) -> None:
        """A request is finished, or preempted; its answer may be drafted from.

        Raises: InputError, a ValueError, if the id is not active.
        """
        state = self._state(req_id)
        del self._active[req_id]
        self._stopped[req_id] = (state.prompt_length, self._drafter.text(state))
        if len(self._stopped) > _REMEMBERED:
            self._stopped.popitem(last=False)
        self._drafter.finish(state)
        if self.max_cached_requests:
            self._cached.pop(req_id, None)
            self._cached[req_id] = None
            most = self.max_cached_requests if self.max_cached_requests > 0 else _MOST_LISTED
            if len(self._cached) > most:
                del self._cached[next(iter(self._cached))]

    def add_active_response(self, req_id: Hashable, token_ids: Int32s | Sequence[int]) -> None:
        """These tokens were committed.

        Raises: InputError, a ValueError, if the id is not active.
        """
        tokens = np.array(token_ids, np.int32)
        offsets = np.array([0, len(tokens)], np.int32)
        verdicts = VerdictBatch._trusted(tokens, offsets, _NO_PATH, _NO_PATHS)
        self._drafter.observe([self._state(req_id)], verdicts)

    def evict_cached_response(self, req_id: Hashable) -> None:
        """Remove an id from the list; its tokens leave the history when they are the oldest.

        Raises: InputError, a ValueError, for an id that is not cached.
        """
        if req_id not in self._cached:
            raise InputError(f"request {req_id!r} is not cached; expected one of `cached_requests`")
        del self._cached[req_id]

    def speculate(
        self,
        req_id: Hashable,
        context: Int32s | Sequence[int],
        max_spec_tokens: int | None = None,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        use_tree_spec: bool = False,
    ) -> SuffixDecodingDraft:
        """Draft what follows the request's text: a chain, also where a tree is allowed.

        The context is not needed: the core has the text. A draft goes on while a token's chance is
        at least `min_token_prob`, up to `max_spec_tokens` (max_tree_depth if that is None). The
        limits by match length, `max_spec_factor` and `max_spec_offset`, only stop drafting if both
        are 0, as there is no single match. In a vLLM that would give sampled requests wrong texts
        (`sampler_patch`) nothing is drafted.

        Raises: InputError, a ValueError, if the id is not active.
        """
        state = self._state(req_id)
        most = self.max_tree_depth if max_spec_tokens is None else max_spec_tokens
        limited = most <= 0 or (max_spec_factor <= 0 and max_spec_offset <= 0)
        if limited or not len(context) or not self._may_draft:
            return SuffixDecodingDraft()
        drafts = self._drafter.propose([state], [min(most, 4096)])
        scores = [] if drafts.scores is None else drafts.scores.tolist()
        count = sum(score >= min_token_prob for score in scores)  # they fall along the chain
        tokens: list[int] = drafts.tokens.tolist()
        probs = scores[:count]
        return SuffixDecodingDraft(tokens[:count], list(range(-1, count - 1)), probs, sum(probs))

    def _state(self, req_id: Hashable) -> Request:
        state = self._active.get(req_id)
        if state is None:
            raise InputError(f"request {req_id!r} is not active; expected one that was started")
        return state


def register() -> None:
    """Make vLLM's method `suffix` import our cache, if FORESAY_VLLM_SUFFIX is on.

    vLLM calls this for every command. A setting that is not valid is only logged here; the error
    is raised when a drafter is made. What was registered by `when_vllm_starts` is called, too.

    Mutates: sys.modules, if the variable is on; a second call changes nothing.
    """
    run_hooks()
    try:
        asked = read_settings().suffix
    except InputError as error:
        log.warning("foresay: %s", error)
        asked = asks_for_suffix()
    if not asked:
        return
    name = f"{_HOME}.suffix_decoding"
    there = sys.modules.get(name)
    if there is not None:
        if there.__dict__.get("SuffixDecodingCache") is not SuffixDecodingCache:
            log.warning("foresay: %s has been imported already; suffix decoding runs on it", name)
        return
    home = sys.modules.get(_HOME)
    if home is None:
        home = ModuleType(_HOME, "Stands for a package that is not installed; see foresay.")
        home.__spec__ = ModuleSpec(_HOME, None, is_package=True)  # what find_spec looks at
        home.__path__ = []
        sys.modules[_HOME] = home
    module = ModuleType(name, SuffixDecodingCache.__doc__)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(
        SuffixDecodingCache=SuffixDecodingCache, SuffixDecodingDraft=SuffixDecodingDraft
    )
    sys.modules[name] = module
    home.__dict__["suffix_decoding"] = module
    log.info("foresay: vLLM's method suffix runs on foresay's core")
