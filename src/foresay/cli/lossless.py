"""`foresay lossless`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foresay.cli.options import given, require
from foresay.cli.root import AsJson, app
from foresay.cli.show import print_table, progress, stages
from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay.lossless import Check

_ONLY_WITH = {
    "trees": "--verify",
    **dict.fromkeys(
        ["model", "api_key", "prompts", "max_tokens", "samples", "tie"],
        "--servers",
    ),
}
"""Options of one proof only, with the proof."""
_FEWEST_SAMPLES = 16


@app.command()
def lossless(
    context: typer.Context,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A shorter proof, in about a quarter of the time; a function with rng is tested "
            "for a bias of 0.1 in total variation instead of 0.05.",
        ),
    ] = False,
    verify: Annotated[
        str | None,
        typer.Option(help="Prove your own function instead: module:function or file.py:function."),
    ] = None,
    trees: Annotated[
        bool, typer.Option("--trees", help="With --verify: it is given trees, not only chains.")
    ] = False,
    servers: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Compare two OpenAI-compatible servers instead.", metavar="URL URL"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --servers: the model's name; by default their first.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="With --servers: the key.", envvar="FORESAY_API_KEY")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="With --servers: a file with one prompt per line.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="With --servers: of greedy answers.")] = 64,
    samples: Annotated[
        int,
        typer.Option(
            help="With --servers: sampled answers per prompt, 16 or more; 0: only greedy."
        ),
    ] = 256,
    tie: Annotated[
        float,
        typer.Option(
            help="With --servers: greedy answers may differ where the two likeliest tokens are "
            "apart by at most this, in nats."
        ),
    ] = 0.01,
    seed: Annotated[int, typer.Option(min=0, help="Another seed makes other random cases.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Prove that speculation changes no answer: of foresay, of your function, of a server.

    Small cases are enumerated with rational numbers and compared with ==, texts are compared with
    plain decoding over thousands of random scripts, sampled distributions are tested with stated
    power; and every wrong rule known to us must be found. Fails on any surprise.

    \b
    Examples:
      foresay lossless
      foresay lossless --quick --json
      foresay lossless --verify mypackage.verify:rejection_sample --trees
      foresay lossless --servers http://127.0.0.1:8000 http://127.0.0.1:8001

    A function for --verify returns the tokens that one step emits. It gets p, the target's
    distributions (after the text, and after each node of the draft), q, the distribution that each
    node was sampled from (None: it was not sampled), and the tokens and parents of the nodes. For
    chains this one is right:

    \b
      def verify(p, q, tokens, parents, coins):
          for i, token in enumerate(tokens):
              # A token that was not sampled has probability 1.
              draft = q[i] or [int(v == token) for v in range(len(p[i]))]
              if not coins.accept(p[i][token] / draft[token]):
                  rest = [max(a - b, 0) for a, b in zip(p[i], draft)]
                  return [*tokens[:i], coins.draw(rest)]
          return [*tokens, coins.draw(p[-1])]

    With `coins`, distributions are tuples of Fractions and chance is enumerated:
    coins.accept(chance) is true with that chance, coins.draw(weights) is a token. The result is a
    proof, for small cases. With `rng` in its place, distributions are float64 arrays, rng is a
    numpy Generator, and the function is tested statistically.
    """
    if verify is not None and servers is not None:
        raise InputError("--verify and --servers are both given; expected one of them")
    chosen = "--servers" if servers is not None else "--verify" if verify is not None else ""
    _refuse_others(context, chosen)
    require("lossless", "lossless", *(["scipy"] if chosen else ["torch", "scipy"]))
    started = time.perf_counter()
    checks: list[Check] = []
    if servers is not None:
        checks += _compare(servers, model, api_key, prompts, max_tokens, samples, tie, seed)
    elif verify is not None:
        from foresay.lossless.user import load, prove_function

        with progress("proving", None):
            cases, total_variation = (60, 0.1) if quick else (300, 0.05)
            checks += prove_function(load(verify), cases, trees, seed, total_variation)
    else:
        from foresay.lossless.prove import FULL, QUICK, prove

        with stages() as report:
            checks += prove(QUICK if quick else FULL, seed, report)
    ok = all(check.ok for check in checks)
    seconds = time.perf_counter() - started
    if as_json:
        lines = [asdict(check) for check in checks]
        print(json.dumps({"ok": ok, "seconds": seconds, "checks": lines}))
    else:
        _print_checks(checks)
        wrong = sum(check.layer == "wrong" for check in checks)
        tests = sum(check.kind == "test" for check in checks)
        proofs = len(checks) - wrong - tests
        counts = [(proofs, "proof"), (tests, "test"), (wrong, "wrong rule")]
        counted = " and ".join(_number(n, what) for n, what in counts if n)
        counted += ", which must be found" if wrong else ""
        surprises = sum(not check.ok for check in checks)
        end = "all as it should be" if ok else _number(surprises, "SURPRISE", "SURPRISES")
        print(f"\n{counted}: {end} ({seconds:.0f} s)")
    if not ok:
        raise typer.Exit(1)


def _refuse_others(context: typer.Context, chosen: str) -> None:
    """Refuse options of another proof than the chosen one."""
    foreign: dict[str, list[str]] = {}
    for name, home in _ONLY_WITH.items():
        if home != chosen and given(context, name):
            foreign.setdefault(home, []).append("--" + name.replace("_", "-"))
    said = [
        f"{', '.join(names)} {'go' if len(names) > 1 else 'goes'} with {home} only"
        for home, names in foreign.items()
    ]
    if chosen == "--servers" and given(context, "quick"):
        said.append("--quick does not go with --servers")
    if said:
        raise InputError("; ".join(said))


def _number(n: int, one: str, many: str | None = None) -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _compare(
    urls: tuple[str, str],
    model: str | None,
    api_key: str | None,
    prompts: Path | None,
    max_tokens: int,
    samples: int,
    tie: float,
    seed: int,
) -> Iterator[Check]:
    from foresay.lossless import Check
    from foresay.lossless.servers import (
        PROMPTS,
        greedy_equality,
        sampled_equality,
        two_servers,
    )

    if max_tokens < 1:
        raise InputError(f"--max-tokens is {max_tokens}; expected at least 1")
    if samples != 0 and samples < _FEWEST_SAMPLES:
        raise InputError(
            f"--samples is {samples}; expected 0 (only greedy answers), or at least "
            f"{_FEWEST_SAMPLES}"
        )
    if not 0 <= tie < math.inf:
        raise InputError(f"--tie is {tie}; expected a margin in nats, finite and at least 0")
    texts = list(PROMPTS) if prompts is None else _read(prompts)
    a, b = two_servers(urls, model, api_key)
    with progress("greedy answers", 2 * len(texts)) as advance:
        greedy = greedy_equality(a, b, texts, max_tokens, progress=advance)
    yield Check("servers", "greedy", not greedy.faults(tie), str(greedy), kind="test")
    if samples:
        with progress("sampled answers", None) as advance:
            sampled = sampled_equality(a, b, texts, samples, seed=seed, progress=advance)
        yield Check("servers", "sampled", sampled.proved, str(sampled), kind="test")


def _read(prompts: Path) -> list[str]:
    try:
        lines = prompts.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"'{prompts}' is not UTF-8 at byte {error.start}; expected UTF-8 with one prompt per "
            "line"
        ) from error
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise InputError(f"'{prompts}' holds no prompt; expected one per line")
    return texts


def _print_checks(checks: list[Check]) -> None:
    rows: list[list[Any]] = [
        ["ok" if c.ok else "SURPRISE", c.layer, c.name, c.result.replace("\n", "; ")]
        for c in checks
    ]
    print_table(["", "layer", "what", "result"], rows)
