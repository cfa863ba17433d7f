"""`foresay generate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foresay.cli import asking
from foresay.cli.interrupts import Interrupts
from foresay.cli.model import (
    DEFAULT_MODEL,
    Corpus,
    Device,
    Drafter,
    Dtype,
    Model,
    Policy,
    Quantize,
    check_names,
    device_for,
    load,
    require_engine,
)
from foresay.cli.options import naming_options
from foresay.cli.root import app
from foresay.cli.show import harmless, print_heading, tolerate_encoding
from foresay.cli.waiting import Waiting, waiting
from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay.engine.llm import LLM, Result
    from foresay.models.progress import Progress
    from foresay.sampling.params import SamplingParams


@app.command()
@naming_options({"n": "-n"})
def generate(
    prompts: asking.Prompts = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help='A file with one prompt per line, or with JSON objects that have a "prompt"; '
            "- is stdin."
        ),
    ] = None,
    model: Model = DEFAULT_MODEL,
    drafter: Drafter = "suffix",
    policy: Policy = "adaptive",
    corpus: Corpus = None,
    max_tokens: asking.MaxTokens = 256,
    temperature: asking.Temperature = 0.0,
    top_k: asking.TopK = 0,
    top_p: asking.TopP = 1.0,
    min_p: asking.MinP = 0.0,
    processor_order: asking.ProcessorOrder = "temperature,top-k,top-p,min-p",
    seed: asking.Seed = None,
    n: Annotated[int, typer.Option("-n", help="Answers to each prompt.")] = 1,
    stop: asking.Stop = None,
    json_schema: asking.JsonSchema = None,
    regex: asking.Regex = None,
    choice: asking.Choice = None,
    grammar: asking.Grammar = None,
    raw: asking.Raw = False,
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    device: Device = "auto",
    sources: Annotated[
        bool, typer.Option("--sources", help="Show where each token was drafted from.")
    ] = False,
    as_json: asking.AsJson = False,
) -> None:
    """Answer one or many prompts.

    Prompts are arguments, lines of a file, or what is piped in. A model with a chat template is
    given them as a user's messages. On a terminal a single answer is streamed.

    With --sources, drafted tokens that were accepted are coloured by their source, or stand in
    brackets where there are no colours, such as «own text» and ⟦group⟧. A legend follows the
    answers. All other tokens are the model's own.

    \b
    Examples:
      foresay generate "Why is the sky blue?"
      foresay generate "Write a haiku." -n 4 --temperature 0.8 --seed 1
      foresay generate --file prompts.txt --json > answers.jsonl
      cat question.txt | foresay generate --max-tokens 64
      foresay generate "Once upon a time" --raw --sources
      foresay generate "Name a colour." --choice red --choice green
      foresay generate "Bob is 33." --json-schema person.json

    The JSON objects have prompt, text, token_ids, finish_reason and stats.

    Progress goes to stderr: as a bar on a terminal, otherwise in lines, with --json as objects that
    have event, message, seconds, done and total. After an interrupt, finished answers are printed.
    """
    from foresay.sampling.params import SamplingParams

    tolerate_encoding()
    texts = read_prompts(prompts or [], file)
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        processor_order=asking.processors_of(processor_order),
        seed=seed,
        n=n,
        stop=tuple(stop or ()),
        structured_outputs=asking.form_of(json_schema, regex, choice, grammar),
    )
    require_engine("generate")
    check_names(drafter, policy, corpus)
    chosen: Any = drafter
    device = device_for(device, dtype, quantize)
    if corpus is not None:
        from foresay.drafters.lineup import make_drafter

        given: Any = {"corpus": corpus, "verify": True, "model": model, "device": device}
        chosen = make_drafter(drafter, share="all", **given)
    streamed = len(texts) == n == 1 and sys.stdout.isatty() and not (sources or as_json)
    with waiting(as_json) as wait:
        llm = load(
            model,
            dtype,
            wait,
            device=device,
            quantize=quantize,
            drafter=chosen,
            policy=policy,
            with_sources=sources,
        )
        chat = llm.tokenizer.chats and not raw
        if not streamed:
            good = _print_all(llm, texts, params, chat, sources, as_json, wait)
    if streamed:
        good = _stream(llm, texts[0], params, chat)
    if not good:
        raise typer.Exit(1)


def read_prompts(arguments: list[str], file: Path | None) -> list[str]:
    """All prompts, arguments first."""
    if not arguments and file is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError(
                "there is no prompt; expected one as an argument, with --file, or through a pipe"
            )
        arguments = ["-"]
    texts = [_stdin().removesuffix("\n") if text == "-" else text for text in arguments]
    for number, text in enumerate(texts, start=1):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"prompt {number} is not UTF-8; expected UTF-8")
        if not text.strip():
            where = "what was piped in" if arguments[number - 1] == "-" else f"prompt {number}"
            raise InputError(f"{where} is empty; expected a text")
    if file is not None:
        texts += _lines(file)
    return texts


def _stdin() -> str:
    if sys.stdin is None:
        raise InputError("nothing is piped in; expected a prompt as an argument, or with --file")
    return _text(sys.stdin.buffer.read(), "what was piped in")


def _lines(file: Path) -> list[str]:
    """The prompts of a file: of JSON objects, if its first line is one."""
    name = "what was piped in" if str(file) == "-" else f"'{file}'"
    text = _stdin() if str(file) == "-" else _text(file.read_bytes(), name)
    # Not splitlines(): JSON may hold line separators of Unicode.
    lines = [(at, line.rstrip("\r")) for at, line in enumerate(text.split("\n"), start=1)]
    lines = [(at, line) for at, line in lines if line.strip()]
    if not lines:
        raise InputError(f"{name} holds no prompt; expected one per line")
    if _object(lines[0][1]) is None:
        if lines[0][1].lstrip().startswith("{") or file.suffix in (".json", ".jsonl"):
            raise InputError(
                f"line {lines[0][0]} of {name} is not JSON; expected an object on one line"
            )
        return [line for _, line in lines]
    prompts = []
    for at, line in lines:
        prompt = (_object(line) or {}).get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            like = "" if at == lines[0][0] else f", like line {lines[0][0]}"
            raise InputError(
                f'line {at} of {name} has no text as "prompt"; expected a JSON object with '
                f"one{like}"
            )
        prompts.append(prompt)
    return prompts


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 at byte {error.start}; expected UTF-8") from error


def _stream(llm: LLM, text: str, params: SamplingParams, chat: bool) -> bool:
    """Print one answer while it is decoded; returns whether it succeeded."""
    error = None
    try:
        for chunk in llm.stream(text, params, chat=chat):
            print(harmless(chunk.text), end="", flush=True)
            if chunk.result is not None:
                error = chunk.result.error
    finally:  # also when it is interrupted
        print()
    if error is not None:
        _complain(error)
    return error is None


def _print_all(
    llm: LLM,
    texts: list[str],
    params: SamplingParams,
    chat: bool,
    sources: bool,
    as_json: bool,
    wait: Waiting,
) -> bool:
    """Print the answers in the order of the prompts, each as soon as possible; returns whether all
    succeeded. After an interrupt, print the finished ones.
    """
    results: dict[int, Result] = {}
    good = True

    def show(number: int) -> None:
        nonlocal good
        result, index = results[number], number // params.n
        with interrupts.held(), wait.aside():
            if result.error is not None:
                good = False
                sys.stdout.flush()
                _complain(result.error, index if len(texts) > 1 else None)
            if as_json:
                _print_json(result, params, sources)
            elif result.error is None:
                _print_text(llm, result, params, sources, _heading(texts, index, result, params))
            del results[number]

    given = 0
    with Interrupts() as interrupts:
        try:
            for at, result in _as_they_end(llm, texts, params, chat, wait):
                results[at] = result
                while given in results:
                    show(given)
                    given += 1
        except KeyboardInterrupt:
            for number in sorted(results):
                show(number)
            raise
    return good


def _as_they_end(
    llm: LLM, texts: list[str], params: SamplingParams, chat: bool, progress: Progress
) -> Iterator[tuple[int, Result]]:
    """Results with their numbers: prompt index * n + sample."""
    done, total = 0, len(texts) * params.n * params.max_tokens
    progress("answer", 0, total)
    for chunk in llm.stream(texts, params, chat=chat):
        done += len(chunk.token_ids)
        if chunk.result is not None:
            done += params.max_tokens - len(chunk.result.token_ids)  # it ended early
            yield chunk.index, chunk.result
        progress("answer", done, total)


def _complain(error: Exception, index: int | None = None) -> None:
    where = "" if index is None else f"prompt {index + 1}: "
    print(f"foresay: {where}{error}", file=sys.stderr)


def _print_json(result: Result, params: SamplingParams, sources: bool) -> None:
    values = result.as_dict()
    if params.n > 1:
        values["sample"] = result.sample
    if sources:
        values["sources"] = result.sources
    print(json.dumps(values), flush=True)


def _heading(texts: list[str], index: int, result: Result, params: SamplingParams) -> str | None:
    """The heading of an answer that is one of several."""
    if len(texts) == params.n == 1:
        return None
    if len(texts) == 1:
        return f"[{result.sample + 1}]"
    number = f"{index + 1}.{result.sample + 1}" if params.n > 1 else str(index + 1)
    asked = " ".join(texts[index].split())
    return f"[{number}] {asked[:69] + '…' if len(asked) > 70 else asked}"


def _print_text(
    llm: LLM, result: Result, params: SamplingParams, sources: bool, heading: str | None
) -> None:
    from foresay.cli.sources import print_marked, spans

    if heading is not None:
        print_heading(heading)
    if sources:
        pieces = spans(
            result.token_ids,
            result.sources or (),
            llm.tokenizer.decode,
            params.stop_texts,
            params.min_tokens,
        )
        print_marked(pieces)
    else:
        print(harmless(result.text))
    if heading is not None:
        print()
    sys.stdout.flush()
