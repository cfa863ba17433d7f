"""Numbers under vLLM's names: the names, the labels, the bounds, and that they are true."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve.running import Running, numbers, raw_request, served, wait_for

BOTH = {"model_name", "engine"}
FIRST = (
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
)
EACH = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
WHOLE = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"

# Read in vLLM 0.32.0: v1/metrics/loggers.py, v1/metrics/buckets.py, v1/spec_decode/metrics.py.
PLAIN: dict[str, tuple[str, set[str]]] = {
    "vllm:num_requests_running": ("gauge", BOTH),
    "vllm:num_requests_waiting": ("gauge", BOTH),
    "vllm:kv_cache_usage_perc": ("gauge", BOTH),
    "vllm:num_preemptions": ("counter", BOTH),
    "vllm:prompt_tokens": ("counter", BOTH),
    "vllm:prompt_tokens_cached": ("counter", BOTH),
    "vllm:generation_tokens": ("counter", BOTH),
    "vllm:prefix_cache_queries": ("counter", BOTH),
    "vllm:prefix_cache_hits": ("counter", BOTH),
    "vllm:request_success": ("counter", BOTH | {"finished_reason"}),
    "vllm:spec_decode_num_drafts": ("counter", BOTH),
    "vllm:spec_decode_num_draft_tokens": ("counter", BOTH),
    "vllm:spec_decode_num_accepted_tokens": ("counter", BOTH),
    "vllm:spec_decode_num_accepted_tokens_per_pos": ("counter", BOTH | {"position"}),
}
HISTOGRAMS: dict[str, str | None] = {  # with their bounds; None: 1, 2, 5 and so on to the context
    "vllm:time_to_first_token_seconds": FIRST,
    "vllm:inter_token_latency_seconds": EACH,
    "vllm:request_time_per_output_token_seconds": EACH,
    "vllm:e2e_request_latency_seconds": WHOLE,
    "vllm:request_queue_time_seconds": WHOLE,
    "vllm:request_prefill_time_seconds": WHOLE,
    "vllm:request_decode_time_seconds": WHOLE,
    "vllm:request_inference_time_seconds": WHOLE,
    "vllm:request_prompt_tokens": None,
    "vllm:request_generation_tokens": None,
    "vllm:request_max_num_generation_tokens": None,
    "vllm:request_params_max_tokens": None,
    "vllm:request_params_n": "1 2 5 10 20",
}
PROCESS = {
    *("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_open_fds"),
    *("process_start_time_seconds", "process_cpu_seconds", "process_max_fds"),
}


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """Two answers at a time, and memory for little more than one long one."""
    with served(folder, options={"max_running": 2, "memory": 1 << 16}) as found:
        yield found


def test_names_labels_and_bounds_are_vllms(server: Running) -> None:
    server.good("/v1/completions", prompt="ab" * 9, max_tokens=9)
    text = server.http.get("/metrics").text
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert {name for name in found if name.startswith("vllm:")} == {*PLAIN, *HISTOGRAMS}
    for name, (kind, labels) in PLAIN.items():
        assert found[name].type == kind, name
        assert found[name].samples, name
        assert all(set(sample.labels) == labels for sample in found[name].samples), name
    for name, bounds in HISTOGRAMS.items():
        assert found[name].type == "histogram", name
        listed = [s.labels["le"] for s in found[name].samples if s.name.endswith("_bucket")]
        if bounds is None:
            wanted = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
            assert [float(le) for le in listed][:7] == wanted, name
        else:
            assert [float(le) for le in listed[:-1]] == [float(b) for b in bounds.split()], name
        assert listed[-1] == "+Inf" and all("." in le for le in listed[:-1])  # as vLLM writes them
        for sample in found[name].samples:
            assert set(sample.labels) - {"le"} == BOTH, name
    assert set(found) >= PROCESS


def test_they_are_true(server: Running) -> None:
    before = server.samples()
    begin = time.perf_counter()
    asked = {"temperature": 1.0, "ignore_eos": True, "seed": 3}
    server.good("/v1/completions", prompt=[[5, 6, 7]], max_tokens=20, **asked)
    server.good("/v1/completions", prompt=[[5, 6, 7, 8]], max_tokens=6, n=3, **asked)
    spent = time.perf_counter() - begin
    server.idle()
    after = server.samples()

    def more(name: str, **labels: str) -> float:
        labels |= {"model_name": "tiny", "engine": "0"}
        (old,), (new,) = (numbers(samples, name, **labels) for samples in (before, after))
        return new - old

    assert more("vllm:prompt_tokens_total") == 3 + 3 * 4
    assert more("vllm:generation_tokens_total") == 20 + 3 * 6
    assert more("vllm:request_success_total", finished_reason="length") == 4
    for reason in ("stop", "abort", "error", "repetition"):
        assert more("vllm:request_success_total", finished_reason=reason) == 0
    for name in ("time_to_first_token", "request_time_per_output_token", "e2e_request_latency"):
        assert more(f"vllm:{name}_seconds_count") == 4
    steps = more("vllm:inter_token_latency_seconds_count")
    assert 4 <= steps <= 19 + 3 * 5  # one for each step of an answer but its first
    queue, prefill, decode, inference, first, whole = (
        more(f"vllm:{name}_seconds_sum")
        for name in (
            *("request_queue_time", "request_prefill_time", "request_decode_time"),
            *("request_inference_time", "time_to_first_token", "e2e_request_latency"),
        )
    )
    assert queue > 0 and prefill > 0 and decode > 0
    assert queue + prefill == pytest.approx(first) and prefill + decode == pytest.approx(inference)
    assert first + decode <= whole < 4 * spent
    assert more("vllm:inter_token_latency_seconds_sum") == pytest.approx(decode)
    assert more("vllm:request_prompt_tokens_sum") == 15
    assert more("vllm:request_generation_tokens_sum") == 38
    assert more("vllm:request_max_num_generation_tokens_sum") == 26
    assert more("vllm:request_max_num_generation_tokens_count") == 2  # of prompts
    assert more("vllm:request_params_n_sum") == 1 + 3 * 3
    assert more("vllm:request_params_max_tokens_sum") == 20 + 3 * 6
    assert more("vllm:prefix_cache_queries_total") == 15
    hits = more("vllm:prefix_cache_hits_total")
    assert hits == more("vllm:prompt_tokens_cached_total") and 0 <= hits <= 15
    for name in ("num_requests_running", "num_requests_waiting"):
        assert numbers(after, f"vllm:{name}") == [0]


def test_what_runs_and_waits_is_told_while_it_does(server: Running) -> None:
    """Three are asked for, two may run, and the memory is not enough for two of them: one has to
    make room. Then the client leaves."""

    def ended() -> list[float]:
        name = "vllm:request_success_total"
        return [server.number(name, finished_reason=reason) for reason in ("abort", "length")]

    name = "vllm:num_preemptions_total"
    before, preempted = ended(), server.number(name)
    most = server.http.get("/v1/models").json()["data"][0]["max_model_len"] - 10
    client = raw_request(
        server,
        {"prompt": [[5, 6]], "max_tokens": most, "ignore_eos": True, "n": 3, "stream": True},
    )
    wait_for(lambda: server.number("vllm:num_requests_running") == 2)
    assert server.number("vllm:num_requests_waiting") == 1
    assert 0 < server.number("vllm:kv_cache_usage_perc") <= 1
    wait_for(lambda: server.number(name) > preempted, 60)
    client.close()
    wait_for(lambda: sum(ended()) == sum(before) + 3)
    assert ended()[0] > before[0]
    server.idle()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="process_* are read in /proc")
def test_the_process_is_this_one(server: Running) -> None:
    assert server.number("process_resident_memory_bytes") > 10 << 20
    assert server.number("process_open_fds") > 3
    used, spent = server.number("process_cpu_seconds_total"), os.times()
    assert 0 < used <= spent.user + spent.system + 1
