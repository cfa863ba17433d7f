"""transformers' worker of processors.py: `generate` as it comes, one answer at a time."""

from __future__ import annotations

import sys
from typing import Any

from processors_worker import Timer, memory, serve


class Transformers:
    """The same weights, widened: sdpa, the default cache, no end of text."""

    def load(self, folder: str, dtype: str, threads: int) -> dict[str, Any]:
        imports = Timer()
        import torch
        import transformers

        took = {"imports": imports.read()}
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        before, timer = memory(), Timer()
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        ).eval()
        self._model.generation_config = transformers.GenerationConfig(
            do_sample=False, pad_token_id=0
        )
        self._model.config.eos_token_id = None
        took["model"] = timer.read()
        self.answer([1, 2, 3], 1)
        took["first_token"] = timer.read()
        after = memory()
        return {
            "took": took,
            "memory": after,
            "grown_bytes": after["bytes"] - before["bytes"],
            "dtype": dtype,
        }

    def answer(self, tokens: list[int], count: int) -> dict[str, Any]:
        """Exactly so many tokens, the likeliest."""
        import torch

        ids = torch.tensor([tokens])
        timer = Timer()
        out = self._model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count)
        took = timer.read()
        written = out[0, len(tokens) :].tolist()
        if len(written) != count:
            raise RuntimeError(f"{len(written)} tokens were written; expected {count}")
        return {**took, "token_ids": written}


def main() -> None:
    transformers = Transformers()
    serve({name: getattr(transformers, name) for name in ("load", "answer")})


if __name__ == "__main__":
    sys.exit(main())
