"""How true the default model is with its weights in blocks: perplexity, and how far the next
token's distribution is from that of float32 weights widened from the same blocks.

    python benchmarks/formats.py --text FILE [--tokens 20000] [--others 1024] [--json]

The reference is transformers in float32, with every tensor widened by the package `gguf`: other
code for the weights, the products and the attention. A row of the record compares one way to run
the model with it, on the same tokens of the text, in pieces of 512 that do not see each other:

    as stored   the file's own blocks, activations quantised, keys and values in bfloat16
    bfloat16    the target with dtype "bfloat16", weights rounded from the same file
    a format    all matrices quantised to it anew; the reference is widened from these blocks. What
                F32 differs by is bfloat16 keys and values alone. K formats have blocks of 256, and
                of this model's rows only those of the mlp's down projection divide into them: the
                other matrices are F32 there

KL is sum(p log(p / q)) in nats, p being the reference. What requantising itself costs shows in the
perplexity of the reference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import record
from foresay.models.cpu.decoder import make_decoder
from foresay.models.cpu.decoder_config import read_config
from foresay.models.cpu.stored_decoder import decoder_of
from foresay.models.cpu.stored_target import StoredTarget
from foresay.models.load import load
from foresay.models.target import Part, Target
from foresay.models.weights import DEFAULT_MODEL, find, find_stored
from formats_blocks import FORMATS, Requantised, widened

PIECE = 512
ROWS_AT_A_TIME = 64  # of logits: so many fit into a cache better than 512
Tokens = NDArray[np.int32]


@dataclass
class Tally:
    """What was compared so far."""

    kls: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    reference_losses: list[Tensor] = field(default_factory=list)
    same: int = 0
    seconds: float = 0.0

    def add(self, reference: Tensor, given: Tensor, text: Tensor) -> None:
        """Logits after each token of a piece but the last; `text` is what follows each."""
        for at in range(0, len(text), ROWS_AT_A_TIME):
            rows = slice(at, at + ROWS_AT_A_TIME)
            one, two = (logits[rows].log_softmax(1) for logits in (reference, given))
            self.kls.append((one.exp() * (one - two)).sum(1, dtype=torch.float64))
            self.same += int((one.argmax(1) == two.argmax(1)).sum())
            for losses, found in ((self.reference_losses, one), (self.losses, two)):
                losses.append(-found.gather(1, text[rows, None])[:, 0].double())

    def figures(self) -> dict[str, Any]:
        kls = torch.cat(self.kls)
        own, reference = (torch.cat(losses) for losses in (self.losses, self.reference_losses))
        return {
            "tokens": len(kls),
            "perplexity": round(float(own.mean().exp()), 4),
            "perplexity_float32": round(float(reference.mean().exp()), 4),
            "kl_mean": float(f"{float(kls.mean()):.3g}"),
            "kl_p50": float(f"{float(kls.quantile(0.5)):.3g}"),
            "kl_p99": float(f"{float(kls.quantile(0.99)):.3g}"),
            "kl_max": float(f"{float(kls.max()):.3g}"),
            "same_likeliest": round(self.same / len(kls), 4),
            "seconds": round(self.seconds, 1),
        }


class Reference:
    """transformers in float32, with weights that are given."""

    def __init__(self, folder: Path) -> None:
        config = AutoConfig.from_pretrained(folder)
        kind: Any = AutoModelForCausalLM
        self._model = kind.from_config(config, dtype=torch.float32).eval()

    def use(self, weights: dict[str, NDArray[np.float32]]) -> None:
        """Mutates: the model."""
        with torch.no_grad():
            given = {name: torch.from_numpy(values) for name, values in weights.items()}
            left = self._model.load_state_dict(given, strict=False)
        assert set(left.missing_keys) <= {"lm_head.weight"} and not left.unexpected_keys

    def logits(self, tokens: Tokens) -> Tensor:
        with torch.inference_mode():
            found: Tensor = self._model(torch.from_numpy(tokens)[None].long()).logits[0, :-1]
        return found


def logits_of(target: Target, tokens: Tokens) -> Tensor:
    """After every token but the last."""
    kv, text = target.open(), tokens[:-1]
    part = Part.of(
        target, kv, text, needs_logits=False, prefill=len(text), prefill_logits=len(text)
    )
    return target.forward([part]).logits.float()


def compare(
    reference: Reference, ways: dict[str, tuple[Target, int]], pieces: list[Tokens]
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Each way on so many of the pieces."""
    tallies = {name: Tally() for name in ways}
    for number, tokens in enumerate(pieces):
        if all(number >= count for _, count in ways.values()):
            break
        wanted, text = reference.logits(tokens), torch.from_numpy(tokens[1:]).long()
        for name, (target, count) in ways.items():
            if number < count:
                began = time.perf_counter()
                found = logits_of(target, tokens)
                tallies[name].seconds += time.perf_counter() - began
                tallies[name].add(wanted, found, text)
    return ((name, tally.figures()) for name, tally in tallies.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--text", type=Path, required=True, help="a file of plain text")
    parser.add_argument("--source", default="", help="what the text is, for the record")
    parser.add_argument("--tokens", type=int, default=20_000, help="for the model as stored")
    parser.add_argument("--others", type=int, default=1024, help="for each other row")
    parser.add_argument("--formats", nargs="*", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--json", action="store_true", help="print the record")
    record.add_option(parser)
    options = parser.parse_args()
    began = time.process_time()
    stored = find_stored(DEFAULT_MODEL)
    assert stored.plan is not None
    text = options.text.read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(stored.folder / "tokenizer.json"))
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids[: options.tokens], np.int32)
    if len(ids) < options.tokens:
        parser.error(f"the text has {len(ids)} tokens; expected {options.tokens}")
    pieces = [ids[at : at + PIECE] for at in range(0, len(ids) - 2, PIECE)]
    few = -(-min(options.others, len(ids)) // PIECE)
    threads = torch.get_num_threads()

    def target_of(decoder: Any) -> StoredTarget:
        return StoredTarget(decoder, context=PIECE, threads=threads)

    rows: list[dict[str, Any]] = []

    def keep(found: Iterable[tuple[str, dict[str, Any]]]) -> None:
        for name, figures in found:
            rows.append({"weights": name, **figures})
            print(json.dumps(rows[-1]), flush=True)

    weights = widened(stored)
    reference = Reference(stored.folder)
    reference.use(weights)
    ways: dict[str, tuple[Target, int]] = {
        "as stored": (target_of(decoder_of(stored)), len(pieces)),
        "bfloat16": (load(find(DEFAULT_MODEL), dtype="bfloat16"), few),
    }
    keep(compare(reference, ways, pieces))
    ways.clear()
    config = read_config(
        {**stored.plan.config, "tie_word_embeddings": "lm_head.weight" not in weights}, "the model"
    )
    for name in options.formats:
        blocks = Requantised(weights, name)
        decoder = make_decoder(config, blocks)
        reference.use(blocks.widened)
        keep(compare(reference, {name: (target_of(decoder), few)}, pieces))
    figures = {
        "model": DEFAULT_MODEL,
        "stored_as": sorted({one.tensor.kind.name for one in stored.tensors.values()}),
        "text": {
            "source": options.source,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "tokens": len(ids),
            "piece": PIECE,
        },
        "threads": threads,
        "processor_seconds": round(time.process_time() - began),
        "rows": rows,
    }
    path = record.write("formats", figures, options.record)
    print(path.read_text() if options.json else f"written to {path}")


if __name__ == "__main__":
    main()
