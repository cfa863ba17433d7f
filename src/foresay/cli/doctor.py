"""`foresay doctor`."""

from __future__ import annotations

import json

import typer

from foresay.cli.root import AsJson, app
from foresay.cli.show import print_fields, print_table


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, what will be used, what is missing and how to get it.

    \b
    Examples:
      foresay doctor
      foresay doctor --json
    """
    from foresay.doctor import examine
    from foresay.drafters.lineup import NAMES

    report = examine()
    if as_json:
        print(json.dumps(report | {"drafters": NAMES}))
    else:
        shown = ("foresay", "python", "platform", "core", "cpu", "device", "drafting", "models")
        said = {name: report[name]["said"] for name in ("cpu", "device")}
        print_fields({name: report[name] for name in shown} | said)
        print()
        print_table(
            ["library", "version", "needed for", "get it in foresay's checkout with"],
            [
                [p["name"], p["version"] or "missing", p["use"], "" if p["version"] else p["get"]]
                for p in report["libraries"]
            ],
        )
        print()
        print_table(["drafter", "what it is"], [[name, about] for name, about in NAMES.items()])
    if not report["ok"]:
        raise typer.Exit(1)
