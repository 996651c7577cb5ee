"""Measures how many neighbourhoods per second the playground aggregates on this machine.

    python benchmarks/playground_kernels.py --peers 1000 10000 --threads 1 2

It prints one line of JSON for each number of peers, number of threads and rule. Each peer
aggregates its own model and those of 7 random peers, each with 9,610 parameters. ``together`` is
one call for all neighbourhoods, with reused memory for the aggregates, and ``fresh`` is the same
call with new memory. ``judged`` is one call that also returns the outlyingness. ``alone`` calls
the rule once for each peer and returns the same as ``together``. Each time is a median over
repetitions. The repetitions of the variants alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from gossip.aggregators import kernels, load
from gossip_lab.playground.neighbourhoods import aggregate_neighbourhoods

RULES = ("mean", "trimmed_mean", "median", "krum", "self_centered_clipping", "nnm+trimmed_mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", type=int, nargs="+", default=[1000])
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()])
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--size", type=int, default=8, help="updates of a neighbourhood")
    parser.add_argument("--numbers", type=int, default=9610, help="numbers of an update")
    parser.add_argument("--f", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    for peers in options.peers:
        for line in neighbourhood_rates(peers, options):
            print(json.dumps(line), flush=True)


def neighbourhood_rates(peers: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rates of each rule and number of threads, in neighbourhoods a second."""
    draw = torch.Generator().manual_seed(0)
    updates = torch.randn(peers, options.numbers, generator=draw)
    others = [torch.randperm(peers, generator=draw)[: options.size] for _ in range(peers)]
    members = torch.stack(others).sort(dim=1).values
    neighbours, out = members.tolist(), torch.zeros_like(updates)
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name in options.rules:
            rule = load(name)
            given = {"center": updates} if "center" in rule.needs else {}

            def alone(rule: Any = rule, centered: bool = "center" in given) -> None:
                for peer, rows in enumerate(members):
                    rule(updates[rows], f=options.f, center=updates[peer] if centered else None)

            def together(rule: Any = rule, given: Any = given, **more: Any) -> None:
                f = [options.f] * peers
                found = aggregate_neighbourhoods(rule, updates, neighbours, f=f, **given, **more)
                assert not any(found.reasons), found.reasons

            kinds = {
                "alone": alone,
                "together": lambda call=together: call(judged=False, out=out),
                "fresh": lambda call=together: call(judged=False, out=torch.empty_like(updates)),
                "judged": lambda call=together: call(judged=True, out=out),
            }
            yield {
                "rule": name,
                "peers": peers,
                "size": options.size,
                "numbers": options.numbers,
                "threads": threads,
                "kernels": kernels.backend(),
                **rates(kinds, peers, options.repetitions),
            }


def rates(kinds: Mapping[str, Callable[[], Any]], count: int, repetitions: int) -> dict[str, int]:
    """Return the number of items per second of each function. A function processes ``count`` items
    in a call."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for repetition in range(repetitions + 1):
        for kind, function in kinds.items():
            began = time.perf_counter()
            function()
            if repetition:  # not measured: the first call loads the kernels
                seconds[kind].append(time.perf_counter() - began)
    return {kind: round(count / statistics.median(values)) for kind, values in seconds.items()}


if __name__ == "__main__":
    main()
