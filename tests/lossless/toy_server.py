"""A server of a toy model over real HTTP, which may be wrong in many ways."""

from __future__ import annotations

import json
import math
import random
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SO_LINGER, SOL_SOCKET
from threading import Thread
from typing import Any

WORDS = ("sun", "sea", "sky", "salt")
LAW = (0.45, 0.3, 0.15, 0.1)  # of the words that follow a word, in an order that it decides
MODELS = b'{"data": [{"id": "toy"}, {"id": "other"}]}'
ASK = ("the sea", "a sky", "salt")


@dataclass(frozen=True)
class Toy:
    """A Markov model over words, and what is wrong with the server that runs it."""

    turn: int = -1  # the step at which greedy takes the second word
    bias: float = 0.0  # moved from the likeliest word to the second
    gap: float | None = None  # the margin it claims, where not the probabilities'
    logprobs: str = "given"  # or "absent", "refused"
    answers: str = "many"  # or "one" whatever n says, "copies" of one
    reply: bytes | None = None  # instead of all that
    status: int = 200
    delay: float = 0.0

    def next_words(self, text: str) -> dict[str, float]:
        last = text.split()[-1]
        first = WORDS.index(last) if last in WORDS else 0
        chances = [LAW[0] - self.bias, LAW[1] + self.bias, *LAW[2:]]
        return {WORDS[(first + i) % 4]: chance for i, chance in enumerate(chances)}

    def words(self, prompt: str, steps: int, temperature: float, seed: int) -> list[str]:
        rng, words = random.Random(seed), [prompt]
        for step in range(steps):
            probs = self.next_words(words[-1])
            if temperature:
                words.append(rng.choices(list(probs), list(probs.values()))[0])
            else:
                words.append(sorted(probs, key=probs.__getitem__)[-2 if step == self.turn else -1])
        return words[1:]

    def choice(self, body: dict[str, Any], seed: int) -> dict[str, Any]:
        words = self.words(body["prompt"], body["max_tokens"], body["temperature"], seed)
        tokens = [" " + word for word in words]
        choice: dict[str, Any] = {"text": "".join(tokens), "logprobs": None}
        if body.get("logprobs") and self.logprobs == "given":
            rows = []
            for before in [body["prompt"], *words[:-1]]:
                one, two = sorted(self.next_words(before).items(), key=lambda item: -item[1])[:2]
                gap = math.log(one[1] / two[1]) if self.gap is None else self.gap
                rows.append({" " + one[0]: -1.0, " " + two[0]: -1.0 - gap})
            choice["logprobs"] = {"tokens": tokens, "top_logprobs": rows}
        return choice

    def respond(self, body: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(self.delay)
        if self.reply is not None:
            return self.status, self.reply
        if body.get("logprobs") and self.logprobs == "refused":
            return 400, b"logprobs are not supported"
        wanted = range(1 if self.answers == "one" else body.get("n", 1))
        step = 0 if self.answers == "copies" else 1  # vLLM's way
        seeds = [body.get("seed", 0) + step * i for i in wanted]
        return 200, json.dumps({"choices": [self.choice(body, s) for s in seeds]}).encode()


class Loopback(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing is said of connections that were reset."""


@contextmanager
def serving(toy: Toy, seen: list[Any] | None = None, resets: int = 0) -> Iterator[str]:
    """Its URL. What it is asked is noted in `seen`; so many connections are reset first."""
    remaining = [None] * resets

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/v1/models"
            self.answer(None, 200 if found else 404, MODELS if found else b"no such page")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(body, *toy.respond(body))

        def answer(self, body: Any, status: int, reply: bytes) -> None:
            if seen is not None:
                seen.append((self.path, self.headers.get("Authorization"), body))
            if remaining:
                remaining.pop()
                self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return
            with suppress(OSError):  # a client that did not wait
                self.send_response(status)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with Loopback(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
