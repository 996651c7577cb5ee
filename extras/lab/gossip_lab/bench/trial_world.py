"""A trial as a world of the playground, in rolling rounds of the fast engine without a clock. All
updates arrive in time, and Byzantine workers know the honest updates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from gossip.aggregators import Verdict, registry, senders
from gossip.core import Rejection
from gossip.errors import AggregationError, ConfigError
from gossip.faults import ByzantineFault
from gossip.run import fitting
from gossip_lab import data_sets
from gossip_lab.data_sets import TrainingData
from gossip_lab.playground import World, fast_rolling, mishaps

from .encoded import EncodedLink
from .trials import NO_ATTACK, RECORD, Trial, TrialResult, read_attack

EVALUATIONS = 5
"""Number of tests at the end of a run; the accuracy is their mean. The tests are a fiftieth of the
rounds apart."""


def train(trial: Trial, data: TrainingData) -> TrialResult:
    """Run a trial. Equal trials have equal results. All trials with the same seed draw the same
    samples for a worker.

    If the rule needs more updates or an input that is missing, the result has the reason. If the
    rule raises an exception under attack, the round makes no step.

    Raises: ConfigError: The rule, attack or sender is unknown, or a size is invalid. Other
    exceptions of the rule without attack are raised unchanged.
    """
    f = trial.tolerated
    sizes = trial.rounds, trial.batch, trial.reference, trial.local_steps
    if not 0 <= trial.f < trial.n or min(sizes) < 1 or f < 0:
        raise ConfigError(
            f"{trial.f} Byzantine of {trial.n} workers, {f} declared, {trial.rounds} rounds: no "
            "training is possible"
        )
    rule = registry.load(trial.rule)
    if trial.n < rule.at_least(f):
        return TrialResult(None, f"needs {rule.at_least(f)} updates for f = {f}")
    try:
        if trial.encoding:
            fitting.check_encoding(trial.encoding, rule)
        if trial.has_local_steps:
            rule.check_model_differences()
    except ConfigError as error:
        return TrialResult(None, f"{error}: {error.hint}")
    world = TrialWorld(trial, data)
    try:
        world.try_rule()
    except AggregationError as error:
        return TrialResult(None, str(error))
    except ConfigError as error:
        if "center" in rule.needs:
            return TrialResult(None, "for gossip rounds: it needs an own update to start from")
        raise error
    return world.run()


class TrialWorld(fast_rolling.RollingWorld):
    """World of a trial. In addition to other worlds, it has senders, encodings and weight decay.
    The server has samples for rules with a judge. Attackers know everything that the server
    knows."""

    def __init__(self, trial: Trial, data: TrainingData) -> None:
        data = data_sets.choose_tests(data, trial.test_samples)
        self._held_out: TrainingData | None = None
        if int(trial.validation * len(data.labels)):
            data, self._held_out = data_sets.hold_out(data, trial.validation, trial.seed)
        world = World(
            peers=trial.n,
            split=trial.split,
            model=trial.model,
            aggregator=trial.rule,
            f=trial.tolerated,
            batch=trial.batch,
            lr=trial.lr,
            local_steps=trial.local_steps,
            outer=trial.outer,
            reference_samples=trial.reference,
            seed=trial.seed,
        )
        parts = world.build(data, _mishaps_of(trial), trial.split_seed)
        task = replace(parts.task, weight_decay=trial.weight_decay)
        super().__init__(replace(parts, task=task))
        self._trial, self._sender = trial, senders.load(trial.sender)
        self._memories: list[senders.Memory | None] = [None] * trial.n
        self._link: EncodedLink | None = None
        if trial.encoding:
            shapes, honest = task.cohort.shapes, int(self._honest.sum())
            self._link = EncodedLink(trial.encoding, shapes, honest, trial.n, trial.seed)
        self._ever_locked: frozenset[int] = frozenset()
        self._trouble = ""
        self._skipped = 0
        self._loss = 0.0
        self._records: dict[str, list[Any]] = {name: [] for name in RECORD} if trial.record else {}

    def try_rule(self) -> None:
        """Call the rule once with honest updates. An error before any attack comes from the rule or
        its options."""
        everybody = np.arange(self._trial.n)
        updates = self._task.compute_updates(self._here.expand(len(everybody), -1), everybody, 0)
        self._parts.rule.explain(updates, **self._rule_inputs(self._settings.f, "first"))

    def run(self) -> TrialResult:
        """Play all rounds."""
        trial = self._trial
        tested: list[tuple[float, float, Tensor]] = []
        curve: list[tuple[int, float]] = []
        everybody, apart = np.arange(trial.n), max(1, trial.rounds // 50)
        ends = range(trial.rounds, max(0, trial.rounds - EVALUATIONS * apart), -apart)
        points = range(trial.every, trial.rounds + 1, trial.every) if trial.every else range(0)
        for made in range(1, trial.rounds + 1):
            self._learn(everybody, self._locked_peers())
            self._round_id = made
            if not bool(torch.isfinite(self._here).all()):
                tested = [(0.0, 0.0, torch.zeros(1))]
                curve += [(later, 0.0) for later in points if later >= made]
                break
            if made in points or made in ends:
                accuracy, by_class = self._test(self._task.data)
                held_out = 0.0 if self._held_out is None else self._test(self._held_out)[0]
                if made in points:
                    curve.append((made, accuracy))
                if made in ends:
                    tested.append((accuracy, held_out, by_class))
        accuracies, validated, classes = zip(*tested, strict=True)
        byzantine = sum(not self._honest[worker] for worker in self._ever_locked)
        return TrialResult(
            sum(accuracies) / len(accuracies),
            skipped=self._skipped,
            trouble=self._trouble,
            worst_class=float(torch.stack(classes).mean(dim=0).min()),
            honest_quarantined=len(self._ever_locked) - byzantine,
            liars_quarantined=byzantine,
            validation=None if self._held_out is None else sum(validated) / len(validated),
            curve=tuple(curve),
            records=self._records,
        )

    def _test(self, data: TrainingData) -> tuple[float, Tensor]:
        """Return the accuracy on the test samples, and on each of their classes,
        ``(classes,)``."""
        labels = data.test_labels
        right = self._task.cohort.logits(self._here, data.test_images).argmax(dim=1) == labels
        of_class = labels.bincount()
        by_class = labels[right].bincount(minlength=len(of_class)) / of_class
        return float(right.float().mean()), by_class[of_class > 0]

    # --- a round ----------------------------------------------------------------------------------

    def _updates_of(self, peers: NDArray[np.int64]) -> Tensor:
        if (lr := self._trial.lr_in(self._round_id)) != self._task.lr:
            self._task = replace(self._task, lr=lr)
        if self._records:
            self._loss = self._honest_loss()
        updates = self._compute_updates(peers)
        if self._sender:
            for worker, update in enumerate(updates):
                sent, self._memories[worker] = self._sender(update.clone(), self._memories[worker])
                update.copy_(sent)
        if self._parts.mishaps.byzantine:
            rule = self._parts.rule
            inputs = self._rule_inputs(self._settings.f, "spy")
            self._attackers.inform(partial(rule, **inputs), self._locked_peers())
            self._attackers.falsify(updates, np.arange(len(peers)), peers, self._round_id)
        return updates if self._link is None else self._link.pass_updates(updates, self._round_id)

    def _honest_loss(self) -> float:
        """Return the mean loss of the samples that the honest workers use in this round."""
        chosen = self._task.draw_batches(np.flatnonzero(self._honest), self._round_id).flatten()
        data = self._task.data
        logits = self._task.cohort.logits(self._here, data.images[chosen])
        return float(cross_entropy(logits, data.labels[chosen]))

    def _explain(self, rows: Tensor, inputs: dict[str, Any]) -> Verdict | None:
        verdict = super()._explain(rows, inputs)
        if verdict is None or self._link is None:
            return verdict
        passed = self._link.pass_result(verdict.aggregate, self._round_id)
        return replace(verdict, aggregate=passed)

    def _lose_round(self, reason: str) -> None:
        super()._lose_round(reason)
        self._skipped += 1
        self._trouble = self._trouble or reason

    def _observe(
        self, verdict: Verdict | None, taken: NDArray[np.int64], rejected: list[Rejection]
    ) -> None:
        workers = taken.tolist()
        if self._link is not None:
            self._link.settle(self._round_id, [] if verdict is None else workers)
        if self._trial.trust:
            super()._observe(verdict, taken, rejected)
            self._ever_locked |= self._trust.quarantined()
        if self._records:
            self._record(verdict, workers, rejected)

    def _record(
        self, verdict: Verdict | None, workers: list[int], rejected: Iterable[Rejection]
    ) -> None:
        """Append this round's values of each worker to the records."""
        weights = {}
        far = {each.peer: each.outlyingness for each in rejected if each.reason == "quarantined"}
        if verdict is not None:
            weights = dict(zip(workers, verdict.weights.tolist(), strict=True))
            far |= dict(zip(workers, verdict.outlyingness.tolist(), strict=True))
        for worker, is_honest in enumerate(self._honest.tolist()):
            trust = self._trust.score(worker) if self._trial.trust else None
            judged = weights.get(worker, 0.0), far.get(worker), trust
            values = self._round_id, worker, not is_honest, *judged, self._loss
            for column, value in zip(self._records.values(), values, strict=True):
                column.append(value)

    def _step(self, aggregate: Tensor) -> None:
        if self._task.outer is None and self._task.weight_decay:
            aggregate = aggregate + self._task.weight_decay * self._here
        super()._step(aggregate)


def _mishaps_of(trial: Trial) -> mishaps.Mishaps:
    name, strength = read_attack(trial.attack)
    if name == NO_ATTACK or not trial.f:
        return mishaps.Mishaps()
    peers = tuple(range(trial.n - trial.f, trial.n))
    return mishaps.Mishaps(attacks=(ByzantineFault(name, peers, strength),))
