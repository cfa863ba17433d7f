"""The drafters foresay is measured against, behind one small interface.

Every peer has the same four methods::

    request = peer.begin(prompt)                      # a request starts
    tokens, parents = peer.propose(request, context, n, tree)
    peer.observe(request, tokens)                     # these tokens are now true
    peer.finish(request)                              # it ends

`context` is the whole text so far, an int32 array. `parents[i]` is the index of
the node before node i, -1 at the root; parents come before their children.
Peers that only know chains ignore `tree`.

A peer's package is imported when the peer is made, never with this module
(`make_peers.sh` installs them all).
"""

from functools import lru_cache

import numpy as np


class Peer:
    """A drafter without state, and the names every peer shares."""

    def begin(self, prompt):
        return 0

    def observe(self, request, tokens):
        pass

    def propose(self, request, context, n, tree=False):
        raise NotImplementedError

    def finish(self, request):
        pass


def chain(tokens):
    """`tokens` as a draft without branches."""
    return tokens, list(range(-1, len(tokens) - 1))


class ArcticPeer(Peer):
    """ArcticInference's SuffixDecodingCache, called as vLLM's proposer calls it.

    share: keep finished responses in the global tree (`cached` of them at most).
    limits: vLLM's settings (drafts no longer than the match, path probability at
        least 0.1). Without them a draft may use all the nodes it is given.
    depth: of the trees, and so of the context; 24 in vLLM, 64 in the cache itself.
    """

    NO_LIMIT = 1e6  # times the match length; must still fit the C++ side's int

    def __init__(self, share=False, limits=False, depth=24, cached=10_000):
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(depth, cached if share else 0)
        self.depth = depth
        self.settings = {
            "max_spec_factor": 1.0 if limits else self.NO_LIMIT,
            "min_token_prob": 0.1 if limits else 0.0,
        }
        self.started = 0

    def begin(self, prompt):
        self.started += 1
        self.cache.start_request(self.started, np.ascontiguousarray(prompt, np.int32))
        return self.started

    def observe(self, request, tokens):
        self.cache.add_active_response(request, tokens)

    def propose(self, request, context, n, tree=False):
        draft = self.cache.speculate(
            request,
            context[-self.depth :],
            max_spec_tokens=n,
            use_tree_spec=tree,
            **self.settings,
        )
        return draft.token_ids, draft.parents

    def finish(self, request):
        self.cache.stop_request(request)

    def memory(self, request=None):
        """The cache's own estimate in bytes: one request's tree, or the global one."""
        cache = self.cache
        tree = cache._global_tree if request is None else cache._local_trees[request]
        return tree.estimate_memory()


class PromptLookupPeer(Peer):
    """transformers' prompt lookup: the first place the last n tokens occurred."""

    def __init__(self, ngram=3):
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        torch.set_num_threads(1)
        self.as_tensor = torch.as_tensor
        self.generator = PromptLookupCandidateGenerator(
            max_matching_ngram_size=ngram, max_length=1 << 30
        )

    def propose(self, request, context, n, tree=False):
        self.generator.num_output_tokens = n
        ids = self.as_tensor(context)[None]
        candidates, _ = self.generator.get_candidates(ids)
        return chain(candidates[0, ids.shape[1] :].tolist())


class NgramPeer(Peer):
    """vLLM's n-gram rule: of the suffixes of low..high tokens that occurred before,
    the longest, at its first occurrence; the draft is what followed it there.

    vLLM's own proposer needs a vLLM config, so the rule is written out here: one
    Knuth-Morris-Pratt pass over the whole text from its end, compiled by numba (a
    little faster than vLLM's own pass).
    """

    def __init__(self, low=1, high=3):
        self.low, self.high = low, high
        self.find, self.find_batch = _ngram_search()

    def propose(self, request, context, n, tree=False):
        start = self.find(context, self.low, self.high)
        return chain(context[start : start + n].tolist())

    def propose_batch(self, texts, lengths, n):
        """Chains for all rows of `texts`, as vLLM drafts for a whole batch."""
        starts = self.find_batch(texts, lengths, self.low, self.high)
        return [
            text[start : min(start + n, length)].tolist()
            for text, start, length in zip(texts, starts.tolist(), lengths.tolist(), strict=True)
        ]


@lru_cache
def _ngram_search():
    from numba import njit

    @njit
    def find(text, low, high):
        """Where the draft starts; len(text) if no n-gram matches."""
        size = len(text)
        high = min(high, size)
        last = size - 1
        # fail[q]: the longest proper border of the last q + 1 tokens
        fail = np.zeros(high, np.int32)
        matched = 0
        for q in range(1, high):
            while matched and text[last - q] != text[last - matched]:
                matched = fail[matched - 1]
            if text[last - q] == text[last - matched]:
                matched += 1
            fail[q] = matched

        longest = first = matched = 0
        newest = text[last]
        for i in range(last - 1, -1, -1):
            if matched == 0 and text[i] != newest:
                continue  # almost always
            if matched == high:
                matched = fail[high - 1]
            while matched and text[i] != text[last - matched]:
                matched = fail[matched - 1]
            if text[i] == text[last - matched]:
                matched += 1
                if matched >= longest:
                    longest, first = matched, i
        return first + longest if longest >= low else size

    @njit
    def find_batch(texts, lengths, low, high):
        starts = np.empty(len(lengths), np.int64)
        for row in range(len(lengths)):
            starts[row] = find(texts[row, : lengths[row]], low, high)
        return starts

    return find, find_batch


PEERS = {
    "vllm-ngram-1-3": lambda: NgramPeer(1, 3),
    "prompt-lookup-3": lambda: PromptLookupPeer(3),
    "arctic-own-vllm": lambda: ArcticPeer(limits=True),
    "arctic-own": lambda: ArcticPeer(depth=64),
    "arctic-all-vllm": lambda: ArcticPeer(share=True, limits=True),
    "arctic-all": lambda: ArcticPeer(share=True, depth=64),
}
