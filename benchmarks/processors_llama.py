"""llama.cpp of processors.py: the C interface, with nothing of Python between two steps but the
choice of the likeliest token. Its prompt lookup is llama-cpp-python's, in the same loop:
llama-cpp-python's own loop copies logits row by row and takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from workers import Loading, Timer, timed_rows

Row = tuple[int, int, int, bool]  # token, position, sequence, whether its logits are wanted
BATCH = 512  # tokens of a step


class Context:
    """llama.cpp's KV cache of some sequences, and what is stored in it."""

    def __init__(self, lib: Any, model: Any, tokens: int, sequences: int, threads: int) -> None:
        self._lib = lib
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = tokens, sequences
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self._inner = lib.llama_init_from_model(model, params)
        if not self._inner:
            raise MemoryError(f"no context of {tokens} tokens could be made")
        self._memory = lib.llama_get_memory(self._inner)
        self._batch = lib.llama_batch_init(BATCH, 0, 1)
        self._width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self.texts: list[list[int]] = [[] for _ in range(sequences)]

    def step(self, rows: Sequence[Row]) -> None:
        """One llama_decode of at most BATCH rows."""
        batch = self._batch
        for at, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[at], batch.pos[at], batch.logits[at] = token, position, wanted
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = sequence
        batch.n_tokens = len(rows)
        status = self._lib.llama_decode(self._inner, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status} for {len(rows)} rows; expected 0")
        for token, _, sequence, _ in rows:
            self.texts[sequence].append(token)

    def likeliest(self, row: int) -> int:
        """The token with the highest logit after that row of the last step."""
        logits = self._lib.llama_get_logits_ith(self._inner, row)
        return int(np.ctypeslib.as_array(logits, (self._width,)).argmax())

    def cut(self, sequence: int, length: int) -> None:
        """Keep the first tokens of a sequence only."""
        if len(self.texts[sequence]) > length:
            self._lib.llama_memory_seq_rm(self._memory, sequence, length, -1)
            del self.texts[sequence][length:]

    def prefill(self, prompt: Sequence[int]) -> int:
        """Store a prompt as sequence 0, as much as is not stored yet, and choose what follows."""
        pairs = zip(self.texts[0], prompt[:-1], strict=False)
        self.cut(0, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
        rows = 0
        while (stored := len(self.texts[0])) < len(prompt):
            piece = prompt[stored : stored + BATCH]
            rows = len(piece)
            last = len(prompt) - 1
            self.step([(t, p, 0, p == last) for p, t in enumerate(piece, stored)])
        return self.likeliest(rows - 1)


class Llama:
    """The model, a context for one request, and one for a batch of requests."""

    def load(self, path: str, threads: int, context: int, requests: int) -> dict[str, Any]:
        loading = Loading()
        import llama_cpp as lib

        # The library calls it as long as it lives.
        self._quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self._quiet, None)
        loading.imported()
        lib.llama_backend_init()
        self._lib, self._threads = lib, threads
        self._model = lib.llama_model_load_from_file(
            path.encode(), lib.llama_model_default_params()
        )
        if not self._model:
            raise OSError(f"llama.cpp cannot load '{path}'")
        self._one = Context(lib, self._model, context, 1, threads)
        loading.reached("model")
        self._one.prefill([1, 2, 3])
        self._size, self._many = (context, requests), None
        return loading.done(system=lib.llama_print_system_info().decode().strip())

    def forget(self) -> None:
        """Nothing is stored any more: a round begins."""
        self._one.cut(0, 0)

    def keep(self, tokens: list[int]) -> None:
        """These tokens are stored, and nothing else."""
        if tokens:
            self._one.prefill(tokens)
        self._one.cut(0, len(tokens))

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        """The tokens of texts, special tokens not added and not read."""
        lib, vocabulary = self._lib, self._lib.llama_model_get_vocab(self._model)
        found = []
        for text in texts:
            raw = text.encode()
            out = (lib.llama_token * (len(raw) + 8))()
            count = lib.llama_tokenize(vocabulary, raw, len(raw), out, len(out), False, False)
            found.append(list(out[: max(0, count)]))
        return found

    def prefill(self, tokens: list[int]) -> dict[str, Any]:
        self.forget()
        timer = Timer()
        self._one.prefill(tokens)
        return {**timer.read(), "tokens": len(tokens)}

    def answer(self, tokens: list[int], count: int, lookup: int = 0) -> dict[str, Any]:
        """Exactly so many tokens, the likeliest; `lookup`: drafted tokens at most."""
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        drafter = LlamaPromptLookupDecoding(num_pred_tokens=lookup)
        one, timer = self._one, Timer()
        written = [one.prefill(tokens)]
        first = timer.read()
        text = np.array([*tokens, *written, *[0] * count], np.intc)
        steps = drafted = 0
        while len(written) < count:
            stored, draft = len(one.texts[0]), []
            if lookup:
                draft = drafter(text[: stored + 1])[: count - len(written) - 1].tolist()
            fed = [written[-1], *draft]
            one.step([(t, p, 0, True) for p, t in enumerate(fed, stored)])
            steps, drafted = steps + 1, drafted + len(draft)
            for row in range(len(fed)):
                written.append(one.likeliest(row))
                text[stored + 1 + row] = written[-1]
                if row < len(draft) and written[-1] != draft[row]:
                    break
            one.cut(0, len(tokens) + len(written) - 1)
        counts = {"token_ids": written, "steps": steps, "drafted": drafted}
        return {**timer.read(), "first_seconds": first["seconds"], **counts}

    def batch(self, prompts: list[list[int]], counts: list[int]) -> dict[str, Any]:
        """All prompts at once, so many tokens of each; who is done leaves the batch."""
        context, requests = self._size
        many = self._many or Context(
            self._lib, self._model, context * requests, requests, self._threads
        )
        self._many = many
        for sequence in range(len(many.texts)):
            many.cut(sequence, 0)
        timer, written = Timer(), [list[int]() for _ in prompts]

        def step(rows: Sequence[Row]) -> None:
            many.step(rows)
            for at, (_, _, sequence, wanted) in enumerate(rows):
                if wanted:
                    written[sequence].append(many.likeliest(at))

        rows: list[Row] = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        for begin in range(0, len(rows), BATCH):
            step(rows[begin : begin + BATCH])
        while running := [i for i, text in enumerate(written) if len(text) < counts[i]]:
            step([(written[i][-1], len(many.texts[i]), i, True) for i in running])
        return {**timer.read(), "token_ids": written}

    def rows(self, tokens: list[int], sizes: list[int], repeats: int) -> dict[str, list[float]]:
        one = self._one
        one.prefill(tokens)
        one.cut(0, len(tokens) - 1)

        def step(size: int) -> float:
            fed = [(t, p, 0, True) for p, t in enumerate(tokens[-1:] * size, len(tokens) - 1)]
            begin = time.perf_counter()
            one.step(fed)
            one.likeliest(size - 1)
            took = time.perf_counter() - begin
            one.cut(0, len(tokens) - 1)
            return took

        return timed_rows(step, sizes, repeats)
