"""Liars in a pipeline, and audits that find them: how soon, what is lost without, what they cost.

    python benchmarks/pipeline_audits.py            # all tables
    python benchmarks/pipeline_audits.py found --runs 40

Three stages of three peers, of which one each negates the activations (in the last stage, which has
none to hand on, the gradients of activations) of one micro-batch in ten. The peers are those of the
simulator: the protocol is the real one, with its codec, on a virtual clock. ``damage`` trains real
layers, an MLP on the digits of scikit-learn, with liars who are found when they were in the others.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from digits_train import digits
from torch import nn

from gossip.core import Peer
from gossip.faults import (
    ActivationFault,
    NegatedActivations,
    NegatedGradients,
    corrupt_pass_result,
)
from gossip_lab.simulation.campaign.play import make_swarm
from gossip_lab.simulation.schedules import Schedule
from gossip_lab.simulation.world import Nemesis, StageTrainer, Swarm
from gossip_pipelines.protocol import Router
from gossip_pipelines.stages import StageExecutor

STAGES, MICRO_BATCHES, SHARE, AUDIT = (3, 3, 3), 27, 0.1, 0.05
EACH = MICRO_BATCHES // 3  # micro-batches of a step that a member has
LIARS = (1, 4, 7)
MEMBERS = ((0, 1, 2), (3, 4, 5), (6, 7, 8))
TRIES = 3.0
"""Times 1 / (p * r) micro-batches. Each is wrong and audited with p * r, so the first such comes
within 3 / (p * r) for all but (1 - p * r) ** (3 / (p * r)) of the liars, which is 4.9 %."""
SAMPLES, RATE = 3, 0.3  # of a micro-batch; of a step
WIDTHS = (64, 32, 32, 10)


def lies() -> tuple[ActivationFault, ...]:
    return NegatedActivations(LIARS[:2], SHARE), NegatedGradients(LIARS[2:], SHARE)


def swarm_of(seed: int, audit: float, faults: tuple[ActivationFault, ...]) -> Swarm[Peer]:
    schedule = Schedule(
        seed,
        peers=sum(STAGES),
        stages=STAGES,
        micro_batches=MICRO_BATCHES,
        compute_s=(0.4, 0.4),
        audit=audit,
        faults=faults,
    ).checked()
    return make_swarm(schedule, Nemesis(schedule))


def stage_trainer(swarm: Swarm[Peer], peer: int) -> StageTrainer:
    trainer = swarm.trainer(peer)
    assert isinstance(trainer, StageTrainer)
    return trainer


def events_named(swarm: Swarm[Peer], event: str) -> Iterator[dict[str, Any]]:
    for host in swarm.hosts.values():
        yield from (report.fields for _, report in host.reports if report.event == event)


def train_until(swarm: Swarm[Peer], rounds: int) -> None:
    """Until so many steps are done."""
    while swarm.cores[0].rounds.round_id < rounds:
        swarm.run_for(0.001)


# --- how soon -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Until:
    """Micro-batches of a liar. None: it did not come to that in twice as many as most need.

    Attributes:
        audited: Until one is audited that is wrong.
        locked_up: Until it is in quarantine for it.
    """

    audited: int | None
    locked_up: int | None


def micro_batches_until(swarm: Swarm[Peer], liar: int, round_id: int | None) -> int | None:
    """Return how many of the liar's micro-batches the commits up to this round count."""
    if round_id is None:
        return None
    observer = next(peer for peer in swarm.hosts if peer // 3 == liar // 3 and peer != liar)
    return sum(
        len(given.micro_batches)
        for each in swarm.commits(observer)
        for given in each.commit.contributors
        if given.peer == liar and each.commit.round_id <= round_id
    )


def first_rounds(swarm: Swarm[Peer], event: str) -> dict[int, int]:
    """In which round each was first the subject of an event."""
    found: dict[int, int] = {}
    for told in events_named(swarm, event):
        found[told["subject"]] = min(told["round"], found.get(told["subject"], told["round"]))
    return found


def found_in(seed: int) -> dict[int, Until]:
    """Return for each liar how many of its micro-batches were counted until an audit differed, and
    until it was locked up."""
    swarm = swarm_of(seed, AUDIT, lies())
    rounds = 1 + int(2 * TRIES / (AUDIT * SHARE) / EACH)
    while swarm.cores[0].rounds.round_id < rounds:
        swarm.run_for(2.0)
        if set(LIARS) <= set(first_rounds(swarm, "found_by_audit")):
            break
    audited, found = first_rounds(swarm, "audit_differs"), first_rounds(swarm, "found_by_audit")
    assert set(audited) <= set(LIARS), f"seed {seed}: honest members are accused: {audited}"
    return {
        liar: Until(
            micro_batches_until(swarm, liar, audited.get(liar)),
            micro_batches_until(swarm, liar, found.get(liar)),
        )
        for liar in LIARS
    }


def expected_within(bound: int) -> tuple[float, float]:
    """The probabilities that a liar is audited, and that it is locked up, within so many of its
    micro-batches: when both others have served a round since, of which each serves a third."""
    chance, audited, locked_up = AUDIT * SHARE, 0.0, 0.0
    for number in range(1, bound + 1):
        first = chance * (1 - chance) ** (number - 1)
        rounds = bound // EACH - (number - 1) // EACH  # from that in which it is audited
        audited += first
        locked_up += first * (1 - 2 * (2 / 3) ** rounds + (1 / 3) ** rounds)
    return audited, locked_up


def share_of(hits: int, tries: int) -> str:
    """With the interval of 95 % confidence (Wilson 1927), as if all tries were independent."""
    share, z = hits / tries, 1.96
    middle = (share + z**2 / (2 * tries)) / (1 + z**2 / tries)
    apart = z * math.sqrt(share * (1 - share) / tries + (z / (2 * tries)) ** 2) / (1 + z**2 / tries)
    interval = f"{middle - apart:.1%} to {middle + apart:.1%}"
    return f"{hits} of {tries}: {share:.1%} ({interval})"


def table_of_found(each: Sequence[dict[int, Until]]) -> dict[str, Any]:
    """Return the statistics of several results of ``found_in``."""
    bound = round(TRIES / (AUDIT * SHARE))
    expected = expected_within(bound)
    found: dict[str, Any] = {"runs": len(each), "bound": bound}
    for at, what in enumerate(("audited", "locked_up")):
        numbers = [getattr(until, what) for run in each for until in run.values()]
        known = sorted(n for n in numbers if n is not None)
        found[what] = {
            "median": statistics.median(known),
            "mean": statistics.fmean(known),
            "most": known[-1],
            "never": numbers.count(None),
            "within": share_of(sum(n <= bound for n in known), len(numbers)),
            "expected within": f"{expected[at]:.1%}",
        }
    return found


# --- what is lost without -------------------------------------------------------------------------


def trained(
    seed: int, faults: Sequence[ActivationFault], until: Mapping[int, Until], rounds: int
) -> float:
    """Accuracy on the test set after so many steps, which are computed as the stages would, without
    the protocol between them.

    Args:
        until: The micro-batches of each liar until it is found: from then on others do its work.
    """
    nets = [_layers(stage) for stage in range(len(STAGES))]
    last = len(nets) - 1
    losses = [nn.functional.cross_entropy if at == last else None for at in range(len(nets))]
    pairs = enumerate(zip(nets, losses, strict=True))
    executors = [StageExecutor([net], at, seed, loss) for at, (net, loss) in pairs]
    router, (data, x, y) = Router(seed, MICRO_BATCHES), digits()
    draw, counted = np.random.default_rng(seed), Counter[int]()
    found: set[int] = set()
    for round_id in range(rounds):
        alike = [{p: 1.0 for p in members if p not in found} for members in MEMBERS]
        for number in range(MICRO_BATCHES):
            values, targets = data[draw.integers(len(data), size=SAMPLES)]
            route = [
                router.ranking(round_id, number, stage, weights)[0]
                for stage, weights in enumerate(alike)
            ]
            counted.update(route)
            for executor, peer in zip(executors, route, strict=True):
                values = executor.forward(round_id, number, values, targets)
                values = corrupt_pass_result(faults, "output", (peer, round_id, number), values)
            gradient: torch.Tensor | None = None
            for executor, peer in zip(executors[::-1], route[::-1], strict=True):
                gradient = executor.backward(number, gradient)
                if gradient is not None:
                    gradient = corrupt_pass_result(
                        faults, "gradient", (peer, round_id, number), gradient
                    )
        for executor, net in zip(executors, nets, strict=True):
            with torch.no_grad():
                for parameter in net.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=RATE / executor.samples)
            executor.reset()
        ends = {peer: each.locked_up for peer, each in until.items()}
        found = {peer for peer, most in ends.items() if most and counted[peer] >= most}
    with torch.no_grad():
        scores = nn.Sequential(*nets)(x)
    return float((scores.argmax(dim=1) == y).float().mean())


def _layers(stage: int) -> nn.Sequential:
    torch.manual_seed(stage)
    linear = nn.Linear(WIDTHS[stage], WIDTHS[stage + 1])
    nn.init.kaiming_normal_(linear.weight)
    return nn.Sequential(linear, *([] if stage == len(STAGES) - 1 else [nn.ReLU()]))


def table_of_damage(each: Sequence[dict[int, Until]], rounds: int) -> dict[str, Any]:
    """Args: ``each``: what ``found_in`` gave in as many runs."""
    found: dict[str, Any] = {"rounds": rounds, "runs": len(each)}
    for name in ("nobody lies", "liars, no audits", f"liars, audits of {AUDIT:.0%}"):
        told = () if name == "nobody lies" else lies()
        accuracies = [
            trained(seed, told, until if "of" in name else {}, rounds)
            for seed, until in enumerate(each)
        ]
        found[name] = {
            "mean": statistics.fmean(accuracies),
            "least": min(accuracies),
            "most": max(accuracies),
        }
    return found


# --- what they cost -------------------------------------------------------------------------------


def table_of_costs(rounds: int) -> dict[str, Any]:
    """Return the costs of audits among honest peers whose passes take all the time: the length of a
    step, audits for each micro-batch, and audits given up."""
    found: dict[str, Any] = {"rounds": rounds}
    for audit in (0.0, AUDIT, 4 * AUDIT):
        swarm = swarm_of(0, audit, ())
        train_until(swarm, 1)
        began = swarm.now
        train_until(swarm, rounds + 1)
        step_s = (swarm.now - began) / rounds
        trainers = [stage_trainer(swarm, peer) for peer in swarm.hosts]
        own = sum(len(trainer.passes) for trainer in trainers)
        audits = sum(trainer.audits for trainer in trainers)
        events_of = Counter(r.event for host in swarm.hosts.values() for _, r in host.reports)
        found[f"{audit:g}"] = {
            "step_s": step_s,
            "audits_per_micro_batch": audits / own,
            "given_up": events_of["audit_given_up"],
        }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", nargs="?", choices=("all", "found", "damage", "costs"), default="all"
    )
    parser.add_argument(
        "--runs", type=int, default=40, help="of the liars; of the accuracy an eighth"
    )
    parser.add_argument("--rounds", type=int, default=120, help="of a training")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    runs = functools.cache(lambda few: [found_in(seed) for seed in range(asked.runs // few)])
    tables: dict[str, Callable[[], dict[str, Any]]] = {
        "found": lambda: table_of_found(runs(1)),
        "damage": lambda: table_of_damage(runs(4), asked.rounds),
        "costs": lambda: table_of_costs(asked.rounds),
    }
    for name, table in tables.items():
        if asked.what in ("all", name):
            began = time.monotonic()
            print(name, json.dumps(table(), indent=1), flush=True)
            print(f"{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
