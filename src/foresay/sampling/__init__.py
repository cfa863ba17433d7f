"""Which token comes next, exactly.

params      SamplingParams: what a user asks
ask         Ask, AskBatch: what a request asks of one verification
noise       the keyed noise, its specification
law         logits to the law of the next token, one row at a time
reference   rules match and rejection, one request at a time
batched/    law and both rules over packed batches, in torch; the noise in torch and Triton
logprobs    log probabilities of what was committed
theory      expected tokens per step, speed-up, bounds
kit/        the proof: `foresay lossless`
"""

from foresay.sampling.ask import Ask, AskBatch
from foresay.sampling.noise import Stream
from foresay.sampling.params import SamplingParams

__all__ = ["Ask", "AskBatch", "SamplingParams", "Stream"]
