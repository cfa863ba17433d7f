"""docs/deploy.md, the dashboard and the alerts name only what exists, and the settings all."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from foresay.cli import app
from foresay.integrations.vllm.settings import CONFIG, PREFIX, VllmSettings, read_settings
from serve.running import Running, running, tiny_llm
from tiny import one_thread, save_model

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "foresay"
DEPLOY = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
DASHBOARD_TEXT = (ROOT / "docs" / "grafana" / "foresay.json").read_text(encoding="utf-8")
DASHBOARD = json.loads(DASHBOARD_TEXT)
RULES_TEXT = (ROOT / "docs" / "grafana" / "rules.yml").read_text(encoding="utf-8")
RULES = [rule for group in yaml.safe_load(RULES_TEXT)["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

# vLLM's own, as its version 0.32.0 defines them (v1/metrics/loggers.py, v1/spec_decode/metrics.py).
_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
)
_EVERY = {"model_name", "engine"}
VLLM: dict[str, set[str]] = {
    **{
        f"vllm:{name}": _EVERY
        for name in (
            *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
            *("generation_tokens_total", "prompt_tokens_total", "num_preemptions_total"),
            *("prefix_cache_queries_total", "prefix_cache_hits_total"),
            *("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total"),
            "spec_decode_num_accepted_tokens_total",
        )
    },
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": _EVERY | {"position"},
    "vllm:request_success_total": _EVERY | {"finished_reason"},
    **{f"vllm:{name}_bucket": _EVERY | {"le"} for name in _HISTOGRAMS},
}
SCRAPED = {"job", "instance"}  # labels that Prometheus adds
OTHERS = {"up": set[str]()}  # Prometheus' own
VLLM_OPTIONS = {
    *("--speculative-config", "--tensor-parallel-size", "--pipeline-parallel-size"),
    *("--distributed-executor-backend", "--nnodes", "--node-rank", "--master-addr", "--headless"),
    "--version",
}
FOREIGN_OPTIONS = {"--no-deps", "--head", "--address"}  # of pip and ray

Names = dict[str, set[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = save_model(tmp_path_factory.mktemp("deployed"))
    with one_thread(), running(*tiny_llm(folder)) as found:
        yield found


@pytest.fixture(scope="module")
def ours(server: Running) -> Names:
    """The samples of a real server that has answered and refused, with their labels."""
    server.good("/v1/completions", prompt="abc abc abc", max_tokens=8)
    server.refused("/v1/completions", 400, prompt="a", max_tokens=-1)
    found: Names = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    assert "foresay_answers_total" in found and "foresay_refused_total" in found
    return found


@pytest.fixture(scope="module")
def known(ours: Names) -> Names:
    every = {name: labels | ours.get(name, set()) for name, labels in VLLM.items()}
    return {**ours, **every, **OTHERS}


_CLAUSE = r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)"
_WORDS = {"and", "or", "unless", "offset", "bool"}


def read_expression(expr: str) -> tuple[Names, set[str]]:
    """The metrics of a query with the labels they are selected by, and the labels of clauses."""
    clauses = {
        label.strip()
        for _, listed in re.findall(_CLAUSE, expr)
        for label in listed.split(",")
        if label.strip()
    }
    rest = re.sub(r"\[[^\]]*\]|\boffset \w+", " ", re.sub(_CLAUSE, " ", expr))
    selectors: Names = {}
    for name, chosen in re.findall(r"([a-zA-Z_:][\w:]*)\b(?!\s*\()\s*(\{[^}]*\})?", _bare(rest)):
        if name not in _WORDS:
            selectors.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]", chosen))
    return selectors, clauses


def _bare(expr: str) -> str:
    return re.sub(r'"[^"]*"', "", expr)


def faults_of(expr: str, known: Names, shown: str = "") -> list[str]:
    """What a query, and the legend over it, names that does not exist."""
    selectors, clauses = read_expression(expr)
    faults = [f"no metric {name}" for name in selectors if name not in known]
    for name, labels in selectors.items():
        wrong = labels - known.get(name, set()) - SCRAPED
        faults += [f"no label {label} of {name}" for label in sorted(wrong)]
    there = set().union(SCRAPED, *(known.get(name, set()) for name in selectors))
    faults += [f"no label {label}" for label in sorted(clauses - there)]
    left = clauses if " by (" in expr else there
    faults += [
        f"no {label} to show" for label in re.findall(r"{{(\w+)}}", shown) if label not in left
    ]
    return faults


def test_the_queries_name_what_exists(known: Names) -> None:
    asked = [(t["expr"], t["legendFormat"]) for panel in PANELS for t in panel["targets"]]
    asked += [(rule["expr"], "") for rule in RULES]
    assert len(asked) > 50
    assert [fault for expr, shown in asked for fault in faults_of(expr, known, shown)] == []
    variables = {v["name"] for v in DASHBOARD["templating"]["list"]}
    assert (
        set(re.findall(r"\$(?!_)\{?(\w+)", DASHBOARD_TEXT)) == variables == {"datasource", "model"}
    )


def test_the_check_of_queries_would_see_it(known: Names) -> None:
    assert faults_of("rate(foresay_step_total[5m])", known) == ["no metric foresay_step_total"]
    assert faults_of('foresay_answers_total{status="a"}', known) == [
        "no label status of foresay_answers_total"
    ]
    assert faults_of("sum by (tenant) (foresay_running)", known) == ["no label tenant"]
    assert faults_of("sum by (instance) (foresay_running)", known, "{{model_name}}")
    assert faults_of("up > 0 and vllm:generation_tokens > 1 offset 5m", known) == [
        "no metric vllm:generation_tokens"
    ]


def test_both_servers_have_the_names_of_speculation(ours: Names) -> None:
    shared = set(ours) & set(VLLM)
    assert {name for name in VLLM if "spec_decode" in name} < shared
    assert {"vllm:generation_tokens_total", "vllm:prompt_tokens_total"} < shared


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or above)


def test_the_panels() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert overlap(places[1], {**places[1], "x": places[1]["x"] + 1})  # it would be seen
    assert not any(overlap(a, b) for a, b in combinations(places, 2))
    assert all(0 <= p["x"] < p["x"] + p["w"] <= 24 and p["h"] > 0 for p in places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
    assert len({panel["title"] for panel in DASHBOARD["panels"]}) == len(places)
    for panel in PANELS:
        assert panel["title"] and panel["description"].endswith((".", ")")), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        uids = {panel["datasource"]["uid"], *(t["datasource"]["uid"] for t in panel["targets"])}
        assert uids == {"${datasource}"}, panel["title"]


def test_the_alerts() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert rule["annotations"]["summary"] and rule["annotations"]["action"], rule["alert"]
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m")), rule["alert"]
    assert set(re.findall(r"alert `(\w+)`", DEPLOY)) <= set(names)


BLOCKS = "\n".join(re.findall(r"^ {4}(.*)$", DEPLOY, re.MULTILINE))
INLINE = re.findall(r"`([^`\n]+)`", DEPLOY)


def lines_of_code() -> list[str]:
    found = [re.sub(r"(^|\s)#.*", "", line) for line in [*BLOCKS.splitlines(), *INLINE]]
    return [line for line in found if line.strip()]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that words behind `foresay` call, and what is left of them."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"no command {' '.join(words)}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def options_of(*names: str) -> set[str]:
    return {o for param in command_of(list(names))[0].params for o in param.opts}


def test_the_commands_are_understood() -> None:
    understood = 0
    for line in lines_of_code():
        called = re.search(r"(?:^|/bin/)foresay ([a-z].*)", line)
        if called is None:
            continue
        command, words = command_of(shlex.split(called[1]))
        if words:  # as a user would type it: every option, every value
            with command.make_context(command.name, list(words)):
                understood += 1
    assert understood == 7
    with pytest.raises(AssertionError, match="no command swerve"):
        command_of(["swerve"])
    with pytest.raises(Exception, match="No such option"):
        command_of(["serve"])[0].make_context("serve", ["--no-such-option"])


def test_every_option_exists_and_every_option_of_serve_is_told() -> None:
    told = {o for line in lines_of_code() for o in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)}
    own = options_of("serve") - {"--help", "model"}
    assert own - told == set()
    everything = own | options_of("lossless") | VLLM_OPTIONS | FOREIGN_OPTIONS
    assert told - everything == set()


def test_the_settings_of_vllm(tmp_path: Path) -> None:
    rows = [
        f"| `{PREFIX}{one.name.upper()}` | `{json.dumps(one.default)}` | {one.metadata['says']} |"
        for one in fields(VllmSettings)
    ]
    assert [line for line in DEPLOY.splitlines() if line.startswith(f"| `{PREFIX}")] == rows
    example = next(code for code in INLINE if code.startswith('{"vllm"'))
    file = tmp_path / "config.json"
    file.write_text(example)
    assert read_settings({CONFIG: str(file)}) != VllmSettings()


def test_the_variables() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(SRC.rglob("*.py")))
    others = {CONFIG, "FORESAY_API_KEY", "FORESAY_CACHE", "FORESAY_REMEMBER"}
    assert all(f'"{name}"' in source for name in others)
    known = others | {PREFIX + item.name.upper() for item in fields(VllmSettings)}
    text = DEPLOY + DASHBOARD_TEXT + RULES_TEXT
    named = set(re.findall(r"\bFORESAY_\w+", text))
    assert named == known


def test_what_vllm_is_told() -> None:
    told = re.findall(r"--speculative-config\s+'([^']*)'", DEPLOY)
    assert len(told) == 2
    for text in told:
        config = json.loads(text)
        module, _, name = config["model"].rpartition(".")
        assert callable(getattr(import_module(module), name).propose)
        assert config["method"] == "custom_class"


def test_the_links_inside_the_page() -> None:
    headings = re.findall(r"^#+ (.*)$", DEPLOY, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
    linked = set(re.findall(r"\]\(#([^)]*)\)", DEPLOY))
    assert linked and linked <= anchors


def test_the_routes_and_numbers_that_are_told(server: Running, known: Names) -> None:
    routes = {code for code in INLINE if re.fullmatch(r"/[a-z0-9_/]+", code)}
    assert routes >= {"/health", "/live", "/metrics", "/v1/spec/stats"}
    for route in routes:
        assert server.http.get(route).status_code == 200, route
    numbers = {code for code in INLINE if re.match(r"(vllm:|foresay_)", code)}
    assert len(numbers) > 10
    for name in numbers:
        assert name in known or f"{name}_bucket" in known, name


def test_what_is_said_of_times_and_sizes(server: Running) -> None:
    drain = re.search(r"ExecStart=.*--drain (\d+)", DEPLOY)
    stop = re.search(r"TimeoutStopSec=(\d+)", DEPLOY)
    assert drain is not None and stop is not None
    assert int(stop[1]) > int(drain[1]) + 10
    events = server.events("/v1/completions", prompt="abc", max_tokens=4, ignore_eos=True)
    sizes = [len(json.dumps(event, separators=(",", ":"))) + 8 for event in events]
    assert all(200 < size < 280 for size in sizes)  # about 240, as said of --pad
