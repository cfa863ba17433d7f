"""Step-cost tables: exact at their points, monotone between them, read strictly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.recorded_groups import table
from foresay.bench.measure_costs import measure_table
from foresay.bench.step_costs import CostPoint, StepTable, bundled_tables, read_table
from foresay.errors import InputError, TraceError
from tiny import one_thread, save_model


def seconds(costs: StepTable, point: CostPoint) -> float:
    s = point.sample()
    return costs.seconds(s.requests, s.rows, s.keys, s.reads)


@pytest.mark.parametrize("name", bundled_tables())
def test_the_bundled_tables(name: str) -> None:
    costs = read_table(name)
    assert costs.measured is (name == "h200-8b")
    assert costs.error < 0.03
    for point in costs.points:
        assert seconds(costs, point) == pytest.approx(point.seconds, rel=0.02)
    assert any(point.measured for point in costs.points)


def test_the_32b_roofline_meets_what_was_measured() -> None:
    """The assumed points are made by a formula; two points are known, and it must not miss them."""
    costs = read_table("h200-32b")
    for point in costs.points:
        if point.measured:
            roofline = (
                65.5e9 / 4.3e12 + 64 * 27.2e-6 + point.requests * point.context * 2**18 / 4e12
            )
            assert roofline == pytest.approx(point.seconds, rel=0.05)


@pytest.mark.parametrize("name", bundled_tables())
def test_more_of_anything_never_takes_less(name: str) -> None:
    costs, random = read_table(name), np.random.default_rng(0)
    for _ in range(300):
        requests = int(random.integers(1, 200))
        rows = requests + int(random.integers(0, 600))
        keys = int(requests * random.integers(1, 20_000))
        reads = keys + int((rows - requests) * random.integers(1, 20_000))
        here = costs.seconds(requests, rows, keys, reads)
        for more in ((1, 0, 0, 0), (0, 7, 0, 0), (0, 0, 900, 0), (0, 0, 0, 9000), (3, 5, 70, 90)):
            a, b, c, d = more
            assert costs.seconds(requests + a, rows + b, keys + c, reads + d) >= here


def test_points_that_are_not_monotone_are_evened_out() -> None:
    points = (CostPoint(1, 1, 64, 0.01), CostPoint(1, 2, 64, 0.03), CostPoint(1, 4, 64, 0.02))
    costs = StepTable("t", "a", "b", points)
    found = [seconds(costs, point) for point in points]
    assert found == sorted(found) and found[1] == found[2] == pytest.approx(0.025)


def test_prefill_has_its_own_times_where_they_are_known() -> None:
    plain = table()
    points, least = plain.points, min(point.seconds for point in plain.points)
    own = StepTable("t", "a", "b", points, ((16, 0.02), (64, 0.05)))
    assert own.seconds(0, 0, 0, 0, 64) == 0.05 and own.seconds(0, 0, 0, 0, 40) == 0.035
    assert own.seconds(0, 0, 0, 0, 128) == pytest.approx(0.1)
    together = own.seconds(1, 1, 32, 33, 64)
    assert together == pytest.approx(own.seconds(1, 1, 32, 33) + 0.05 - least)
    assert plain.seconds(1, 1, 32, 33, 64) == plain.seconds(1, 65, 32, 33)


def test_stretched_texts_cost_as_longer_ones() -> None:
    costs = table()
    far = costs.stretched(8.0)
    for point in costs.points:
        short = point._replace(context=point.context / 8)
        assert seconds(far, short) == pytest.approx(point.seconds, rel=0.05)
    assert costs.measured and not far.measured and costs.stretched(1.0) is costs
    with pytest.raises(InputError, match="stretch is 0"):
        costs.stretched(0)


def test_a_table_is_written_and_read(tmp_path: Path) -> None:
    costs = StepTable("t", "a", "b", table().points, ((16, 0.02),), 1e-5)
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(costs.as_dict()))
    again = read_table(path)
    assert (again.points, again.prefill, again.draft_seconds) == (costs.points, ((16, 0.02),), 1e-5)
    assert again.measured


ROW = {"requests": 1, "rows": 1, "context": 64, "seconds": 0.01}
GOOD = {"about": "a", "source": "b", "measured": True, "rows": [ROW]}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[", "is not JSON"),
        ([], "is a list; expected a JSON object"),
        ({"rows": []}, "'about' is None"),
        ({**GOOD, "measured": 1}, "'measured' is 1"),
        ({**GOOD, "rows": []}, "'rows' is empty"),
        ({**GOOD, "rows": [{**ROW, "rows": 1.5}]}, "'rows' is 1.5; expected a whole number"),
        ({**GOOD, "rows": [{**ROW, "requests": 3}]}, "1 rows for 3 requests; expected at least 1"),
        ({**GOOD, "rows": [{**ROW, "seconds": 0}]}, "'seconds' is 0; expected a number above 0"),
        ({**GOOD, "rows": [{**ROW, "seconds": True}]}, "'seconds' is True"),
        ({**GOOD, "rows": [7]}, "'requests' is None"),
        ({**GOOD, "rows": [{**ROW, "measured": "yes"}]}, "'measured' is 'yes'"),
        ({**GOOD, "prefill": {}}, "'prefill' is {}"),
        ({**GOOD, "prefill": [{"rows": 4}]}, "'seconds' is None"),
        ({**GOOD, "draft_seconds": "fast"}, "'draft_seconds' is 'fast'"),
    ],
)
def test_wrong_tables(tmp_path: Path, content: Any, sentence: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TraceError) as error:
        read_table(path)
    assert sentence in str(error.value)


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(InputError, match="no step costs 'h100'; expected h200-32b, h200-8b, or"):
        read_table("h100")


def test_measuring_our_own_engine(tmp_path: Path) -> None:
    from foresay.engine.llm import LLM

    save_model(tmp_path / "model")
    with one_thread():
        target = LLM(tmp_path / "model", drafter=None, dtype="float32").target
        found = measure_table(
            target, "t", "tiny", batches=(1, 3), contexts=(32,), nodes=(0, 3), repeats=2
        )
        with pytest.raises(InputError, match="takes texts of 4096 tokens"):
            measure_table(target, "t", "tiny", contexts=(5000,))
    assert [(p.requests, p.rows) for p in found.points] == [(1, 1), (1, 4), (3, 3), (3, 12)]
    assert all(p.seconds > 0 and 32 < p.context < 50 for p in found.points)
    assert found.measured and [rows for rows, _ in found.prefill] == [16, 64, 256, 512]
    assert found.draft_seconds is not None and 0 < found.draft_seconds < 0.1
