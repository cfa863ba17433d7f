"""The engines of processors.py, each a process of its own: python processors_engines.py ENGINE FD.

foresay       without speculation and with the default are two engines over one model, which answer
              a prompt step by step in turns: so both share the machine's phases
llama         `processors_llama.py`
transformers  as it comes: sdpa, the default cache; `generate`, one answer at a time and with its
              prompt lookup, and continuous batching
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import numpy as np

from processors_llama import Llama
from workers import Loading, Timer, give_back, resident, serve, timed_rows

BATCH = 512  # tokens of a step of transformers' continuous batching
PAGE = 256  # tokens of a page of it, its default


class Foresay:
    """One model in memory, and an engine with and without speculation."""

    def load(self, model: str, dtype: str, threads: int) -> dict[str, Any]:
        """As a user does it: LLM(model), then a first answer of one token."""
        loading = Loading()
        import torch

        from foresay import LLM, SamplingParams
        from foresay._core import cpu_level

        loading.imported()
        torch.set_num_threads(threads)
        self._params = SamplingParams
        self._llm = LLM(model, dtype=dtype)  # type: ignore[arg-type]
        loading.reached("model")
        self._llm.generate([[1, 2, 3]], self._greedy(1))
        target: Any = self._llm.target
        return loading.done(level=cpu_level(), exact=target.exact, dtype=str(target.dtype))

    def drop(self) -> int:
        """The bytes of this process without the model: what it needs for the tokenizer, and for
        what was imported with the model, stays."""
        del self._llm.target, self._llm.engine
        give_back()
        return resident()[0]

    def forget(self) -> None:
        """Fresh engines, which remember no prompt and no answer: a round begins."""
        self._engines = {"none": self._fresh("none"), "default": self._fresh("default")}

    def _fresh(self, name: str) -> Any:
        llm = self._llm.beside(None, "none") if name == "none" else self._llm.beside()
        llm.generate([[1, 2, 3, 4, 5]] * 2, self._greedy(4))
        return llm

    def encode(self, texts: list[str], chat: bool) -> list[list[int]]:
        return [self._llm.encode(text, chat=chat).tolist() for text in texts]

    def lengths(self, prompts: list[list[int]], most: int) -> list[int]:
        """How long the answers are, where they end by themselves."""
        llm = self._llm.beside(None, "none")
        params = self._params(temperature=0, max_tokens=most)
        return [len(result.token_ids) for result in llm.generate(prompts, params)]

    def prefill(self, tokens: list[int]) -> dict[str, Any]:
        """A first token. The prompt must not begin as an earlier one, whose prefix is stored."""
        timer = Timer()
        (result,) = self._engines["none"].generate([tokens], self._greedy(1))
        return {**timer.read(), "tokens": len(tokens) - result.stats.shared_tokens}

    def answer(self, tokens: list[int], count: int, engines: list[str]) -> dict[str, Any]:
        """Exactly so many tokens of each engine, one step of each after the other."""
        streams: dict[str, Any] = {}
        took: dict[str, list[float]] = {}
        found: dict[str, Any] = {}
        for name in engines:
            begin = time.perf_counter()
            streams[name] = self._engines[name].stream([tokens], self._greedy(count))
            took[name] = [time.perf_counter() - begin]
        names = list(streams)
        while names:
            for name in list(names):
                begin = time.perf_counter()
                chunk = next(streams[name])
                took[name].append(time.perf_counter() - begin)
                if chunk.result is not None:
                    names.remove(name)
                    found[name] = _described(chunk.result, took[name])
            names = [*names[1:], *names[:1]]  # who begins changes from step to step
        return found

    def batch(self, prompts: list[list[int]], counts: list[int], engine: str) -> dict[str, Any]:
        """All prompts at once, so many tokens of each."""
        llm, timer = self._fresh(engine), Timer()
        results = llm.generate(prompts, [self._greedy(count) for count in counts])
        took = timer.read()
        for result in results:
            if result.error is not None:
                raise result.error
        return {**took, "token_ids": [result.token_ids for result in results]}

    def rows(self, tokens: list[int], sizes: list[int], repeats: int) -> dict[str, list[float]]:
        """Steps after these tokens: the last of them and a chain of drafted ones."""
        from foresay import Draft
        from foresay.models.target import SequenceInput

        target, text = self._llm.target, np.array(tokens, np.int32)
        kv = target.open()
        prompt = SequenceInput.of(target, kv, text[:-1])
        target.forward([prompt])
        prompt.keep()

        def step(size: int) -> float:
            draft = Draft.chain(np.repeat(text[-1:], size - 1))
            begin = time.perf_counter()
            target.forward([SequenceInput.of(target, kv, text[-1:], draft)])
            return time.perf_counter() - begin

        return timed_rows(step, sizes, repeats)

    def _greedy(self, tokens: int) -> Any:
        return self._params(temperature=0, max_tokens=tokens, ignore_eos=True)


def _described(result: Any, took: list[float]) -> dict[str, Any]:
    if result.error is not None:
        raise result.error
    return {
        "seconds": sum(took),
        "first_seconds": sum(took[:2]),
        "token_ids": result.token_ids,
        "steps": result.stats.steps,
        "drafted": result.stats.drafted,
        "accepted": result.stats.accepted,
    }


class Transformers:
    """It never sees an end of text: all its answers have as many tokens as are asked for."""

    def load(self, folder: str, dtype: str, threads: int) -> dict[str, Any]:
        loading = Loading()
        import torch
        import transformers

        loading.imported()
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
        torch.set_num_threads(threads)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        ).eval()
        self._model.generation_config = transformers.GenerationConfig(
            do_sample=False, pad_token_id=0
        )
        self._model.config.eos_token_id = None
        loading.reached("model")
        self.answer([1, 2, 3], 1)
        return loading.done(dtype=dtype)

    def answer(self, tokens: list[int], count: int, lookup: int = 0) -> dict[str, Any]:
        """Exactly so many tokens, the likeliest; `lookup`: drafted tokens at most."""
        import torch

        ids, timer = torch.tensor([tokens]), Timer()
        how = {"prompt_lookup_num_tokens": lookup} if lookup else {}
        mask = torch.ones_like(ids)
        out = self._model.generate(ids, attention_mask=mask, max_new_tokens=count, **how)
        return {**timer.read(), "token_ids": _exactly(count, out[0, len(tokens) :].tolist())}

    def batch(self, prompts: list[list[int]], counts: list[int]) -> dict[str, Any]:
        """Continuous batching; making pages and threads is not timed. Its pages are as many as the
        prompts need, so that nobody waits for memory."""
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        pages = sum(-(-(len(p) + n) // PAGE) for p, n in zip(prompts, counts, strict=True)) + 1
        manager = self._model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=pages, max_batch_tokens=BATCH, allow_block_sharing=False
            ),
        )
        manager.start()

        def wait_for(asked: list[tuple[list[int], int]]) -> list[list[int]]:
            names = [manager.add_request(p, max_new_tokens=count) for p, count in asked]
            done: dict[str, Any] = {}
            while len(done) < len(names):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    done[result.request_id] = result
                elif result is None and not manager.is_running():
                    raise RuntimeError("transformers' continuous batching has stopped")
            texts = zip(names, asked, strict=True)
            return [_exactly(count, done[name].generated_tokens) for name, (_, count) in texts]

        try:
            wait_for([([1, 2, 3], 2)])
            timer = Timer()
            texts = wait_for([*zip(prompts, counts, strict=True)])
            return {**timer.read(), "token_ids": texts}
        finally:
            manager.stop(block=True, timeout=10)


def _exactly(count: int, written: list[int]) -> list[int]:
    if len(written) != count:
        raise RuntimeError(f"{len(written)} tokens were written; expected {count}")
    return written


ENGINES: dict[str, Any] = {"foresay": Foresay, "llama": Llama, "transformers": Transformers}

if __name__ == "__main__":
    engine = ENGINES[sys.argv[1]]()
    serve({name: getattr(engine, name) for name in dir(engine) if not name.startswith("_")})
