"""Is what server B answers the same as what server A answers?

For two OpenAI-compatible servers of one model, say one with speculation and one without:

    a, b = Server("http://127.0.0.1:8000"), Server("http://127.0.0.1:8001")
    print(greedy_equality(a, b))
    print(sampled_equality(a, b))

Greedy answers are compared letter by letter, sampled ones by their distribution, from nothing but
the texts; log-probabilities are used where a server gives them. A server compared with itself shows
what noise of its own it has, and nothing else; `two_servers` refuses that.

Functions mutate nothing, results are valid for ever, and the GIL is released while servers are
waited for. All raise ServerError, whose sentence names the server, the status and the beginning of
its answer, and what `progress` raises: it is called in the caller's thread with the number of
questions that have been answered since it was called last.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import count
from typing import Any, TypeAlias, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np
from scipy.stats import chi2  # type: ignore[import-untyped]

from foresay.errors import InputError, ServerError
from foresay.lossless.answers import (
    POWER,
    Comparison,
    Difference,
    GreedyResult,
    SampledResult,
)
from foresay.lossless.gtest import FILLED, RERUN, detectable, permutation, two_sample

# Code, data, lists, translations, stories, sums.
_PROMPTS = (
    "def fibonacci(n):|#include <stdio.h>\n\nint main(|SELECT name, email FROM users WHERE|"
    'import numpy as|for (let i = 0; i <|{"name": "Ada", "born": 1815, "languages": [|'
    '{"type": "object", "properties": {|<ul>\n  <li>Apples</li>\n  <li>|'
    "Shopping list:\n1. Bread\n2. Milk\n3.|Monday, Tuesday, Wednesday,|The primary colours are|"
    "English: Where is the station?\nFrench:|English: Good morning.\nGerman:|"
    "Es war einmal ein König, der|Once upon a time, in a village by the sea,|"
    "The old man opened the letter and|Dear Sir or Madam,\n\nI am writing to|"
    "Question: What is 17 times 23?\nAnswer:|1, 1, 2, 3, 5, 8, 13,|Water boils at"
)
PROMPTS = tuple(_PROMPTS.split("|"))
RETRIES = 2  # of a connection that is reset
_PERMUTATIONS = 10_000
_RESET = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)

Progress: TypeAlias = Callable[[int], None]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; what a server does not give is empty."""

    text: str
    tokens: tuple[object, ...] = ()  # ids or strings, whichever the server gives
    margins: tuple[float | None, ...] = ()  # between the two likeliest tokens, in nats
    pieces: tuple[str, ...] = ()  # the tokens as strings, where the server gives them
    likeliest: tuple[tuple[str, ...], ...] = ()  # the two likeliest at each step, or more if equal


@dataclass(frozen=True, slots=True)
class Server:
    """An OpenAI-compatible server, by its URL with or without /v1; the first model it names.

    `extra` is sent with every request, for servers whose defaults differ: {"top_k": -1}. A timeout
    is the time without a byte. Raises: InputError for what is no URL of a server or no key for a
    header; ServerError if the server must be asked for its model and does not say.
    """

    url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    extra: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _base(self.url))
        if self.api_key and not re.fullmatch(r"[\x20-\x7e\xa0-\xff]+", self.api_key):
            raise InputError(
                "the API key cannot be sent in a header; printable latin-1 characters can"
            )
        if self.model is None:
            model = self._ask("/models", None, _first_model, "the name of a model")
            object.__setattr__(self, "model", model)

    def complete(self, prompt: str, **fields: object) -> list[Answer]:
        """The answers to a prompt; `fields` are those of /v1/completions. Raises: ServerError."""
        body = {"model": self.model, "prompt": prompt, "top_p": 1.0, **self.extra, **fields}
        return self._ask("/completions", body, _answers, "choices that have a text")

    def _ask(self, path: str, body: object, read: Callable[[Any], _T], needs: str) -> _T:
        where = self.url + path
        data = None if body is None else json.dumps(body).encode()
        request = Request(where, data, {"Content-Type": "application/json"})
        if self.api_key:  # unredirected: another server that this one names must not learn it
            request.add_unredirected_header("Authorization", f"Bearer {self.api_key}")
        # A proxy that the environment names leads outside, where our own machine is not.
        local = urlsplit(where).hostname in ("localhost", "127.0.0.1", "::1")
        opener = build_opener(ProxyHandler({})) if local else build_opener()
        for attempt in count():
            try:
                with opener.open(request, timeout=self.timeout) as response:
                    status, reply = response.status, response.read()
                break
            except HTTPError as error:
                with error:
                    said = f"{where} answered with status {error.code}: {_beginning(error.read())}"
                raise ServerError(said) from error
            except (OSError, HTTPException, UnicodeError) as error:
                reason = error.reason if isinstance(error, URLError) else error
                if attempt < RETRIES and isinstance(reason, _RESET):
                    time.sleep(0.1 * 2**attempt)
                    continue
                said = f"{where} gave no answer, with a timeout of {self.timeout:g} s: {reason!r}"
                raise ServerError(said) from error
        try:
            return read(json.loads(reply))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            said = f"{where} answered with status {status} but no JSON with {needs}: "
            raise ServerError(said + _beginning(reply)) from error


def two_servers(
    urls: tuple[str, str], model: str | None = None, api_key: str | None = None
) -> tuple[Server, Server]:
    """Two servers of one model, which are not the same one. Raises: InputError, ServerError."""
    one, other = map(_place, urls)
    if one == other:
        raise InputError(f"both servers are {_base(urls[0])}; expected two different URLs")
    a, b = (Server(url, model, api_key) for url in urls)
    return a, b


def greedy_equality(
    a: Server,
    b: Server,
    prompts: Sequence[str] = PROMPTS,
    max_tokens: int = 64,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> GreedyResult:
    """Do both servers give the same answers at temperature 0?

    One question at a time unless `workers` says more: what shares a batch can break ties.

    Raises: InputError.
    """
    _refuse_lengths(max_tokens)

    def ask(server: Server, prompt: str) -> Answer:
        fields = {"max_tokens": max_tokens, "temperature": 0}
        try:
            return server.complete(prompt, logprobs=2, **fields)[0]
        except ServerError as error:
            if not isinstance(error.__cause__, HTTPError):
                raise
        return server.complete(prompt, **fields)[0]  # it refuses logprobs, or else everything

    answers = _all(ask, [(s, prompt) for prompt in prompts for s in (a, b)], workers, progress)
    pairs = enumerate(zip(answers[::2], answers[1::2], strict=True))
    different = tuple(_difference(i, prompts[i], x, y) for i, (x, y) in pairs if x.text != y.text)
    return GreedyResult(len(prompts), different)


def sampled_equality(
    a: Server,
    b: Server,
    prompts: Sequence[str] = PROMPTS,
    n: int = 256,
    max_tokens: int = 4,
    temperature: float = 1.0,
    *,
    alpha: float = 1e-3,
    seed: int = 0,
    per_request: int = 8,
    workers: int = 16,
    progress: Progress | None = None,
) -> SampledResult:
    """Have the sampled answers of both servers one distribution? Different if two tests say so.

    n answers of each server to each prompt (rounded up), at most `per_request` at a time, are
    compared by permutation; if that rejects at alpha, 4 n on fresh seeds decide.

    Raises: InputError.
    """
    _refuse_lengths(max_tokens)
    if min(n, per_request, len(prompts)) < 1 or temperature <= 0 or alpha * _PERMUTATIONS < 1:
        raise InputError(
            f"n {n}, per_request {per_request}, temperature {temperature}, alpha {alpha} and "
            f"{len(prompts)} prompts are not valid: none is 0 or less, alpha is at least 1e-4"
        )
    per_request = min(per_request, max(1, n // 16))  # requests are permuted: too few show nothing
    # No seed is used twice. Between the servers, because a server that keeps its promise gives the
    # same answer to the same seed: two samples, but not independent ones, which no test here knows
    # how to weigh. Between requests, because vLLM samples answer i of a request with seed + i.
    seeds = count(seed, per_request)

    def ask(server: Server, prompt: str, first: int) -> list[str]:
        fields = {"max_tokens": max_tokens, "temperature": temperature}
        texts: list[str] = []
        while missing := per_request - len(texts):  # some servers give one, whatever n says
            answers = server.complete(prompt, n=missing, seed=first + len(texts), **fields)
            texts += [answer.text for answer in answers[:missing]]
        return texts

    requests = -(-n // per_request)
    tests: list[Comparison] = []
    for size in (requests, RERUN * requests):
        # In turn, so that whatever changes with time changes for both.
        jobs = [(s, p, next(seeds)) for p in prompts for _ in range(size) for s in (a, b)]
        sampled = _all(ask, jobs, workers, progress)
        by_prompt = [sampled[i : i + 2 * size] for i in range(0, len(jobs), 2 * size)]
        for server, texts in ((a, [d[::2] for d in by_prompt]), (b, [d[1::2] for d in by_prompt])):
            _refuse_copies(server, texts)
        tests.append(_compared(by_prompt))
        if tests[-1].p_value > alpha:
            break
    equal, first, n = tests[-1].p_value > alpha, tests[0], requests * per_request
    # Two samples of n are worth n / 2 against a known distribution; the prompts' statistics add up.
    each, alone = (
        detectable(many * n / 2, first.df + 1, alpha, POWER) if first.df else None
        for many in (first.filled, 1)
    )
    return SampledResult(equal, len(prompts), n, tuple(tests), alpha**2, each, alone)


def _base(url: str) -> str:
    """The URL that all paths of the interface are below."""
    versioned = re.search(r"/v\d", _parts(url).path)
    return url.rstrip("/") + ("" if versioned else "/v1")


def _place(url: str) -> tuple[object, ...]:
    """The same for all ways to write one URL."""
    parts = _parts(_base(url))
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return parts.scheme, parts.hostname, port, parts.path, parts.query


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that are not closed, a port that is no number
        valid = False
    if not valid:
        raise InputError(f"{url!r} is no server; expected a URL like http://127.0.0.1:8000/v1")
    return parts


def _refuse_lengths(max_tokens: int) -> None:
    if max_tokens < 1:
        raise InputError(f"max_tokens is {max_tokens}; expected at least 1")


def _compared(prompts: list[list[list[str]]]) -> Comparison:
    """One test of answers [prompt][request][answer], the requests to A and to B in turn."""
    tables, tests, shifts = [], [], []
    for number, requests in enumerate(prompts):
        often = Counter(text for texts in requests for text in texts)
        # Rare answers share the last cell; which are rare is the same however labels are permuted.
        cells = [text for text, times in often.items() if times >= 2 * FILLED]
        column = {text: i for i, text in enumerate(cells)}
        rows = np.zeros((len(requests), len(cells) + 1), np.int64)
        for row, texts in zip(rows, requests, strict=True):
            np.add.at(row, [column.get(text, len(cells)) for text in texts], 1)
        tables.append((rows[::2], rows[1::2]))
        a, b = rows[::2].sum(axis=0), rows[1::2].sum(axis=0)
        tests.append(two_sample(a, b))
        at = int(np.argmax(abs(a - b)))
        shifts.append((number, [*cells, "(rare answers)"][at], int(a[at]), int(b[at])))
    df, filled = sum(test.df for test in tests), sum(test.df > 0 for test in tests)
    chi_square = float(chi2.sf(sum(test.statistic for test in tests), df)) if df else 1.0
    p_value = permutation(tables, permutations=_PERMUTATIONS)
    return Comparison(p_value, chi_square, df, filled, max(shifts, key=lambda s: abs(s[2] - s[3])))


def _refuse_copies(server: Server, prompts: list[list[list[str]]]) -> None:
    """SGLang, made deterministic, gives n copies of one answer: a sample of 1 that looks like n."""
    asked = len(prompts[0][0])
    copies = all(len(set(texts)) == 1 for requests in prompts for texts in requests)
    varied = any(len({texts[0] for texts in requests}) > 1 for requests in prompts)
    if asked > 1 and copies and varied:
        raise ServerError(
            f"{server.url} gives copies of one answer where {asked} samples are asked for; "
            "per_request=1 asks for them one by one"
        )


def _all(
    ask: Callable[..., _T], jobs: list[tuple[Any, ...]], workers: int, progress: Progress | None
) -> list[_T]:
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(ask, *job) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
                if progress is not None:
                    progress(1)
        finally:  # after an error, do not wait for requests that have not begun
            pool.shutdown(wait=False, cancel_futures=True)
    return [future.result() for future in futures]


def _difference(number: int, prompt: str, a: Answer, b: Answer) -> Difference:
    at, margin = _first_unlike(a.text, b.text), None
    if list(map(type, a.tokens[:1])) == list(map(type, b.tokens[:1])):  # both ids, or both strings
        margin = _tie_margin(a, b, _first_unlike(a.tokens, b.tokens))
    around, asked = slice(max(0, at - 20), at + 40), prompt[:30] + "…" * (len(prompt) > 30)
    return Difference(number, at, a.text[around], b.text[around], margin, asked)


def _tie_margin(a: Answer, b: Answer, step: int) -> float | None:
    """The margin, if the two likeliest tokens are what the servers wrote, by all that they say."""
    told = [s for s in (a, b) if s.margins[step : step + 1] not in ((), (None,))]
    wrote = {piece for s in (a, b) for piece in s.pieces[step : step + 1]}
    if not told or len(wrote) < 2 or not all(wrote <= set(s.likeliest[step]) for s in told):
        return None
    margins = [s.margins[step] or 0.0 for s in told]
    # One context, so one margin but for rounding; if the servers disagree, the larger is the news.
    return math.nan if any(map(math.isnan, margins)) else max(margins)


def _first_unlike(a: Sequence[object], b: Sequence[object]) -> int:
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)


def _first_model(reply: Any) -> str:
    return str(reply["data"][0]["id"])


def _answers(reply: Any) -> list[Answer]:
    answers = [_answer(choice) for choice in reply["choices"]]
    if not answers or not all(isinstance(answer.text, str) for answer in answers):
        raise ValueError("no text")
    return answers


def _answer(choice: Any) -> Answer:
    given = choice.get("logprobs")
    given = given if isinstance(given, dict) else {}
    rows = [_ranked(top) for top in given.get("top_logprobs") or ()]
    pieces = tuple(map(str, given.get("tokens") or ()))
    return Answer(
        text=choice["text"],
        tokens=tuple(choice.get("token_ids") or pieces),
        margins=tuple(row[0][1] - row[1][1] if len(row) > 1 else None for row in rows),
        pieces=pieces,
        likeliest=tuple(tuple(token for token, _ in row) for row in rows),
    )


def _ranked(top: object) -> list[tuple[str, float]]:
    """The two likeliest tokens, the likeliest first, and those that are as likely as the second."""
    if not isinstance(top, dict):
        return []
    found = [(token, x) for token, x in top.items() if type(x) in (int, float)]
    # What is no number comes first: its margin is none either, and is not to be overlooked.
    found.sort(key=lambda item: -math.inf if math.isnan(item[1]) else -item[1])
    return [item for i, item in enumerate(found) if i < 2 or item[1] == found[1][1]]


def _beginning(reply: bytes) -> str:
    return repr(reply[:200].decode(errors="replace"))
