"""Liars in a pipeline, and audits that find them: how soon, what is lost without, what they cost.

    python benchmarks/pipeline_audits.py            # all tables
    python benchmarks/pipeline_audits.py found --runs 40

Three stages of three peers, of which one each negates the activations (in the last stage, which has
none to hand on, the gradients of activations) of one micro-batch in ten. The peers are those of the
simulator: the protocol is the real one, with its codec, on a virtual clock. ``damage`` has them
train real layers, an MLP on the digits of scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from digits_train import digits
from torch import nn

from gossip.core import Effect, Payload, Peer, PipelineTask, events
from gossip.faults import ActivationFault, NegatedActivations, NegatedGradients
from gossip.pipelines import StageExecutor
from gossip.simulation.campaign.play import RATES, make_swarm
from gossip.simulation.schedules import Schedule
from gossip.simulation.world import Nemesis, StageTrainer, Swarm, payload_of_values

STAGES, MICRO_BATCHES, SHARE, AUDIT = (3, 3, 3), 27, 0.1, 0.05
LIARS = (1, 4, 7)
TRIES = 3.0  # times 1 / (p * r) micro-batches: all but e ** -3 of the liars should be found by then
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


def said(swarm: Swarm[Peer], event: str) -> Iterator[dict[str, Any]]:
    for host in swarm.hosts.values():
        yield from (report.fields for _, report in host.reports if report.event == event)


def train_until(swarm: Swarm[Peer], rounds: int) -> None:
    """Until so many steps are done."""
    while swarm.cores[0].rounds.round_id < rounds:
        swarm.run_for(0.001)


# --- how soon -------------------------------------------------------------------------------------


def micro_batches_until(swarm: Swarm[Peer], liar: int, round_id: int) -> int:
    """That the liar had counted in commits up to the round by which it was found."""
    observer = next(peer for peer in swarm.hosts if peer // 3 == liar // 3 and peer != liar)
    return sum(
        len(given.micro_batches)
        for each in swarm.commits(observer)
        for given in each.commit.contributors
        if given.peer == liar and each.commit.round_id <= round_id
    )


def found_in(seed: int) -> dict[int, int | None]:
    """Of each liar, the micro-batches until it was found; None: it was not, in three times as many
    as most need."""
    swarm = swarm_of(seed, AUDIT, lies())
    rounds = 1 + int(2 * TRIES / (AUDIT * SHARE) / (MICRO_BATCHES / 3))
    found: dict[int, int] = {}

    def over() -> bool:
        for told in said(swarm, "found_by_audit"):
            found.setdefault(told["subject"], told["round"])
        return set(LIARS) <= set(found) or swarm.cores[0].rounds.round_id >= rounds

    while not over():
        swarm.run_for(2.0)
    assert set(found) <= set(LIARS), f"seed {seed}: honest members are found: {found}"
    return {
        liar: micro_batches_until(swarm, liar, found[liar]) if liar in found else None
        for liar in LIARS
    }


def table_of_found(each: Sequence[dict[int, int | None]]) -> dict[str, Any]:
    """Of what ``found_in`` gave in some runs."""
    bound, runs = TRIES / (AUDIT * SHARE), len(each)
    numbers = [n for run in each for n in run.values()]
    known = sorted(n for n in numbers if n is not None)
    within = sum(n is not None and n <= bound for n in numbers)
    all_three = sum(all(n is not None and n <= bound for n in run.values()) for run in each)
    per_liar = {
        liar: sum(run[liar] is not None and (run[liar] or 0) <= bound for run in each)
        for liar in LIARS
    }
    return {
        "runs": runs,
        "bound": bound,
        "median": statistics.median(known),
        "mean": statistics.fmean(known),
        "most": known[-1],
        "never": numbers.count(None),
        "within": f"{within} of {len(numbers)}",
        "each liar within": per_liar,
        "all three within": f"{all_three} of {runs}",
    }


# --- what is lost without -------------------------------------------------------------------------


class DigitsStage(StageTrainer):
    """A stage of a real net in place of the toy: an update is a step of SGD."""

    def __post_init__(self) -> None:
        torch.manual_seed(self.stage)
        width, following = WIDTHS[self.stage : self.stage + 2]
        last = self.stage == self.stages - 1
        linear = nn.Linear(width, following)
        nn.init.kaiming_normal_(linear.weight)
        layers = [linear, *([] if last else [nn.ReLU()])]
        self.net = nn.Sequential(*layers)
        loss = nn.functional.cross_entropy if last else None
        self.executor = StageExecutor([self.net], self.stage, self.seed, loss)
        self.sizes = (sum(p.numel() for p in self.net.parameters()),)
        self.data, *_ = digits()
        super().__post_init__()
        flat = nn.utils.parameters_to_vector(self.net.parameters())
        self.parameters = flat.detach().numpy()

    def on_start(self, now: float) -> list[tuple[float, Any]]:
        sizes = [4 * SAMPLES * WIDTHS[at] for at in (self.stage, self.stage + 1)]
        ends = (self.stage > 0, self.stage < self.stages - 1)
        nbytes = tuple(size if there else 0 for size, there in zip(sizes, ends, strict=True))
        began = super().on_start(now)
        return [
            (after, events.Prepared(**{**_fields(event), "activation_bytes": nbytes}))
            if isinstance(event, events.Prepared)
            else (after, event)
            for after, event in began
        ]

    def on_effect(self, effect: Effect, now: float) -> list[tuple[float, Any]]:
        if isinstance(effect, events.StartRound):
            self.executor.reset()
        answers = super().on_effect(effect, now)
        if isinstance(effect, events.Apply):
            flat = torch.from_numpy(self.parameters.copy())
            nn.utils.vector_to_parameters(flat, self.net.parameters())
        return answers

    def _run(self, task: PipelineTask) -> list[tuple[float, Any]]:
        match task:
            case events.DropForward():
                self.executor.drop(task.micro_batch)
                return []
            case events.ResetSum():
                self.executor.reset()
                return []
            case _:
                return super()._run(task)

    def _batch(self, task: events.RunForward) -> tuple[torch.Tensor, torch.Tensor]:
        draw = np.random.default_rng([self.seed, task.round_id, task.micro_batch])
        rows = draw.integers(len(self.data), size=SAMPLES)
        x, y = self.data[rows]
        return x, y

    def _tensor(self, payload: Payload, at: int) -> torch.Tensor:
        return torch.tensor(payload.data).view(SAMPLES, WIDTHS[at])

    def _forward(self, task: events.RunForward) -> events.ForwardDone:
        x, y = self._batch(task)
        inputs = x if task.payload is None else self._tensor(task.payload, self.stage)
        run = self.executor.audit_forward if task.audit else self.executor.forward
        output = run(task.round_id, task.micro_batch, inputs, y)
        self.audits += task.audit
        payload = None
        if self.stage < self.stages - 1:
            payload = payload_of_values(output.flatten().tolist(), digest=True)
        told = self._lied("output", task, payload)
        return events.ForwardDone(
            task.round_id, task.micro_batch, task.attempt, told, audit=task.audit
        )

    def _backward(self, task: events.RunBackward) -> events.BackwardDone:
        given = None if task.payload is None else self._tensor(task.payload, self.stage + 1)
        if task.audit:
            back = self.executor.audit_backward(given)
        else:
            back = self.executor.backward(task.micro_batch, given)
            self.passes.append((task.round_id, task.micro_batch))
        payload = None
        if self.stage and back is not None:
            payload = payload_of_values(back.flatten().tolist(), digest=True)
        told = self._lied("gradient", task, payload)
        samples = 0 if task.audit else SAMPLES
        about = task.round_id, task.micro_batch, task.attempt, told, samples
        return events.BackwardDone(*about, self.executor.last_loss, audit=task.audit)

    def _collect(self, task: events.CollectUpdate) -> events.Contributed:
        assert self.executor.done == task.micro_batches
        samples = self.executor.samples
        payloads: tuple[Payload, ...] = ()
        if samples:
            grads = [p.grad.flatten() for p in self.net.parameters() if p.grad is not None]
            payloads = (payload_of_values((torch.cat(grads) * (-RATE / samples)).tolist()),)
        self._offered = events.Contributed(
            task.round_id,
            samples,
            payloads,
            loss=self.executor.loss,
            rates=self.rates if samples else (),
            micro_batches=task.micro_batches,
        )
        return self._offered


def _fields(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in type(event).__slots__}


def trained(seed: int, audit: float, faults: tuple[ActivationFault, ...], rounds: int) -> float:
    """Accuracy on the test set after so many steps."""
    swarm = swarm_of(seed, audit, faults)
    for peer, host in swarm.hosts.items():
        host.trainer = DigitsStage(
            peer,
            seed,
            compute_s=(0.4, 0.4),
            rates=RATES,
            stage=peer // 3,
            stages=len(STAGES),
            micro_batches=MICRO_BATCHES,
            lies=tuple(lie for lie in faults if peer in lie.peers),
        )
    train_until(swarm, rounds)
    net = nn.Sequential(*[swarm.trainer(peer).net for peer in (0, 3, 6)])  # type: ignore[attr-defined]
    _, x, y = digits()
    with torch.no_grad():
        return float((net(x).argmax(dim=1) == y).float().mean())


def table_of_damage(runs: int, rounds: int) -> dict[str, Any]:
    ways: dict[str, tuple[float, tuple[ActivationFault, ...]]] = {
        "nobody lies": (0.0, ()),
        "liars, no audits": (0.0, lies()),
        f"liars, audits of {AUDIT:.0%}": (AUDIT, lies()),
    }
    found: dict[str, Any] = {"rounds": rounds, "runs": runs}
    for name, (audit, faults) in ways.items():
        accuracies = [trained(seed, audit, faults, rounds) for seed in range(runs)]
        found[name] = {
            "mean": statistics.fmean(accuracies),
            "least": min(accuracies),
            "most": max(accuracies),
        }
    return found


# --- what they cost -------------------------------------------------------------------------------


def table_of_costs(rounds: int) -> dict[str, Any]:
    """Of honest peers whose passes take all the time: the length of a step, passes and payloads."""
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
    tables: dict[str, Callable[[], dict[str, Any]]] = {
        "found": lambda: table_of_found([found_in(seed) for seed in range(asked.runs)]),
        "damage": lambda: table_of_damage(max(1, asked.runs // 8), asked.rounds),
        "costs": lambda: table_of_costs(asked.rounds),
    }
    for name, table in tables.items():
        if asked.what in ("all", name):
            began = time.monotonic()
            print(name, json.dumps(table(), indent=1), flush=True)
            print(f"{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
