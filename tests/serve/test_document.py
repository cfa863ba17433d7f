"""docs/server.md lists the routes and fields that there are, the tree of errors all errors; what is
public in the server has a docstring, a help text loads no server, and the command line and the page
call a source by one name: that of one table."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import foresay
import foresay.errors
import foresay.serve
import forks
from foresay.cli.sources import MARKS, legend_line, print_legend
from foresay.drafter import SOURCE_NAMES, Source
from foresay.serve.app import PAGE
from foresay.serve.limits import Limits
from foresay.serve.messages.schema import CountBody, MessageBody
from foresay.serve.parse import ELSEWHERE, UNSUPPORTED
from foresay.serve.responses.schema import ResponseBody
from foresay.serve.schema import Chat, Completion, Detokenize, Sampling
from foresay.serve.schema import Tokenize as Tokenizing
from serve.running import Running

TEXT = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
NAMES = sorted(path.stem for path in Path(foresay.serve.__path__[0]).glob("[a-z]*.py"))
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "a", "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
}


def section(begin: str, end: str) -> str:
    assert TEXT.count(begin) == 1 and end in TEXT.partition(begin)[2]
    return TEXT.partition(begin)[2].partition(end)[0]


def listed(text: str) -> set[str]:
    """The names in the first column of a table."""
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert names and len(names) == len({*names})
    return {*names}


def fields(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def test_the_routes(server: Running) -> None:
    described = server.http.get("/openapi.json").json()["paths"]
    real = {f"{m.upper()} {path}" for path, methods in described.items() for m in methods}
    assert listed(section("## Routes", "There is nothing else")) == {*real, "GET /", "/v1/edge"}
    missing = re.findall(r"`(/[^`]+)`", section("There is nothing else", "## Fields"))
    assert len(missing) > 8
    for path in missing:
        assert server.post(path, {}).status_code == 404, path


def test_the_fields_that_are_honoured() -> None:
    both = listed(section("Of both `/v1/completions`", "Of `/v1/completions` only:"))
    assert both == fields(Sampling)
    one = listed(section("Of `/v1/completions` only:", "Of `/v1/chat/completions` only:"))
    assert one == fields(Completion) - both
    other = listed(section("Of `/v1/chat/completions` only:", "`/tokenize` has"))
    assert other == fields(Chat) - both
    line = section("`/tokenize` has", "\n")
    tokens, _, text = line.partition("`/detokenize` has")
    assert {*re.findall(r"`(\w+)`", tokens)} == fields(Tokenizing)
    assert {*re.findall(r"`(\w+)`", text)} == fields(Detokenize)


def test_the_fields_of_responses_and_messages() -> None:
    for kind, begin, end in (
        (ResponseBody, "Of `/v1/responses`:", "`conversation`, `prompt`"),
        (MessageBody, "Of `/v1/messages`:", "`max_completion_tokens`, `prompt`"),
    ):
        assert listed(section(begin, end)) == fields(kind)
        refused = end + section(end, " are refused as below")
        assert {*re.findall(r"`(\w+)`", refused)} == {*ELSEWHERE[kind]}
    counted = section("`/v1/messages/count_tokens`\nhas", "\n\n")
    assert {*re.findall(r"`(\w+)`", counted)} == fields(CountBody)


def test_the_bounds_of_what_is_kept() -> None:
    limits = Limits()
    assert f"the last {limits.responses:,} of them" in TEXT
    assert f"and {limits.response_bytes >> 20} MiB with their input" in TEXT


def test_the_fields_that_are_refused(server: Running) -> None:
    assert listed(section("## Fields that are refused", "And fields of the one")) == {*UNSUPPORTED}
    one, other = section("And fields of the one route", "\n\n").split("; on\n")
    for route, said in ((Completion, one), (Chat, other)):
        assert {*re.findall(r"`(\w+)`", said)} == {*ELSEWHERE[route]}, route
    for path, body in BODIES.items():
        for name in UNSUPPORTED:
            error = server.refused(path, 400, **body, **{name: {"some": 1}})
            assert error["param"] == name and error["code"] == "unsupported_parameter"


def test_the_fields_that_are_ignored(server: Running) -> None:
    names = re.findall(r"`(\w+)`", TEXT.partition("## Fields that are ignored")[2])
    assert len(names) >= 8
    for path, body in BODIES.items():
        server.good(path, **body, **{name: {"some": "value"} for name in names})


def errors_below(kind: type[Exception]) -> Iterator[type[Exception]]:
    for one in kind.__subclasses__():
        yield one
        yield from errors_below(one)


def test_the_tree_of_errors_has_them_all() -> None:
    for room in (foresay, foresay.serve):
        for found in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    every = errors_below(foresay.errors.ForesayError)
    ours = {kind.__name__ for kind in every if kind.__module__.startswith("foresay.")}
    public = {name for name in ours if not name.startswith("_")}
    assert public == {*re.findall(r"[├└]── (\w+)", foresay.errors.__doc__ or "")}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_public_is_documented(name: str) -> None:
    module = importlib.import_module(f"foresay.serve.{name}")
    for public, thing in vars(module).items():
        if public.startswith("_") or getattr(thing, "__module__", "") != module.__name__:
            continue
        listed = [(public, thing)]
        if inspect.isclass(thing):
            methods = inspect.getmembers(thing, inspect.isfunction)
            own = [(n, m) for n, m in methods if m.__module__ == module.__name__]
            listed += [(f"{public}.{n}", m) for n, m in own if not n.startswith("_")]
        for called, one in listed:
            assert inspect.getdoc(one), f"{name}.{called}"


def test_the_room_lists_its_files() -> None:
    about = foresay.serve.__doc__ or ""
    assert all(f"\n{name} " in about for name in NAMES)


def test_a_help_text_loads_no_server() -> None:
    code = "import sys, foresay.cli, foresay.serve; print(*sys.modules)"
    done = forks.run("-c", code, server=forks.LIGHT)
    assert done.returncode == 0
    assert not {"starlette", "uvicorn", "msgspec", "torch"} & set(done.stdout.split())


def test_every_source_has_a_name_and_marks() -> None:
    assert set(SOURCE_NAMES) == set(MARKS) == set(Source)
    assert len({told.name for told in SOURCE_NAMES.values()}) == len(Source)
    style = (PAGE / "answer.css").read_text()
    marks = re.findall(r'^\[data-mark="(\d+)"\] { --of: var\(--mark-\1\)', style, re.MULTILINE)
    assert [int(mark) for mark in marks] == list(range(len(marks)))
    assert len(marks) >= len(Source) - 1  # the model's own tokens have none


def test_the_page_has_the_names_of_the_table(server: Running) -> None:
    answer = server.http.get("/page/sources.js")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["cache-control"] == "no-cache"
    text = answer.text.removeprefix("export const SOURCES = ").removesuffix(";\n")
    names = {source or "model": told._asdict() for source, told in SOURCE_NAMES.items()}
    assert json.loads(text) == names and list(json.loads(text)) == list(names)
    for file in ("answer.js", "charts.js", "marks.js"):
        script = (PAGE / file).read_text()
        assert 'import { SOURCES } from "/page/sources.js"' in script


def test_the_command_line_has_the_names_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    line = legend_line(list(Source))
    names = [told.name for source, told in SOURCE_NAMES.items() if source != Source.MODEL]
    assert line is not None and line.plain == f"drafted from: {', '.join(names)}"
    print_legend(dict.fromkeys(Source, 1))
    shown = capsys.readouterr().out.splitlines()
    for row, (name, about) in zip(shown, SOURCE_NAMES.values(), strict=True):
        assert f"{name}: {about} " in row
