"""foresay inside transformers: a switch for `model.generate`, and candidates for its assisted mode.

    from foresay.integrations.transformers import SuffixCandidates, assisted, generate

    model.generate(**inputs, max_new_tokens=200, custom_generate=generate)
    model.generate(**inputs, custom_generate=assisted, candidate_generator=SuffixCandidates())

The first runs a whole batch through foresay's engine; the second uses transformers' own loop, one
text at a time. Each field of the caller's GenerationConfig is honoured, or refused by its name.

batches     the first
candidates  the second
arguments   the arguments of a call as sampling parameters, or why they are refused
forms       grammars over the tokens of the caller's tokenizer
twin        a target that uses the caller's weights and leaves the model as it is
"""

from foresay.integrations.transformers.batches import generate
from foresay.integrations.transformers.candidates import SuffixCandidates, assisted

__all__ = ["SuffixCandidates", "assisted", "generate"]
