"""The rows, bars and reports of `foresay bench edge`; and the whole command, with a tiny model."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.edge_tables import answer, table
from foresay.bench.edge import CLOUD, EDGE_ONLY, WAYS, EdgeRow, edge_ways
from foresay.bench.edge_report import COLUMNS, cells, html_report, prometheus_text
from foresay.bench.edge_table import EdgeTable, bars, round_bytes
from foresay.errors import InputError
from tiny import call, save_model


def test_a_row() -> None:
    row = table({CLOUD: [2.0, 4.0]}).as_dict()["rows"][0]
    assert row["total_p50"] == 3.0 and row["total_p95"] == pytest.approx(3.9)
    assert row["tokens_per_second"] == pytest.approx(8 / 6, abs=1e-3)
    assert (row["k"], row["accept_length"], row["la_over_k"]) == (4.0, 1.5, 0.375)
    assert row["accept_histogram"] == {"1": 2, "2": 2}
    assert row["acceptance"] == [1.0, 0.5, 0.0]
    assert row["alpha_mean"] == 0.6  # 3 of 5 examined
    assert (row["steps_per_token"], row["calls_per_token"]) == (0.5, 0.5)
    assert (row["bytes_up"], row["bytes_down"]) == (15.0, 10.0)
    assert row["hard_ratio"] is None and row["rtt_ms"] is None


def test_every_metric_that_section_9_of_the_seed_asks_for_is_there() -> None:
    row = table({CLOUD: [1.0]})
    row.rows[0].sides = {
        "edge_rss_mb": 1.0,
        "cloud_rss_mb": 2.0,
        "kv_peak_mb": 3.0,
        "kv_share": 0.5,
    }
    found = row.as_dict()["rows"][0]
    import foresay.bench.edge as module

    lines = re.findall(r"^    \S.*?  +(\w.*)$", module.__doc__ or "", re.MULTILINE)
    named = set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", " ".join(lines)))
    assert {"ttft_p50", "kv_share", "calls_per_token", "la_over_k", "wire_up"} <= named
    assert not named - found.keys()


def test_speedups_are_question_by_question() -> None:
    found = table({CLOUD: [2.1, 4.1], "ahead": [1.1, 8.1]})  # 0.1 s until the first token
    assert found.ratio("ahead", CLOUD, 0.02) == pytest.approx(1.0)  # twice, and half
    assert found.ratio("ahead", "blocking", 0.02) is None


def test_one_other_token_is_a_difference_also_at_another_round_trip_time() -> None:
    found = table({CLOUD: [1.0], EDGE_ONLY: [1.0]})
    found.rows[1].answers[0].tokens = [9]  # another model
    assert not found.differences
    later = EdgeRow("ahead", 0.05, [answer("q0", 1.0, [1, 2, 7, 4])])
    found.rows.append(later)
    assert found.differences == ["q0: ahead at 50 ms differs from cloud from token 2 on"]
    later.answers[0].tokens = [1, 2, 3]
    assert found.differences == ["q0: ahead at 50 ms differs from cloud from token 3 on"]
    assert not found.as_dict()["identical"]
    assert texts_met(found) == [True, False]


def texts_met(found: EdgeTable) -> list[bool | None]:
    return [bar.met for bar in bars(found) if bar.name.startswith("texts")]


def test_no_texts_are_not_identical_ones() -> None:
    empty = table({CLOUD: [1.0], "ahead": [1.0]})
    for row in empty.rows:
        row.answers[0].tokens = []
    alone = table({EDGE_ONLY: [1.0]})
    for found in (EdgeTable([]), empty, alone):
        assert not found.identical and not found.as_dict()["identical"] and not found.differences
        assert texts_met(found) == [False, False]
        if found.rows:
            assert "No text was compared" in html_report(found)
    empty.rows[0].answers[0].tokens = [1]
    assert empty.differences and not empty.identical


def test_a_drafter_that_failed_is_a_bar_that_is_not_met() -> None:
    found = table({CLOUD: [1.0], "ahead": [1.0]})
    found.rows[1].answers[0].statistics.drafter_error = "ValueError: no"
    assert [bar.name for bar in bars(found) if bar.met is False] == [
        "drafters of the edge that failed, most"
    ]


def test_milliseconds_per_token_are_of_those_after_the_first() -> None:
    found = table({CLOUD: [0.4, 0.7, 9.1]})  # 4 tokens each, 0.1 s until the first
    assert found.as_dict()["rows"][0]["ms_per_token"] == pytest.approx(200.0)
    for one in found.rows[0].answers:
        one.tokens = [1]
    assert found.as_dict()["rows"][0]["ms_per_token"] is None


def test_bars() -> None:
    good = table({"cloud-drafts": [1.0], "free-run": [1.0], "blocking": [1.3], "ahead": [1.0]})
    assert [bar.met for bar in bars(good)] == [True] * 8
    bad = table({"cloud-drafts": [1.0], "free-run": [1.1], "blocking": [1.1], "ahead": [1.0]})
    assert [bar.met for bar in bars(bad)] == [False] * 3 + [True] * 5
    other = table({"cloud-drafts": [1.0], "free-run": [1.0]}, rtt=0.05)
    assert [bar.met for bar in bars(other)] == [None] * 3 + [True] * 5


def test_drafting_ahead_alone_compares_equal_waits() -> None:
    found = table({"blocking": [1.1], "ahead": [0.6], "ahead-block": [0.9]})
    assert found.drafting_ahead_alone() == {"20": 1.25}  # 1.0 s by 0.8 s after the first token
    assert table({"blocking": [1.1], "ahead": [0.6]}).drafting_ahead_alone() == {}


def test_bytes_of_a_round() -> None:
    up, down = round_bytes()
    assert (up, down) == (35, 47)
    assert round_bytes(16)[0] - up == 18  # 8 more ids of 18 bits


def test_ways() -> None:
    assert edge_ways("ahead, blocking") == ["cloud", "blocking", "ahead"]
    assert edge_ways(",".join(WAYS)) == list(WAYS)
    with pytest.raises(InputError, match="the way is 'warp'; expected one of edge-only, cloud"):
        edge_ways("cloud,warp")


def test_prometheus_reads_its_text() -> None:
    found = table({CLOUD: [1.0], "ahead": [0.5]})
    families = {f.name: f for f in text_string_to_metric_families(prometheus_text(found))}
    speed = families["foresay_bench_edge_tokens_per_second"].samples
    assert {(s.labels["way"], s.labels["rtt_ms"]): s.value for s in speed} == {
        ("cloud", "20"): 4.0,
        ("ahead", "20"): 8.0,
    }
    lengths = families["foresay_bench_edge_accepted"]
    assert lengths.type == "histogram"
    buckets = [s.value for s in lengths.samples if s.name.endswith("_bucket")]
    assert buckets == [1, 2, 2, 1, 2, 2]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.links += [f"{name}={v}" for name, v in attrs if name in ("src", "href", "srcset")]


def test_the_page_needs_nothing_from_anywhere() -> None:
    found = table({CLOUD: [1.0], "ahead": [0.5]})
    found.about["model"] = "<script>alert(1)</script>"
    text = html_report(found)
    page = Page()
    page.feed(text)
    assert not page.links and not page.tags["script"] and not page.tags["link"]
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "") and "@import" not in text
    drawn = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawn) == page.tags["svg"] == 6
    for one in drawn:
        ElementTree.fromstring(one)
    assert "met" in text and "All texts are those" in text


def test_columns_are_fields_of_a_row() -> None:
    rows = table({CLOUD: [1.0], "ahead": [0.5]}).as_dict()["rows"]
    assert len(cells(rows[0])) == len(COLUMNS)
    assert set(COLUMNS) - rows[0].keys() == {"edge_rss_mb", "cloud_rss_mb", "kv_share"}


def test_every_column_is_explained() -> None:
    text = (Path(__file__).parents[2] / "docs" / "edge.md").read_text()
    section = text.partition("## How to measure")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| ([^|]+) \|", section.partition("| column |")[2], re.MULTILINE)
    named = {name for line in lines for name in line.split(", ")}
    heads = {head.removesuffix(" p50") for head, _ in COLUMNS.values()} - {"p95"}
    assert named == heads and "NOT MET" in section


def test_log_lines() -> None:
    lines = [json.loads(line) for line in table({CLOUD: [1.0]}).log_lines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert lines[0]["way"] == CLOUD and lines[0]["prompt"] == "q0"


def test_a_built_in_prompt_is_named_in_the_log_without_more_quotes() -> None:
    found = table({CLOUD: [1.0]})
    found.rows[0].answers[0].question = "'rename a variable'"
    assert json.loads(next(iter(found.log_lines())))["prompt"] == "rename a variable"


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = tmp_path / "model"
    model.mkdir()
    save_model(model)
    files = {name: tmp_path / name for name in ("log", "prometheus", "html")}
    given: list[Any] = [f"--{name}={path}" for name, path in files.items()]
    given += ["--model", model, "--rtt", "0,10", "--max-tokens", 12, "--memory-mb", 32]
    done = call("bench", "edge", "--json", "--per-category", 1, "--edge-model", model, *given)
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["identical"] and len(found["rows"]) == 14
    by_way = {row["way"]: row for row in found["rows"]}
    assert list(by_way) == list(WAYS)
    assert not by_way[EDGE_ONLY]["target_text"]
    assert by_way["ahead"]["rounds"] > 0 and by_way[CLOUD]["rounds"] == 0
    assert all(row["cloud_rss_mb"] > 50 for row in found["rows"])
    assert by_way["ahead"]["ttft_p50"] > 0.01  # a round trip
    assert all(path.stat().st_size > 1000 for path in files.values())
