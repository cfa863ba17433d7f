"""`foresay tail`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foresay.cli.root import AsJson, app
from foresay.cli.show import check_out, print_object
from foresay.rl.steplog import FEW


@app.command()
def tail(
    log: Annotated[
        Path,
        typer.Argument(help="JSON lines: steps {time, running} or requests {begin, end}."),
    ],
    few: Annotated[
        int, typer.Option(help="The tail is when at most this number of requests are left.")
    ] = FEW,
    plot: Annotated[
        Path | None, typer.Option(help="Write the requests left over time as SVG.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Analyse the long tail of a rollout from any engine's log.

    How many requests are left over time, the share of time with few of them left, and when half,
    90 % and all of them have ended. Times are in seconds. A step may also have `waiting` (requests)
    and `seconds` (how long it took); a request may have `tokens`.

    \b
    Examples:
      foresay tail steps.jsonl
      foresay tail requests.jsonl --few 16 --plot tail.svg
      foresay tail steps.jsonl.gz --json
    """
    from foresay.bench.tail import read_activity, tail_chart, tail_of

    check_out(plot, log)
    activity = read_activity(log)
    found = tail_of(activity, few)
    if plot is not None:
        plot.write_text(tail_chart(activity, few, f"requests left: {log.name}"), encoding="utf-8")
    print_object(found.as_dict(), as_json)
