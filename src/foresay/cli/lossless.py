"""`foresay lossless`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foresay.cli.root import AsJson, app
from foresay.cli.show import print_table, progress, stages
from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay.sampling.kit.prove import Check


@app.command()
def lossless(
    quick: Annotated[
        bool, typer.Option("--quick", help="A shorter proof, in about 20 seconds.")
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
        str | None, typer.Option(help="With --servers: the model's name; otherwise their first.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="With --servers: the key.", envvar="FORESAY_API_KEY")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="With --servers: a file with one prompt per line.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="With --servers: of greedy answers.")] = 64,
    samples: Annotated[
        int, typer.Option(help="With --servers: sampled answers per prompt; 0: only greedy ones.")
    ] = 256,
    tie: Annotated[
        float,
        typer.Option(help="With --servers: greedy answers may differ where the margin is this."),
    ] = 0.01,
    seed: Annotated[int, typer.Option(help="Another seed makes other random cases.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Prove that speculation changes no answer: of foresay, of your function, of a server.

    Small worlds are enumerated with rational numbers and compared with ==, texts are compared with
    plain decoding over thousands of random scripts, sampled laws are tested with stated power; and
    every wrong rule that is known must be found. Fails on any surprise.

    \b
    Examples:
      foresay lossless
      foresay lossless --quick --json
      foresay lossless --verify mypackage.verify:rejection_sample --trees
      foresay lossless --servers http://127.0.0.1:8000 http://127.0.0.1:8001
    """
    if verify is not None and servers is not None:
        raise InputError("--verify and --servers are two different proofs; give one of them")
    started = time.perf_counter()
    checks: list[Check] = []
    if servers is not None:
        checks += _compare(servers, model, api_key, prompts, max_tokens, samples, tie, seed)
    elif verify is not None:
        from foresay.sampling.kit.user import load, prove_function

        with progress("proving", None):
            checks += prove_function(load(verify), 60 if quick else 300, trees, seed)
    else:
        from foresay.sampling.kit.prove import FULL, QUICK, prove

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
        counted = f"{len(checks) - wrong} proofs"
        counted += f" and {wrong} wrong rules, which must be found" if wrong else ""
        surprises = sum(not check.ok for check in checks)
        end = "all as it should be" if ok else f"{surprises} SURPRISES"
        print(f"\n{counted}: {end} ({seconds:.0f} s)")
    if not ok:
        raise typer.Exit(1)


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
    from foresay.sampling.kit.prove import Check
    from foresay.sampling.kit.servers import PROMPTS, Server, greedy_equality, sampled_equality

    texts = list(PROMPTS)
    if prompts is not None:
        texts = [line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not texts:
            raise InputError(f"'{prompts}' holds no prompt; one per line is needed")
    a, b = (Server(url, model, api_key) for url in urls)
    with progress("greedy answers", 2 * len(texts)) as advance:
        greedy = greedy_equality(a, b, texts, max_tokens, progress=advance)
    yield Check("servers", "greedy", not greedy.faults(tie), str(greedy))
    if samples:
        with progress("sampled answers", None) as advance:
            sampled = sampled_equality(a, b, texts, samples, seed=seed, progress=advance)
        proved = sampled.equal and sampled.each is not None
        yield Check("servers", "sampled", proved, str(sampled))


def _print_checks(checks: list[Check]) -> None:
    rows: list[list[Any]] = [
        ["ok" if c.ok else "SURPRISE", c.layer, c.name, c.result.replace("\n", "; ")]
        for c in checks
    ]
    print_table(["", "layer", "what", "result"], rows)
