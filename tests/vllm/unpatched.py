"""Our proposer in a vLLM whose sampler is left as it is: what the tests must find to be wrong."""

from __future__ import annotations

from foresay.integrations.vllm import SuffixProposer, host

host.__dict__["patch_sampler"] = lambda: True


class Unpatched(SuffixProposer):
    pass
