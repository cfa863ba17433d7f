"""The server: what it costs over the engine alone, and how it bears a crowd.

    python benchmarks/server.py [--only overhead,load] [--minutes 10] [--quick]

overhead   The same questions, 16 at once and streamed, through a server and straight through an
           engine, each in a process of its own, in rounds: one answers while the other idles, and
           who begins changes. Both have the same drafter and policy, and see the same questions in
           the same order, half of them greedy, half sampled with a seed, so every text must be
           the same; one difference and the script fails. Seconds are from the first question to
           the end of the last answer; the client's work shares the cores and is part of the
           server's time. A result is the median over rounds of (server's seconds / engine's
           seconds); both have written as many tokens. By default once with the policy adaptive,
           which measures the machine in each process for itself, so that the two may come to draft
           differently much, and once without drafts, where the steps are the same.
load       200 clients that stream short answers without a pause for 10 minutes. The memory of the
           server is sampled every second, and its slope is that of least squares after the
           warm-up, a fifth of the time. The bytes for keys and values and for history are fixed
           and small, so that both are full by then. Clients are a process of their own, whose
           share of a core is in the record. The same question must always get the same text.

Run it on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import record
from foresay.models import weights
from server_parts import EngineSettings, measure_load, measure_overhead

PARTS = ("overhead", "load")
BARS = {"overhead": 0.10, "slope": 1.0, "jain": 0.95}
LEAST_SECONDS = 300  # of load, before which memory still fills and its slope says nothing


def judged(parts: dict[str, Any]) -> list[dict[str, Any]]:
    """What must be reached: name, value, bar, and whether it is met."""
    lines: list[tuple[str, float, float, bool | None]] = []
    for policy, found in parts.get("overhead", {}).items():
        more, bar = round(found["times"] - 1, 4), BARS["overhead"]
        lines.append((f"what the server adds to the time, {policy}", more, bar, more < bar))
    if "load" in parts:
        load = parts["load"]
        lines.append(("errors", load["clients"]["errors"], 0, not load["clients"]["errors"]))
        slope = load["memory"]["slope_mb_per_minute"]
        flat = slope < BARS["slope"] if load["seconds"] >= LEAST_SECONDS else None
        lines.append(("slope of memory, MB/min", slope, BARS["slope"], flat))
        jain = load["clients"]["jain"]
        lines.append(("Jain's index of answers, least", jain, BARS["jain"], jain >= BARS["jain"]))
    return [dict(zip(("name", "value", "bar", "met"), line, strict=True)) for line in lines]


def show(figures: dict[str, Any]) -> None:
    parts = figures["parts"]
    for policy, found in parts.get("overhead", {}).items():
        print(f"\noverhead, {policy}, {found['at_once']} at once, {found['tokens']} tokens each")
        for turn in found["rounds"]:
            server, engine = turn["server"], turn["engine"]
            for name, one in (("server", server), ("engine", engine)):
                print(
                    f"  {name} {one['tokens_per_second']:7.1f} tokens/s, {one['steps']:3} steps, "
                    f"{one['drafted']:5} drafted",
                    end=";",
                )
            print(f"  {turn['times']:.3f}x the time, {turn['cpu_times']:.3f}x the processor's")
    if "load" in parts:
        load, clients = parts["load"], parts["load"]["clients"]
        each, first = clients["answers_per_client"], clients["first_token_seconds"]
        memory = load["memory"]
        print(f"\nload, {clients['clients']} clients for {load['seconds']:.0f} s")
        print(f"  {clients['answers']} answers, {clients['tokens_per_second']} tokens/s")
        print(
            f"  answers of a client {each['least']} to {each['most']}, first token after "
            f"{first['p50']} s (p50), {first['p99']} s (p99)"
        )
        print(
            f"  memory {memory['first_mb']} to {memory['last_mb']} MB after the warm-up, most "
            f"{memory['most_mb']}; slope {memory['slope_mb_per_minute']} MB/min (standard error "
            f"{memory['slope_error_mb_per_minute']}), of the lowest values "
            f"{memory['lowest_slope_mb_per_minute']}"
        )
        print(
            f"  cores in use: server {load['server_cpu_share']}, clients "
            f"{clients['generator_cpu_share']}; asked again {clients['asked_again']}"
        )
        for error, count in clients["first_errors"]:
            print(f"  {count} times: {error}")
    print()
    for line in figures["bars"]:
        met = {None: "too short to tell", True: "met", False: "NOT MET"}[line["met"]]
        print(f"  {line['name']:<42}{line['value']:9.4f}   bar {line['bar']:g}   {met}")
    print(f"  different texts: {figures['different_texts']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=weights.DEFAULT_MODEL)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--quick", action="store_true", help="few rounds, and a minute of load")
    parser.add_argument("--minutes", type=float, help="of load; 10 by default")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=16, help="questions in a round")
    parser.add_argument("--rounds", type=int, help="of overhead; 28 by default")
    parser.add_argument("--tokens", type=int, help="of each answer in a round; 64 by default")
    parser.add_argument("--memory-mb", type=int, default=512, help="for keys and values")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--drafter", default="suffix")
    parser.add_argument(
        "--policies", default="adaptive,none", help="of overhead; the first one also for load"
    )
    parser.add_argument("--json", action="store_true", help="print the record")
    record.add_option(parser)
    options = parser.parse_args()
    chosen = options.only.split(",")
    for name in chosen:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; choose from {', '.join(PARTS)}")
    folder = str(weights.find(options.model, convert=True))
    policies = options.policies.split(",")
    given = folder, options.memory_mb, options.dtype, options.drafter
    settings = EngineSettings(*given, policies[0])
    parts: dict[str, Any] = {}
    if "overhead" in chosen:
        rounds = options.rounds or (4 if options.quick else 28)
        tokens = options.tokens or (32 if options.quick else 64)
        size = options.at_once, rounds, tokens
        parts["overhead"] = {
            policy: measure_overhead(EngineSettings(*given, policy), *size) for policy in policies
        }
    if "load" in chosen:
        minutes = options.minutes or (1 if options.quick else 10)
        parts["load"] = measure_load(settings, options.clients, 60 * minutes)
    different = parts["load"]["clients"]["different_texts"] if "load" in parts else 0
    different += sum(found["different_texts"] for found in parts.get("overhead", {}).values())
    figures: dict[str, Any] = {
        "model": options.model,
        "settings": settings.as_dict(),
        "parts": parts,
        "bars": judged(parts),
        "different_texts": different,
    }
    # A part of the whole, or a quick one, must not take the place of the day's record.
    smaller = (options.minutes, options.rounds, options.tokens)
    quick = "-quick" if options.quick or any(smaller) else ""
    some = "" if set(chosen) == set(PARTS) else "-" + "-".join(chosen)
    path = record.write(f"serve{quick}{some}", figures, options.record)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    print(f"recorded in {path.name}")
    if different:
        sys.exit("texts differ between server and engine, or from one answer to the next")


if __name__ == "__main__":
    main()
