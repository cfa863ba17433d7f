"""`foresay demo`."""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from foresay.cli.asking import MaxTokens
from foresay.cli.interrupts import Interrupts
from foresay.cli.model import DEFAULT_MODEL, Device, Dtype, Model, device_for, load, require_engine
from foresay.cli.root import AsJson, app
from foresay.cli.show import print_heading, print_table, tolerate_encoding
from foresay.cli.waiting import Waiting, waiting
from foresay.machine import seconds_kept_waiting

_WAITED = 0.1  # of the time: from then on the times say little

if TYPE_CHECKING:
    from foresay.bench.demo import Comparison, Demo, StepTime
    from foresay.engine.llm import LLM


@app.command()
def demo(
    model: Model = DEFAULT_MODEL,
    max_tokens: MaxTokens = 128,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Answer built-in prompts without and with speculation, and compare.

    The prompts are what speculation is used for: edit code, extract fields, correct, summarise,
    answer from a text, sample code four times; and a free chat, where there is nothing to copy.
    What a step costs by its rows is shown first: it decides how many drafted tokens pay.

    The model is downloaded at its first use. Drafted tokens that were accepted are coloured by
    their source, or stand in brackets where there are no colours. Fails if a single token differs.

    Progress goes to stderr: as a bar on a terminal, otherwise in lines, with --json as objects that
    have event, message, seconds, done and total. Each answer is printed when it is done (with
    --json as the event "answered"). After an interrupt, the table of finished answers is printed.

    \b
    Examples:
      foresay demo
      foresay demo --max-tokens 32
      foresay demo --model ./my-model --json
    """
    from foresay.bench.demo import Demo, compare, step_times
    from foresay.bench.questions import built_in_questions

    tolerate_encoding()
    prompts = built_in_questions(max_tokens)
    require_engine("demo")
    device = device_for(device, dtype)
    if not as_json:
        texts = sum(prompt.params.n for prompt in prompts)
        print(
            f"{model} answers {len(prompts)} prompts with {texts} texts of at most {max_tokens} "
            "tokens:\neach one plainly, and again with drafts that the model only has to verify.",
            flush=True,
        )
    done: list[Comparison] = []
    steps: list[StepTime] = []
    interrupted = False
    begun, waited = perf_counter(), seconds_kept_waiting()
    try:
        with waiting(as_json) as wait, Interrupts() as interrupts:
            fast = load(model, dtype, wait, device=device, with_sources=True)
            plain = fast.beside(None, "none")
            steps = step_times(fast)
            if steps and not as_json:
                with interrupts.held(), wait.aside():
                    _print_steps(steps)
            for comparison in compare(plain, fast, prompts, wait):
                with interrupts.held(), wait.aside():
                    done.append(comparison)
                    _print_answers(comparison, plain, as_json, wait)
    except KeyboardInterrupt:
        interrupted = True
    result = Demo(done)
    if as_json:
        asked = {"model": model, "device": device, "max_tokens": max_tokens}
        _print_json(result, steps, asked, interrupted)
    elif done:
        _print_table(result)
        waited, took = seconds_kept_waiting() - waited, perf_counter() - begun
        if waited > max(1.0, _WAITED * took):
            print(
                f"Other processes wanted the processors, too: in {took:.0f} s threads waited "
                f"{waited:.0f} s for one. On a quiet machine the times are others."
            )
    if interrupted:
        raise typer.Exit(130)
    if not result.total.identical:
        raise typer.Exit(1)


def _as_dict(comparison: Comparison) -> dict[str, Any]:
    name = None if comparison.prompt is None else comparison.prompt.category
    texts = [answer.text for answer in comparison.fast.results]
    return {"name": name, **comparison.as_dict(), "texts": texts}


def _print_json(
    result: Demo, steps: list[StepTime], asked: dict[str, Any], interrupted: bool
) -> None:
    values = dict(asked)
    if result.comparisons:
        values |= result.total.as_dict()
    sources = {name or "model": count for name, count in result.sources.items()}
    prompts = [_as_dict(comparison) for comparison in result.comparisons]
    step_cost = [step.as_dict() for step in steps]
    values |= {"sources": sources, "step_cost": step_cost, "prompts": prompts}
    print(json.dumps(values | {"interrupted": True} if interrupted else values))


def _print_steps(steps: list[StepTime]) -> None:
    from foresay.bench.demo import CONTEXT

    print(f"\nA step on this machine, in a text of {CONTEXT} tokens:\n")
    head = ["rows", "time", "relative", "pays if it accepts"]
    print_table(head, [_step_row(step) for step in steps])
    print(
        "\nThe first row computes the next token, the others verify drafted ones.\n"
        "As many are drafted as can be expected to pay.",
        flush=True,
    )


def _step_row(step: StepTime) -> list[str]:
    drafted = step.rows - 1
    least = "never" if step.break_even is None else f"more than {step.break_even:.2f} of {drafted}"
    return [
        str(step.rows),
        f"{1e3 * step.seconds:.1f} ms",
        f"{step.relative:.2f} x",
        least if drafted else "",
    ]


def _print_answers(comparison: Comparison, llm: LLM, as_json: bool, wait: Waiting) -> None:
    from foresay.cli.sources import print_marked, spans

    assert comparison.prompt is not None
    if as_json:
        wait.tell("answered", f"answered '{comparison.prompt.category}'", **_as_dict(comparison))
        return
    print()
    print_heading(f"{comparison.prompt.category}: {_shortened(comparison.prompt.turns[0])}")
    for number, answer in enumerate(comparison.fast.results, start=1):
        if len(comparison.fast.results) > 1:
            print_heading(f"[{number}]")
        print_marked(spans(answer.token_ids, answer.sources or (), llm.tokenizer.decode))
    sys.stdout.flush()


def _print_table(result: Demo) -> None:
    from foresay.cli.sources import print_legend

    print()
    print_legend(result.sources)
    print()
    head = ["prompt", "tokens", "steps", "tokens per step", "plain", "speculative", "speed-up"]
    rows = [_row(comparison) for comparison in [*result.comparisons, result.total]]
    print_table([*head, "identical"], rows)
    print("\nTimes are of the whole answer, prefill included; steps are those with speculation.")
    print(_verdict(result))


def _shortened(text: str) -> str:
    """A prompt's beginning and end, which often is the question."""
    line = " ".join(text.split())
    return line if len(line) <= 96 else f"{line[:44]} … {line[-48:]}"


def _row(comparison: Comparison) -> list[str]:
    return [
        "all" if comparison.prompt is None else comparison.prompt.category,
        str(comparison.fast.tokens),
        str(comparison.fast.steps),
        f"{comparison.tokens_per_step:.2f}",
        f"{comparison.plain.seconds:.2f} s",
        f"{comparison.fast.seconds:.2f} s",
        f"{comparison.speedup:.2f} x",
        "yes" if comparison.identical else "NO",
    ]


def _verdict(result: Demo) -> str:
    total = result.total
    texts = len(total.fast.results)
    if total.identical:
        return (
            f"All {texts} texts are identical, token by token, without and with speculation; with "
            f"it they came {total.speedup:.2f} times as fast."
        )
    places = [
        f"'{comparison.prompt.category}' from token {token + 1} on"
        for comparison in result.comparisons
        for _, token in comparison.differences
        if comparison.prompt is not None
    ]
    return f"{len(places)} of {texts} texts are NOT identical: {', '.join(places)}."
