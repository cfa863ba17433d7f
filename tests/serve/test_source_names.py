"""The command line and the page call a source by one name: that of one table."""

from __future__ import annotations

import json

from foresay.cli.sources import MARKS, legend_line, print_legend
from foresay.drafter import SOURCE_NAMES, Source
from foresay.serve.app import PAGE
from serve.running import Running


def test_every_source_has_a_name_and_marks() -> None:
    assert set(SOURCE_NAMES) == set(MARKS) == set(Source)
    assert len({told.name for told in SOURCE_NAMES.values()}) == len(Source)
    style = (PAGE / "page.css").read_text()
    assert [s for s in Source if s and f"\n.{s.value} {{ --of:" not in style] == []


def test_the_page_has_the_names_of_the_table(server: Running) -> None:
    answer = server.http.get("/page/sources.js")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["cache-control"] == "no-cache"
    text = answer.text.removeprefix("export const SOURCES = ").removesuffix(";\n")
    names = {source or "model": told._asdict() for source, told in SOURCE_NAMES.items()}
    assert json.loads(text) == names and list(json.loads(text)) == list(names)
    for file in ("chat.js", "page.js"):
        script = (PAGE / file).read_text()
        assert 'import { SOURCES } from "/page/sources.js"' in script


def test_the_command_line_has_the_names_of_the_table(capsys: object) -> None:
    line = legend_line(list(Source))
    names = [told.name for source, told in SOURCE_NAMES.items() if source != Source.MODEL]
    assert line is not None and line.plain == f"drafted from: {', '.join(names)}"
    print_legend(dict.fromkeys(Source, 1))
    shown = capsys.readouterr().out.splitlines()  # type: ignore[attr-defined]
    for row, (name, about) in zip(shown, SOURCE_NAMES.values(), strict=True):
        assert f"{name}: {about} " in row
