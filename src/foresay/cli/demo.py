"""`foresay demo`."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from foresay.cli.model import DEFAULT_MODEL, Dtype, DtypeOption, Model, load, require_engine
from foresay.cli.root import AsJson, app
from foresay.cli.show import counted, print_heading, print_table, progress, tolerate_encoding

if TYPE_CHECKING:
    from foresay.bench.demo import Comparison, Demo
    from foresay.engine.llm import LLM


@app.command()
def demo(
    model: Model = DEFAULT_MODEL,
    max_tokens: Annotated[int, typer.Option(help="Of an answer, at most.")] = 64,
    dtype: Dtype = DtypeOption.auto,
    as_json: AsJson = False,
) -> None:
    """Answer built-in prompts without and with speculation, and compare.

    The model is fetched when it is needed for the first time. Tokens that were guessed are coloured
    by where the guess was from, or stand in brackets where there are no colours. Fails if a single
    token differs.

    \b
    Examples:
      foresay demo
      foresay demo --max-tokens 128
      foresay demo --model ./my-model --json
    """
    from foresay.bench.demo import built_in_prompts, run_demo, write_corpus

    tolerate_encoding()
    prompts = built_in_prompts(max_tokens)
    require_engine("demo")
    plain = load(model, dtype, drafter=None, policy="none")
    with TemporaryDirectory() as folder:
        corpus = None
        if model == DEFAULT_MODEL:  # other models may count their tokens otherwise
            corpus = Path(folder) / "recorded.foresay"
            write_corpus(corpus)
        with counted("measuring the machine"):
            fast = _with_speculation(plain, corpus)
        total = 2 * sum(prompt.params.n * prompt.params.max_tokens for prompt in prompts)
        with progress("answering", total) as advance:
            result = run_demo(plain, fast, prompts, advance)
    if as_json:
        _print_json(result, model, max_tokens)
    else:
        _print_text(result, model, max_tokens, plain)
    if not result.total.identical:
        raise typer.Exit(1)


def _with_speculation(plain: LLM, corpus: Path | None) -> LLM:
    from foresay.drafters.suffix import SuffixDrafter

    return plain.beside(SuffixDrafter(corpus=corpus), "adaptive", with_sources=True)


def _print_json(result: Demo, model: str, max_tokens: int) -> None:
    total = result.total.as_dict()
    prompts = [
        {"name": c.prompt.name, **c.as_dict(), "texts": [r.text for r in c.fast.results]}
        for c in result.comparisons
        if c.prompt is not None
    ]
    sources = {name or "model": count for name, count in result.sources.items()}
    values = {"model": model, "max_tokens": max_tokens, **total}
    print(json.dumps(values | {"sources": sources, "prompts": prompts}))


def _print_text(result: Demo, model: str, max_tokens: int, llm: LLM) -> None:
    from foresay.cli.sources import print_legend, print_marked, spans

    answers = len(result.total.fast.results)
    print(
        f"{model} answers {len(result.comparisons)} prompts with {answers} texts of at most "
        f"{max_tokens} tokens:\neach one plainly, and again with guesses that it only has to check."
    )
    for comparison in result.comparisons:
        assert comparison.prompt is not None
        print()
        print_heading(f"{comparison.prompt.name}: {_shortened(comparison.prompt.text)}")
        for number, answer in enumerate(comparison.fast.results, start=1):
            if len(comparison.fast.results) > 1:
                print_heading(f"[{number}]")
            print_marked(spans(answer.token_ids, answer.sources or (), llm.tokenizer.decode))
    print()
    print_legend(result.sources)
    print()
    head = ["prompt", "tokens", "plain", "speculative", "speed-up", "tokens per step", "identical"]
    print_table(head, [_row(comparison) for comparison in [*result.comparisons, result.total]])
    print("\nSpeeds are tokens per second of the whole answer, reading the prompt included.")
    print(_verdict(result))


def _shortened(text: str) -> str:
    """A prompt's beginning and end, which often is the question."""
    line = " ".join(text.split())
    return line if len(line) <= 96 else f"{line[:44]} … {line[-48:]}"


def _row(comparison: Comparison) -> list[str]:
    return [
        "all" if comparison.prompt is None else comparison.prompt.name,
        str(comparison.fast.tokens),
        f"{comparison.plain_speed:.1f} /s",
        f"{comparison.fast_speed:.1f} /s",
        f"{comparison.speedup:.2f} x",
        f"{comparison.tokens_per_step:.2f}",
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
        f"'{comparison.prompt.name}' from token {token + 1} on"
        for comparison in result.comparisons
        for _, token in comparison.differences
        if comparison.prompt is not None
    ]
    return f"{len(places)} of {texts} texts are NOT identical: {', '.join(places)}."
