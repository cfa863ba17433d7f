"""What the clients ought to get, computed without a server, in foresay's own environment.

    usage: reference.py generate|loglikelihood DTYPE MODEL ASKED.json COMPUTED.json

generate       [[prompt or messages, {"max_tokens", "stop"}]] -> texts, greedy and not speculated
loglikelihood  [[context, continuation]] -> [log probability, whether it is greedy], by transformers
               in float32, what its linear layers return rounded to DTYPE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from foresay import LLM, SamplingParams


def generate(asked: list[Any], model: str, dtype: Any) -> list[str]:
    llm = LLM(model, None, "none", dtype=dtype, memory=1 << 29)
    params = [SamplingParams(temperature=0, **wanted) for _, wanted in asked]
    return [result.text for result in llm.generate([prompt for prompt, _ in asked], params)]


def loglikelihood(asked: list[Any], model: str, dtype: str) -> list[tuple[float, bool]]:
    """One forward pass over context and continuation, nothing cached and nothing batched."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    whole: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    whole.eval()
    # Rounded, not multiplied in DTYPE: not every processor multiplies the smaller types. Weights
    # would not do: those of the default model are bfloat16 as they are.
    smaller = getattr(torch, dtype)
    for layer in whole.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda _, __, out: out.to(smaller).float())
    found = []
    for context, continuation in asked:
        known = len(tokenizer(context, add_special_tokens=False).input_ids)
        ids = torch.tensor(tokenizer(context + continuation, add_special_tokens=False).input_ids)
        with torch.inference_mode():
            logprobs = whole(ids[None]).logits[0, known - 1 : -1].float().log_softmax(-1)
        chosen = logprobs.gather(1, ids[known:, None])[:, 0]
        greedy = bool((logprobs.argmax(-1) == ids[known:]).all())
        found.append((float(chosen.sum()), greedy))
    return found


def main() -> None:
    what, dtype, model, asked, computed = sys.argv[1:]
    given = json.loads(Path(asked).read_text())
    kinds = {"generate": generate, "loglikelihood": loglikelihood}
    Path(computed).write_text(json.dumps(kinds[what](given, model, dtype)))


if __name__ == "__main__":
    main()
