"""foresay inside vLLM: a proposer for `custom_class`.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
        "model": "foresay.integrations.vllm.SuffixProposer"}'

Nothing in here imports vLLM: it calls us, with values that are described where they come in. Only
`sampler_patch` looks at vLLM's own modules, and patches them where sampled requests need that.
"""

from foresay.integrations.vllm.host import register
from foresay.integrations.vllm.meter import ProposerStats
from foresay.integrations.vllm.proposer import SuffixProposer
from foresay.integrations.vllm.settings import VllmSettings, describe, read_settings

__all__ = [
    "ProposerStats",
    "SuffixProposer",
    "VllmSettings",
    "describe",
    "read_settings",
    "register",
]
