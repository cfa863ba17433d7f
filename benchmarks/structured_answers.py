"""Structured answers of whole models: how fast they are, what masks cost, if they are valid."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import jsonschema

import harness
from foresay import LLM, Draft, SamplingParams, StructuredOutputs
from foresay.engine import structured
from foresay.engine.engine import Engine
from foresay.errors import InputError
from foresay.sampling.acceptance import masks
from foresay.structured.matcher import GrammarMatcher
from foresay.structured.tree import CompletedDraft, completed
from structured_documents import Document
from structured_libraries import Schema

Answer = tuple[list[int], str]


def params_of(schema: Any, tokens: int, temperature: float = 0.0, seed: int = 0) -> SamplingParams:
    form = StructuredOutputs(json=schema)
    return SamplingParams(
        max_tokens=tokens, temperature=temperature, seed=seed, structured_outputs=form
    )


# Speed


def decoded(llm: LLM, document: Document, tokens: int) -> dict[str, Any]:
    """Seconds of an answer's steps behind its first token: by the clock, and of processors."""
    prompt = [{"role": "user", "content": document.prompt}]
    ids: list[int] = []
    begun, first = None, 0
    for chunk in llm.stream(prompt, params_of(document.schema, tokens)):
        now = time.perf_counter(), time.process_time()
        if begun is None:
            begun, first = now, len(chunk.token_ids)
        ids += chunk.token_ids
        last = chunk
    assert begun is not None and last.result is not None
    return {
        "ids": ids,
        "finish_reason": last.finish_reason,
        "tokens": len(ids) - first,
        "seconds": now[0] - begun[0],
        "cpu_seconds": now[1] - begun[1],
        "tokens_per_step": last.result.stats.tokens_per_step,
    }


def nothing_forced(llm: LLM, document: Document, tokens: int) -> dict[str, Any]:
    """The same where forms add nothing to the drafts."""

    def its_own(matcher: GrammarMatcher, draft: Draft, most: int) -> CompletedDraft:
        found = completed(matcher, draft, most)
        own = [node for node, number in enumerate(found.own) if number >= 0]
        place = {-1: -1} | {old: new for new, old in enumerate(own)}
        return CompletedDraft(
            [found.tokens[node] for node in own],
            [place[found.parents[node]] for node in own],
            [found.own[node] for node in own],
            [found.forced[node] for node in own],
        )

    with patch.object(structured, "completed", its_own):
        return decoded(llm, document, tokens)


def speed(llm: LLM, documents: Sequence[Document], tokens: int, bound: float) -> dict[str, Any]:
    """The default drafter, and the suffix drafter without the grammar's drafts, against none."""
    plainly, drafting = llm.beside(None, "none"), llm.beside()
    sides: dict[str, Callable[[Document, int], dict[str, Any]]] = {
        "none": partial(decoded, plainly),
        "nothing forced": partial(nothing_forced, llm.beside()),
        "default": partial(decoded, drafting),
    }
    for side in sides.values():  # what is read when it is first used
        side(documents[0], 8)
    runs = []
    for turn, document in enumerate(documents):
        asked = {name: partial(side, document, tokens) for name, side in sides.items()}
        found = harness.take_turns(asked, turn)
        texts = {tuple(one.pop("ids")) for one in found.values()}
        runs.append({"document": document.name, "identical": len(texts) == 1, "sides": found})
        harness.say(f"{document.name}: {ratio_of(found, 'default', 'seconds'):.2f}x")
    bars, summary = [], {}
    for name in list(sides)[1:]:
        for clock in ("seconds", "cpu_seconds"):
            ratios = [ratio_of(run["sides"], name, clock) for run in runs]
            bars.append(
                harness.bar(
                    f"{name} by none, {clock}",
                    statistics.median(ratios),
                    bound if (name, clock) == ("default", "seconds") else None,
                    unit="x",
                    least=round(min(ratios), 4),
                    most=round(max(ratios), 4),
                )
            )
    for name in sides:
        each = [run["sides"][name] for run in runs]
        summary[name] = {
            "tokens_per_second": round(sum(r["tokens"] for r in each) / _sum(each, "seconds"), 2),
            "tokens_per_step": round(statistics.median(r["tokens_per_step"] for r in each), 3),
        }
    identical = all(run["identical"] for run in runs)
    return {"identical": identical, "sides": summary, "bars": bars, "runs": runs}


def ratio_of(sides: dict[str, Any], name: str, clock: str) -> float:
    """How many times as many tokens in the same time as without speculation."""
    rate = {side: one["tokens"] / max(one[clock], 1e-9) for side, one in sides.items()}
    return float(rate[name] / rate["none"])


def _sum(runs: Sequence[dict[str, Any]], key: str) -> float:
    return float(sum(run[key] for run in runs))


# What masks cost


@contextmanager
def forms_timed() -> Iterator[list[float]]:
    """Adds up the seconds that forms take: completing drafts, masks, writing them into the logits,
    and following what was committed."""
    spent, inside = [0.0], [False]

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            if inside[0]:
                return work(*given)
            inside[0] = True
            start = time.perf_counter()
            try:
                return work(*given)
            finally:
                spent[0] += time.perf_counter() - start
                inside[0] = False

        return call

    places = (
        *((structured, name) for name in ("completed", "tree_masks")),
        (masks, "forbid"),
        *((GrammarMatcher, name) for name in ("follow", "advance")),
    )
    with ExitStack() as patched:
        for place, name in places:
            patched.enter_context(patch.object(place, name, timed(getattr(place, name))))
        yield spent


def share(
    llm: LLM, before: Sequence[Document], documents: Sequence[Document], tokens: int
) -> dict[str, Any]:
    """The share of a step that masks and states take, all documents at once. Forms are those that
    other documents were extracted to before: as with a server that knows them."""
    found: dict[str, Any] = {"requests": len(documents)}
    for name, side in (("none", llm.beside(None, "none")), ("default", llm.beside())):
        prompts = [[{"role": "user", "content": one.prompt}] for one in documents]
        params = [params_of(one.schema, tokens) for one in documents]
        side.generate(
            [one.prompt for one in before], [params_of(one.schema, tokens) for one in before]
        )
        steps: list[float] = []
        work = Engine.step

        def timed(engine: Engine, work: Any = work, steps: list[float] = steps) -> Any:
            start = time.perf_counter()
            ended = work(engine)
            steps.append(time.perf_counter() - start)
            return ended

        with forms_timed() as spent, patch.object(Engine, "step", timed):
            side.generate(prompts, params)
        part = spent[0] / sum(steps)
        found[name] = {
            "steps": len(steps),
            "step_ms": round(1e3 * sum(steps) / len(steps), 3),
            "forms_ms": round(1e3 * spent[0] / len(steps), 3),
            "share": round(part, 4),
        }
    found["bars"] = [
        harness.bar(f"masks and state, {name}", found[name]["share"], 0.05, at_most=True)
        for name in ("none", "default")
    ]
    return found


# Validity


def answered(llm: LLM, asked: Sequence[tuple[Any, SamplingParams]]) -> list[Any]:
    """Answers to the same question, each to its own form; 32 at once."""
    results: list[Any] = []
    for at in range(0, len(asked), 32):
        part = asked[at : at + 32]
        prompts = [[{"role": "user", "content": text}] for text, _ in part]
        results += llm.generate(prompts, [params for _, params in part])
    return results


def problem(schema: Any, text: str) -> str:
    """Why a finished answer is not what the schema asks for; nothing if it is."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    checker = kind.FORMAT_CHECKER
    try:
        errors = list(kind(schema, format_checker=checker).iter_errors(value))
    except Exception as error:  # of the schema: what the validator cannot do says nothing
        return f"not judged: {type(error).__name__}"
    return errors[0].message[:200] if errors else ""


def validity(llm: LLM, schemas: Sequence[Schema], tokens: int, count: int) -> dict[str, Any]:
    """`count` schemas that the library supports: with and without speculation, temperature 0 and 1.
    Every answer that has ended has to be valid, and all texts have to be the same."""
    used: list[Schema] = []
    refused = 0
    for schema in schemas:
        if len(used) == count:
            break
        try:
            llm.grammars.compile(StructuredOutputs(json=schema.text))
            used.append(schema)
        except InputError:
            refused += 1
    plain, drafted = llm.beside(None, "none"), llm.beside()
    found: dict[str, Any] = {"schemas": len(used), "refused": refused, "temperatures": {}}
    for temperature in (0.0, 1.0):
        asked = [
            (f"Write an example of a value of this JSON schema: {one.text[:600]}", params)
            for at, one in enumerate(used)
            for params in [params_of(one.text, tokens, temperature, seed=at)]
        ]
        sides = [answered(side, asked) for side in (plain, drafted)]
        invalid, unjudged, finished, different, failed = [], 0, 0, 0, []
        for schema, a, b in zip(used, *sides, strict=True):
            different += a.token_ids != b.token_ids or a.finish_reason != b.finish_reason
            if "error" in (a.finish_reason, b.finish_reason):
                failed.append({"schema": schema.name, "said": str(a.error or b.error)[:200]})
            if a.finish_reason != "stop":
                continue
            finished += 1
            said = problem(json.loads(schema.text), a.text)
            unjudged += said.startswith("not judged")
            if said and not said.startswith("not judged"):
                invalid.append({"schema": schema.name, "said": said, "answer": a.text[:300]})
        stats = [result.stats for result in sides[1]]
        steps = max(sum(one.steps for one in stats), 1)
        found["temperatures"][str(temperature)] = {
            "finished": finished,
            "invalid": invalid,
            "not_judged": unjudged,
            "failed": failed,
            "different_with_speculation": different,
            "tokens_per_step": round(sum(one.tokens for one in stats) / steps, 3),
        }
        harness.say(f"temperature {temperature}: {finished} finished, {len(invalid)} invalid")
    return found
