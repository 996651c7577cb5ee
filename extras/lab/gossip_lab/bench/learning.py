"""Accuracy of a rule under an attack: some workers, plain SGD, one process, no network; Byzantine
workers see the updates of the honest ones.

outcome = train(Trial(rule="krum", attack="alie", n=10, f=2), digits) print(outcome.accuracy)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gossip.aggregators import BoundRule, Verdict, attacks, outer, registry, senders
from gossip.core import TRUST_ROUNDS, Contribution, Rejection, TrustSettings, TrustTable
from gossip.errors import AggregationError, ConfigError, UnknownName
from gossip.run import fitting

from . import models, splits
from .data_sets import TrainingData
from .encoded import EncodedLink
from .models import generator_of

NO_ATTACK = "none"
EVALUATIONS = 5
"""The accuracy of a run is the mean of this many tests at its end, one every fiftieth of the
run."""


REFERENCE = 256
"""Samples with which a rule with a judge judges, as in a run."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. All workers but the last f are honest.

    Attributes:
        rule: As ``registry.load`` takes it.
        attack: ``name``, ``name*strength``, ``label_flip`` or ``none``: with ``none`` the last f
            are honest too. An attack of the user is ``file.py:name``.
        n: Workers, Byzantine ones included.
        f: Byzantine workers.
        batch: Samples of a worker in a round.
        hidden: Units of the one hidden layer of the model ``mlp``.
        sender: How each worker transforms its update, as ``senders.load`` takes it. Attacks use the
            transformed updates.
        split: How the honest workers share the samples, as ``splits.split`` takes it; Byzantine
            workers draw from all of them.
        declared_f: The f of the rule and the trust table; None: the true one.
        trust: Whether the trust table of a run judges the workers by the rule's verdicts: the rule
            does not get the updates of those in quarantine.
        model: As ``models.make`` takes it.
        weight_decay: Of plain SGD: this multiple of the parameters is added to the aggregate.
        reference: Samples with which a rule with a judge judges in a round.
        validation: Share of the training samples that is held out, for a choice among settings.
        test_samples: Samples of a test, drawn once and the same in all runs; 0: all.
        every: Rounds between the tests that make a curve; 0: none is made.
        local_steps: Steps of plain SGD that each worker takes by itself in a round. Updates are
            model differences then.
        outer: The outer step after them, as ``outer.load`` takes it; empty: updates are gradients.
        milestones: Rounds, separated by blanks, from which on the learning rate is multiplied by
            ``lr_decay`` (once more at each).
        split_seed: Seed of the split; None: that of the run.
        encoding: Encoding of updates and results, as ``load_encoding`` takes it; empty: none.
        record: Whether the result has a record of each worker in each round.
    """

    rule: str
    attack: str = NO_ATTACK
    n: int = 10
    f: int = 2
    seed: int = 0
    rounds: int = 150
    batch: int = 32
    lr: float = 0.5
    hidden: int = 32
    sender: str = ""
    split: str = splits.IID
    declared_f: int | None = None
    trust: bool = False
    model: str = models.MLP
    weight_decay: float = 0.0
    reference: int = REFERENCE
    validation: float = 0.0
    test_samples: int = 0
    every: int = 0
    local_steps: int = 1
    outer: str = ""
    milestones: str = ""
    lr_decay: float = 1.0
    split_seed: int | None = None
    encoding: str = ""
    record: bool = False

    def lr_in(self, round_id: int) -> float:
        """Return the learning rate of plain SGD in a round."""
        passed = sum(round_id >= int(milestone) for milestone in self.milestones.split())
        return self.lr * self.lr_decay**passed

    @property
    def has_local_steps(self) -> bool:
        """Whether updates are model differences, as in a run."""
        return self.local_steps > 1 or bool(self.outer)

    @property
    def tolerated(self) -> int:
        """The f of the rule."""
        return self.f if self.declared_f is None else self.declared_f


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of a trial.

    Attributes:
        accuracy: On the test samples, 0 to 1: the mean of the last tests. The accuracy of a model
            that is not finite is 0.
        refused: Why the rule cannot be run at all, even without attack; then the accuracy is None.
        skipped: Rounds without a step: too few finite updates were left, or the rule raised, or its
            aggregate was not finite.
        trouble: Why the first of these rounds made no step.
        arithmetic: Software and processor that decide how sums are rounded, see
            ``trials.arithmetic``; empty if they were not recorded.
        worst_class: The lowest accuracy on the test samples of one class; the mean of the last
            tests, as in ``accuracy``.
        honest_quarantined: Honest workers that were ever in quarantine.
        liars_quarantined: Byzantine workers that were ever in quarantine.
        validation: The accuracy on the held-out samples, as in ``accuracy``; None if no samples are
            held out.
        curve: Rounds made, and the accuracy on the test samples after them.
        records: Columns of the records, if they were requested: names as in ``RECORD`` -> values.
    """

    accuracy: float | None
    refused: str = ""
    skipped: int = 0
    trouble: str = ""
    arithmetic: str = ""
    worst_class: float | None = None
    honest_quarantined: int = 0
    liars_quarantined: int = 0
    validation: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    records: Mapping[str, list[Any]] = field(default_factory=dict, hash=False)


RECORD = ("round", "worker", "byzantine", "weight", "outlyingness", "trust_score", "loss")
"""Columns of a record: weight of the update in the aggregate, its outlyingness (multiples of the
typical one; none if the rule did not get it), trust score after the round (0 to 1; none without a
trust table), and mean loss of the honest samples at the parameters before the step."""


def spelt(attack: str) -> str:
    """Return an attack in its canonical spelling; a minus in the strength is one."""
    name, star, strength = attack.strip().partition("*")
    plain = name if attacks.place_of(name) else name.replace("-", "_")
    return plain + star + strength


def read_attack(text: str) -> tuple[str, float | None]:
    """Return name and strength of ``name*strength``. Raises: ConfigError: There is no such attack,
    or it is for gossip rounds only."""
    name, star, strength = spelt(text).partition("*")
    if name in (NO_ATTACK, *attacks.DATA_ATTACKS):
        if star:
            raise ConfigError(f"attack {text!r}: {name} has no strength to set", f"write {name}")
        return name, None
    try:
        value = float(strength) if star else None
    except ValueError:
        raise ConfigError(
            f"attack {text!r}: {strength!r} is not a number", f"write {name}*10"
        ) from None
    if not attacks.place_of(name) and name not in attacks.names():
        raise UnknownName("attack", name, (NO_ATTACK, *attacks.names(), *attacks.DATA_ATTACKS))
    if attacks.make(name, value).tells_each:
        raise ConfigError(
            f"{name} sends each receiver another update, so it is for gossip rounds only",
            "leave it out here",
        )
    return name, value


def train(
    trial: Trial,
    data: TrainingData,
    run_of: Callable[[Trial, BoundRule, TrainingData], _Run] | None = None,
) -> TrialResult:
    """Run a trial. The same trial gives the same outcome, and all trials of a seed draw the same
    samples for a worker.

    If a rule cannot handle so few updates or lacks an input, that is an outcome. So is an exception
    of the rule under attack, which costs that round.

    Args:
        run_of: Class that runs the trial in place of ``_Run``.

    Raises: ConfigError: Rule, attack or sender is unknown, or the numbers are invalid. Other
    exceptions of the rule without attack are raised unchanged.
    """
    f = trial.tolerated
    sizes = trial.rounds, trial.batch, trial.hidden, trial.reference, trial.local_steps
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
            fitting.check_encoding(trial.encoding, rule, rolling=True)
        if trial.has_local_steps:
            rule.check_model_differences()
    except ConfigError as error:
        return TrialResult(None, f"{error}: {error.hint}")
    run = (run_of or _Run)(trial, rule, data)
    try:
        run.try_rule()
    except AggregationError as error:
        return TrialResult(None, str(error))
    except ConfigError as error:
        if "center" in rule.needs:
            return TrialResult(None, "for gossip rounds: it needs an own update to start from")
        raise error
    return run.run()


class _Run:
    def __init__(self, trial: Trial, rule: BoundRule, data: TrainingData) -> None:
        self.trial, self.rule = trial, rule
        self.data, self.held_out = _held_out(_fewer_tests(data, trial.test_samples), trial)
        data = self.data
        self.model = self._made_model()
        self.name, strength = read_attack(trial.attack)
        self.attackers = 0 if self.name == NO_ATTACK else trial.f
        by_vector = self.name not in (NO_ATTACK, *attacks.DATA_ATTACKS)
        self.attack = attacks.make(self.name, strength, trial.seed) if by_vector else None
        self.sender = senders.load(trial.sender)
        self.memories: list[senders.Memory | None] = [None] * trial.n
        self.chances = [generator_of(f"worker/{trial.seed}/{worker}") for worker in range(trial.n)]
        self.judge, self.spy = (
            generator_of(f"judge/{trial.seed}"),
            generator_of(f"spy/{trial.seed}"),
        )
        self.honest = trial.n - self.attackers
        seed = trial.seed if trial.split_seed is None else trial.split_seed
        samples = data.labels, data.images
        parts = splits.split(trial.split, samples, self.honest, trial.batch, seed)
        self.shares = [*parts, *[torch.arange(len(data.labels))] * self.attackers]
        updates_for = [rule.at_least(f) for f in range(trial.tolerated + 1)]
        self.trust = (
            TrustTable(TrustSettings(), trial.tolerated, updates_for, judged=rule.judges_directions)
            if trial.trust
            else None
        )
        self.locked: frozenset[int] = frozenset()  # in quarantine in this round
        self.ever_locked: frozenset[int] = frozenset()
        self.trouble = ""
        # inputs of a rule with a memory: the last result, and the state that it returned with it
        self.kept: dict[str, Any] = {}
        self.lengths: deque[float] = deque([0.0], maxlen=TRUST_ROUNDS)
        self.outer = outer.load(trial.outer or outer.NESTEROV) if trial.has_local_steps else None
        self.momentum: Tensor | None = None  # of the outer step
        self.lr = trial.lr
        self.rate = trial.lr if self.outer is None else self.outer.lr
        self.available: dict[str, Any] = {}  # inputs that the rule could use in the last round
        self.measured: list[Rejection] = []  # of those in quarantine, in this round
        self.records: dict[str, list[Any]] = {name: [] for name in RECORD} if trial.record else {}
        self.loss = 0.0  # of the honest samples of this round, if it is recorded
        self.link = (
            EncodedLink(trial.encoding, self.model.shapes, self.honest, trial.n, trial.seed)
            if trial.encoding
            else None
        )

    def _made_model(self) -> models.Model:
        trial, data = self.trial, self.data
        features = data.images.shape[1]
        return models.make(trial.model, features, data.classes, trial.hidden, trial.seed)

    def try_rule(self) -> None:
        """Call the rule once with honest updates, before any attack: an error then is one of the
        rule or its options."""
        generator = generator_of(f"first/{self.trial.seed}")
        chosen = _draw(len(self.data.labels), self.trial.n * self.trial.batch, generator).view(
            self.trial.n, -1
        )
        updates = self.model.gradients(self.data.images[chosen], self.data.labels[chosen])
        self.rule.explain(
            updates,
            f=self.trial.tolerated,
            learning_rate=self.rate,
            round_id=0,
            **self._server(generator),
        )

    def run(self) -> TrialResult:
        trial, skipped = self.trial, 0
        tested: list[tuple[float, float, Tensor]] = []
        curve: list[tuple[int, float]] = []
        apart = max(1, trial.rounds // 50)
        for round_id in range(trial.rounds):
            skipped += not self._round(round_id)
            made, left = round_id + 1, trial.rounds - 1 - round_id
            if not bool(torch.isfinite(self.model.parameters).all()):
                lost = self._result(TrialResult(0.0, worst_class=0.0, skipped=skipped))
                return replace(
                    lost,
                    validation=None if self.held_out is None else 0.0,
                    curve=(*curve, *((later, 0.0) for later in self._tested_after(made))),
                )
            at_end = left % apart == 0 and left < EVALUATIONS * apart
            on_curve = made in self._tested_after(made)
            if at_end or on_curve:
                accuracy, by_class = self._test()
                if on_curve:
                    curve.append((made, accuracy))
                if at_end:
                    tested.append((accuracy, self._validated(), by_class))
        accuracies, validated, classes = zip(*tested, strict=True)
        return self._result(
            TrialResult(
                sum(accuracies) / len(accuracies),
                worst_class=float(torch.stack(classes).mean(dim=0).min()),
                skipped=skipped,
                validation=None if self.held_out is None else sum(validated) / len(validated),
                curve=tuple(curve),
            )
        )

    def _tested_after(self, made: int) -> range:
        """Return the rounds from ``made`` on after which there is a point of the curve."""
        every, last = self.trial.every, self.trial.rounds
        return range(made + -made % every, last + 1, every) if every else range(0)

    def _result(self, found: TrialResult) -> TrialResult:
        """Return ``found`` with the facts of the rounds and the quarantine."""
        liars = sum(worker >= self.honest for worker in self.ever_locked)
        return replace(
            found,
            trouble=self.trouble,
            honest_quarantined=len(self.ever_locked) - liars,
            liars_quarantined=liars,
            records=self.records,
        )

    def _test(self) -> tuple[float, Tensor]:
        """Return the accuracy, and that on each class with a test sample, ``(classes,)``."""
        labels = self.data.test_labels
        right = self.model.logits(self.data.test_images).argmax(dim=1) == labels
        of_class = labels.bincount()
        by_class = labels[right].bincount(minlength=len(of_class)) / of_class
        return float(right.float().mean()), by_class[of_class > 0]

    def _validated(self) -> float:
        """Return the accuracy on the held-out samples; 0 if there are none."""
        if self.held_out is None:
            return 0.0
        images, labels = self.held_out
        return float((self.model.logits(images).argmax(dim=1) == labels).float().mean())

    def _round(self, round_id: int) -> bool:
        """Run a round. Return whether a step was made."""
        self.lr = self.trial.lr_in(round_id)
        self.rate = self.lr if self.outer is None else self.outer.lr
        updates = self._offered(round_id)
        if self.link is not None:
            updates = self.link.pass_updates(updates, round_id)
        finite = torch.isfinite(updates).all(dim=1)
        faulty = (~finite).nonzero().flatten().tolist()
        usable = finite.nonzero().flatten().tolist()
        f = self._tolerated(len(faulty), len(usable))
        taken = [worker for worker in usable if worker not in self.locked]
        if len(taken) < self.rule.at_least(f):
            taken = usable
        verdict = self._aggregate(updates[taken], f, round_id)
        if self.link is not None:
            contributors = [] if verdict is None else taken
            self.link.settle(round_id, contributors)
            if verdict is not None:
                passed = self.link.pass_result(verdict.aggregate, round_id)
                verdict = replace(verdict, aggregate=passed)
        due = verdict is not None and round_id % TrustSettings().measured_every == 0
        self.measured = self._measure(updates, taken, usable) if due else []
        self._judge(round_id, taken, verdict, faulty)
        if self.records:
            self._record(round_id, taken, verdict)
        if verdict is None:
            return False
        self.lengths.append(verdict.length)
        self.kept = {"previous": verdict.aggregate, "usual": max(self.lengths)}
        self.model.parameters -= self._step(verdict.aggregate)
        return True

    def _record(self, round_id: int, taken: list[int], verdict: Verdict | None) -> None:
        """Add a record for each worker."""
        weights, far = {}, {each.peer: each.outlyingness for each in self.measured}
        if verdict is not None:
            weights = dict(zip(taken, verdict.weights.tolist(), strict=True))
            far |= dict(zip(taken, verdict.outlyingness.tolist(), strict=True))
        for worker in range(self.trial.n):
            trust = None if self.trust is None else self.trust.score(worker)
            judged = weights.get(worker, 0.0), far.get(worker), trust
            values = round_id, worker, worker >= self.honest, *judged, self.loss
            for column, value in zip(self.records.values(), values, strict=True):
                column.append(value)

    def _step(self, aggregate: Tensor) -> Tensor:
        """Return the step, ``(d,)``, to subtract from the parameters."""
        if self.outer is None:
            return self.lr * self._decayed(aggregate)
        move, self.momentum = self.outer.move(aggregate, self.momentum)
        return move

    def _decayed(self, gradient: Tensor) -> Tensor:
        return gradient + self.trial.weight_decay * self.model.parameters

    def _updates(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the updates of all workers, ``(n, d)``, from their samples, ``(n, local_steps *
        batch)``."""
        if self.outer is None:
            return self.model.gradients(images, labels)
        anchor = self.model.parameters
        found = torch.empty(len(labels), len(anchor))
        try:
            for worker, difference in enumerate(found):
                self.model.parameters = anchor.clone()
                for begin in range(0, labels.shape[1], self.trial.batch):
                    batch = slice(begin, begin + self.trial.batch)
                    one = images[worker : worker + 1, batch], labels[worker : worker + 1, batch]
                    gradient = self._decayed(self.model.gradients(*one)[0])
                    self.model.parameters -= self.lr * gradient
                torch.sub(anchor, self.model.parameters, out=difference)
        finally:
            self.model.parameters = anchor
        return found

    def _offered(self, round_id: int) -> Tensor:
        """Return the updates that all workers send, ``(n, d)``, those in quarantine included."""
        trial, honest = self.trial, self.honest
        chosen = torch.stack(
            [
                share[_draw(len(share), trial.batch * trial.local_steps, g)]
                for share, g in zip(self.shares, self.chances, strict=True)
            ]
        )
        labels = self.data.labels[chosen]
        if self.records:
            samples = chosen[:honest].flatten()
            self.loss = self.model.loss(
                self.data.images[samples], self.data.labels[samples], torch.zeros(())
            )
        if self.name == "label_flip":
            labels[honest:] = attacks.flip_labels(labels[honest:], self.data.classes)
        updates = self._sent(self._updates(self.data.images[chosen], labels))
        if self.attack is None:
            return updates
        lies = self.attack.collude(
            updates[:honest],
            self.attackers,
            rule=self._seen_by_attackers(round_id),
            own=updates[honest:],
            round_id=round_id,
            locked=[worker for worker in sorted(self.locked) if worker < honest],
        )
        return torch.cat([updates[:honest], lies])

    def _tolerated(self, faulty: int = 0, usable: int = 0) -> int:
        """Return the f of a round, as in the runtime. Workers in quarantine are only suspected, and
        may be honest: the rule tolerates as many as before. A worker that sends no numbers counts
        as Byzantine if too few others are left to tolerate more."""
        f = self.trial.tolerated
        if not faulty:
            return f
        enough = [fewer for fewer in range(f + 1) if self.rule.at_least(fewer) <= usable]
        return max(f - faulty, max(enough, default=0), 0)

    def _aggregate(self, updates: Tensor, f: int, round_id: int) -> Verdict | None:
        """Return the rule's verdict on the updates, or None if the round is lost."""
        if len(updates) < self.rule.at_least(f):
            self._skip(f"{len(updates)} finite updates were left, it needs {self.rule.at_least(f)}")
            return None
        try:
            self.available = {
                "f": f,
                "learning_rate": self.rate,
                "round_id": round_id,
                **self.kept,
                **self._server(self.judge),
            }
            verdict = self.rule.explain(updates, **self.available)
        except Exception as error:  # noqa: BLE001
            # an attack may have caused the error: as in a real run, the round is lost
            self._skip(f"it raised {type(error).__name__}: {error}")
            return None
        if not bool(torch.isfinite(verdict.aggregate).all()):
            self._skip("its aggregate was not finite")
            return None
        return verdict

    def _measure(self, updates: Tensor, taken: list[int], usable: list[int]) -> list[Rejection]:
        """Return the rejections of the quarantined workers, with their measured outlyingness, as in
        the commit of a run."""
        outside = [worker for worker in usable if worker not in taken]
        if not outside:
            return []
        far = self.rule.measure(updates[[*taken, *outside]], len(taken), **self.available)
        pairs = zip(outside, far, strict=False)
        return [Rejection(worker, "quarantined", value) for worker, value in pairs]

    def _judge(
        self, round_id: int, taken: list[int], verdict: Verdict | None, faulty: list[int]
    ) -> None:
        """Update the trust table as the commit of a run would, and set the quarantine of the next
        round. The commit of a lost round names no contributors."""
        if self.trust is None:
            return
        contributors = []
        if verdict is not None:
            judged = zip(
                taken, verdict.weights.tolist(), verdict.outlyingness.tolist(), strict=True
            )
            contributors = [
                Contribution(worker, self.trial.batch, weight, far)
                for worker, weight, far in judged
            ]
        self.trust.observe_commit(
            round_id,
            contributors,
            [*self.measured, *[Rejection(worker, "non_finite") for worker in faulty]],
            roster=range(self.trial.n),
        )
        self.locked = self.trust.quarantined()
        self.ever_locked |= self.locked

    def _skip(self, why: str) -> None:
        self.trouble = self.trouble or why

    def _sent(self, updates: Tensor) -> Tensor:
        if not self.sender:
            return updates
        sent = []
        for worker, update in enumerate(updates):
            told, self.memories[worker] = self.sender(update, self.memories[worker])
            sent.append(told)
        return torch.stack(sent)

    def _server(self, generator: torch.Generator) -> Mapping[str, Any]:
        """Return the inputs of rules that need the loss: a fresh batch of training samples each
        round, drawn after the updates arrive."""
        if not self.rule.needs_trainer:
            return {}
        chosen = _draw(len(self.data.labels), self.trial.reference, generator)
        images, labels = self.data.images[chosen], self.data.labels[chosen]

        def evaluate(step: Tensor) -> float:
            return self.model.loss(images, labels, step)

        return {
            "evaluate": evaluate,
            "gradient": self.model.gradients(images[None], labels[None])[0],
        }

    def _seen_by_attackers(self, round_id: int) -> attacks.Aggregator:
        """Return the rule as attackers can try it out: with samples of their own if it needs the
        loss. They know its draws, and the workers in quarantine."""
        server = self._server(self.spy)
        taken = [worker for worker in range(self.trial.n) if worker not in self.locked]

        def tried(updates: Tensor) -> Tensor:
            try:
                return self.rule(
                    updates[taken] if self.locked else updates,
                    f=self._tolerated(),
                    learning_rate=self.rate,
                    round_id=round_id,
                    **self.kept,
                    **server,
                )
            except Exception:  # noqa: BLE001 - then the round is lost, which is a step of nothing
                return torch.zeros_like(updates[0])

        return tried


def _fewer_tests(data: TrainingData, count: int) -> TrainingData:
    """Return the data with this many test samples; 0: with all."""
    if not 0 < count < len(data.test_labels):
        return data
    chosen = torch.randperm(len(data.test_labels), generator=generator_of("tests"))[:count]
    return replace(data, test_images=data.test_images[chosen], test_labels=data.test_labels[chosen])


def _held_out(
    data: TrainingData, trial: Trial
) -> tuple[TrainingData, tuple[Tensor, Tensor] | None]:
    """Return the data without the held-out share of the training samples, and that share."""
    count = int(trial.validation * len(data.labels))
    if not count:
        return data, None
    order = torch.randperm(len(data.labels), generator=generator_of(f"validation/{trial.seed}"))
    out, left = order[:count], order[count:]
    rest = replace(data, images=data.images[left], labels=data.labels[left])
    return rest, (data.images[out], data.labels[out])


def _draw(count: int, size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(count, (size,), generator=generator)
