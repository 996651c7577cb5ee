"""How well a rule learns under an attack: some workers, plain SGD, one process, no network; liars
see what the honest send.

outcome = train(Trial(rule="krum", attack="alie", n=10, f=2), digits)
print(outcome.accuracy)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from gossip.aggregators import BoundRule, Verdict, attacks, registry, senders
from gossip.core import Contribution, Rejection, TrustSettings, TrustTable
from gossip.errors import AggregationError, ConfigError, UnknownName

from . import splits

NO_ATTACK = "none"
EVALUATIONS = 5
"""The accuracy of a run is the mean of so many tests at its end, one every fiftieth of the run."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What is learnt: images ``(samples, features)`` float32, labels int64."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. All workers but the last f are honest.

    Attributes:
        rule: As ``registry.load`` takes it.
        attack: ``name``, ``name*strength``, ``label_flip`` or ``none``:
            then the last f are honest too.
        n: Workers, liars included.
        f: Liars there are.
        batch: Samples of a worker in a round.
        hidden: Units of the one hidden layer.
        sender: What each worker makes of its update, as ``senders.load`` takes it; liars lie about
            what comes of it.
        split: How the honest share the samples, as ``splits.split`` takes it;
            liars draw from all of them.
        declared_f: The f that the rule and the trust table are told; None: as many as lie.
        trust: Whether the trust table of a run judges the workers by what the rule says of them:
            the rule does not get the updates of those in quarantine.
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

    @property
    def tolerated(self) -> int:
        """The f that the rule is told."""
        return self.f if self.declared_f is None else self.declared_f


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of a run.

    Attributes:
        accuracy: On the test samples, 0 to 1: the mean of the last tests. That of a model that is
            not finite is 0.
        refused: Why the rule could not be run at all, nobody lying; then the accuracy is None.
        skipped: Rounds without a step: too few finite updates were left, or what it made of them
            was not finite, or it raised.
        trouble: Why the first of those had none.
        arithmetic: What calculated it, as far as it decides how sums are rounded;
            empty where nobody asked.
        worst_class: The accuracy on the test samples of one class, of the class where it is least;
            the mean of the last tests, as ``accuracy``.
        honest_quarantined: Honest workers that were ever in quarantine.
        liars_quarantined: Liars that were.
    """

    accuracy: float | None
    refused: str = ""
    skipped: int = 0
    trouble: str = ""
    arithmetic: str = ""
    worst_class: float | None = None
    honest_quarantined: int = 0
    liars_quarantined: int = 0


def spelt(attack: str) -> str:
    """An attack with the name written as it is known; a minus in the strength is one."""
    name, star, strength = attack.strip().partition("*")
    return name.replace("-", "_") + star + strength


def read_attack(text: str) -> tuple[str, float | None]:
    """Name and strength of ``name*strength``. Raises: ConfigError: There is no such attack, or it
    is for gossip rounds only."""
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
    if name not in attacks.names():
        raise UnknownName("attack", name, (NO_ATTACK, *attacks.names(), *attacks.DATA_ATTACKS))
    if attacks.make(name, value).tells_each:
        raise ConfigError(
            f"{name} sends each receiver another update, so it is for gossip rounds only",
            "leave it out here",
        )
    return name, value


def train(trial: Trial, data: TrainingData) -> TrialResult:
    """Runs it. The same trial gives the same outcome, and all trials of a seed draw the same
    samples for a worker.

    Raises: ConfigError: Rule, attack or sender is not known, or the numbers make no sense. That a
        rule cannot take so few updates or lacks something is an outcome; so is what it raises once
        liars are at work, which costs that round. What else than an error of ours it raises
        when nobody lies.
    """
    f = trial.tolerated
    if not 0 <= trial.f < trial.n or min(trial.rounds, trial.batch, trial.hidden) < 1 or f < 0:
        raise ConfigError(
            f"{trial.f} liars of {trial.n} workers, {f} declared, {trial.rounds} rounds: nothing "
            "can be learnt so"
        )
    rule = registry.load(trial.rule)
    if trial.n < rule.at_least(f):
        return TrialResult(None, f"needs {rule.at_least(f)} updates for f = {f}")
    run = _Run(trial, rule, data)
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
        self.trial, self.rule, self.data = trial, rule, data
        self.model = TwoLayerNetwork(data.images.shape[1], trial.hidden, data.classes, trial.seed)
        self.name, strength = read_attack(trial.attack)
        self.attackers = 0 if self.name == NO_ATTACK else trial.f
        by_vector = self.name not in (NO_ATTACK, *attacks.DATA_ATTACKS)
        self.attack = attacks.make(self.name, strength, trial.seed) if by_vector else None
        self.sender = senders.load(trial.sender)
        self.memories: list[senders.Memory | None] = [None] * trial.n
        self.chances = [_generator(f"worker/{trial.seed}/{worker}") for worker in range(trial.n)]
        self.judge, self.spy = _generator(f"judge/{trial.seed}"), _generator(f"spy/{trial.seed}")
        self.honest = trial.n - self.attackers
        parts = splits.split(trial.split, data.labels, self.honest, trial.batch, trial.seed)
        self.shares = [*parts, *[torch.arange(len(data.labels))] * self.attackers]
        updates_for = [rule.at_least(f) for f in range(trial.tolerated + 1)]
        self.trust = (
            TrustTable(TrustSettings(), trial.tolerated, updates_for, judged=rule.needs_trainer)
            if trial.trust
            else None
        )
        self.locked: frozenset[int] = frozenset()  # in quarantine in this round
        self.ever_locked: frozenset[int] = frozenset()
        self.trouble = ""
        # what a rule with a memory gets: the last result, and the state that it returned with it
        self.kept: dict[str, Any] = {}

    def try_rule(self) -> None:
        """One call with honest updates, before liars are at work: what is wrong then is wrong with
        the rule or its options."""
        generator = _generator(f"first/{self.trial.seed}")
        chosen = _draw(len(self.data.labels), self.trial.n * self.trial.batch, generator).view(
            self.trial.n, -1
        )
        updates = self.model.gradients(self.data.images[chosen], self.data.labels[chosen])
        self.rule.explain(
            updates,
            f=self.trial.tolerated,
            learning_rate=self.trial.lr,
            round_id=0,
            **self._server(generator),
        )

    def run(self) -> TrialResult:
        trial, skipped, tested = self.trial, 0, []
        every = max(1, trial.rounds // 50)
        for round_id in range(trial.rounds):
            skipped += not self._round(round_id)
            if not bool(torch.isfinite(self.model.parameters).all()):
                return self._result(0.0, 0.0, skipped)
            left = trial.rounds - 1 - round_id
            if left % every == 0 and left < EVALUATIONS * every:
                tested.append(self._test())
        accuracies, classes = zip(*tested, strict=True)
        worst = float(torch.stack(classes).mean(dim=0).min())
        return self._result(sum(accuracies) / len(accuracies), worst, skipped)

    def _result(self, accuracy: float, worst_class: float, skipped: int) -> TrialResult:
        liars = sum(worker >= self.honest for worker in self.ever_locked)
        return TrialResult(
            accuracy,
            skipped=skipped,
            trouble=self.trouble,
            worst_class=worst_class,
            honest_quarantined=len(self.ever_locked) - liars,
            liars_quarantined=liars,
        )

    def _test(self) -> tuple[float, Tensor]:
        """The accuracy, and that on each class there is a test sample of, ``(classes,)``."""
        labels = self.data.test_labels
        right = self.model.logits(self.data.test_images).argmax(dim=1) == labels
        of_class = labels.bincount()
        by_class = labels[right].bincount(minlength=len(of_class)) / of_class
        return float(right.float().mean()), by_class[of_class > 0]

    def _round(self, round_id: int) -> bool:
        """Whether a step was made."""
        updates = self._offered(round_id)
        finite = torch.isfinite(updates).all(dim=1)
        faulty = [
            worker for worker in (~finite).nonzero().flatten().tolist() if worker not in self.locked
        ]
        usable = finite.nonzero().flatten().tolist()
        f = self._tolerated(len(faulty), len(usable))
        taken = [worker for worker in usable if worker not in self.locked]
        if len(taken) < self.rule.at_least(f):
            taken = usable
        verdict = self._aggregate(updates[taken], f, round_id)
        self._judge(round_id, taken, verdict, faulty)
        if verdict is None:
            return False
        self.kept = {"previous": verdict.aggregate, "state": verdict.state}
        self.model.parameters -= self.trial.lr * verdict.aggregate
        return True

    def _offered(self, round_id: int) -> Tensor:
        """``(n, d)``: what all workers send, those in quarantine included."""
        trial, honest = self.trial, self.honest
        chosen = torch.stack(
            [
                share[_draw(len(share), trial.batch, g)]
                for share, g in zip(self.shares, self.chances, strict=True)
            ]
        )
        labels = self.data.labels[chosen]
        if self.name == "label_flip":
            labels[honest:] = attacks.flip_labels(labels[honest:], self.data.classes)
        updates = self._sent(self.model.gradients(self.data.images[chosen], labels))
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
        """The f of a round, as in the runtime. Who is in quarantine is only suspected, and may be
        honest: the rule tolerates as many as before. Who sends no numbers is one of them where the
        others are too few for more."""
        f = self.trial.tolerated
        if not faulty:
            return f
        enough = [fewer for fewer in range(f + 1) if self.rule.at_least(fewer) <= usable]
        return max(f - faulty, max(enough, default=0), 0)

    def _aggregate(self, updates: Tensor, f: int, round_id: int) -> Verdict | None:
        """What the rule makes of the updates; None when the round is lost."""
        if len(updates) < self.rule.at_least(f):
            self._skip(f"{len(updates)} finite updates were left, it needs {self.rule.at_least(f)}")
            return None
        try:
            verdict = self.rule.explain(
                updates,
                f=f,
                learning_rate=self.trial.lr,
                round_id=round_id,
                **self.kept,
                **self._server(self.judge),
            )
        except Exception as error:  # noqa: BLE001
            # liars may have brought it about: as in a real run, the round is lost
            self._skip(f"it raised {type(error).__name__}: {error}")
            return None
        if not bool(torch.isfinite(verdict.aggregate).all()):
            self._skip("its aggregate was not finite")
            return None
        return verdict

    def _judge(
        self, round_id: int, taken: list[int], verdict: Verdict | None, faulty: list[int]
    ) -> None:
        """The trust table learns of a round what the commit of a run would say, and tells who is
        in quarantine in the next. Of a round that is lost a commit names no contributors."""
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
            [Rejection(worker, "non_finite") for worker in faulty],
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
        """What rules that ask the loss get: a fresh batch of training samples each round, drawn
        after the updates came."""
        if not self.rule.needs_trainer:
            return {}
        chosen = _draw(len(self.data.labels), self.trial.batch, generator)
        images, labels = self.data.images[chosen], self.data.labels[chosen]

        def evaluate(step: Tensor) -> float:
            return self.model.loss(images, labels, step)

        return {
            "evaluate": evaluate,
            "gradient": self.model.gradients(images[None], labels[None])[0],
        }

    def _seen_by_attackers(self, round_id: int) -> attacks.Aggregator:
        """The rule as liars can try it out: with samples of their own where it asks for the loss.
        What it draws, they know, and who is in quarantine."""
        server = self._server(self.spy)
        taken = [worker for worker in range(self.trial.n) if worker not in self.locked]

        def tried(updates: Tensor) -> Tensor:
            try:
                return self.rule(
                    updates[taken] if self.locked else updates,
                    f=self._tolerated(),
                    learning_rate=self.trial.lr,
                    round_id=round_id,
                    **self.kept,
                    **server,
                )
            except Exception:  # noqa: BLE001 - then the round is lost, which is a step of nothing
                return torch.zeros_like(updates[0])

        return tried


class TwoLayerNetwork:
    """One hidden layer of rectified units, with the gradients of many workers at once.

    Attributes:
        parameters: The flat ``(d,)`` vector.
    """

    def __init__(self, features: int, hidden: int, classes: int, seed: int) -> None:
        self.shapes = ((hidden, features), (hidden,), (classes, hidden), (classes,))
        generator = _generator(f"model/{seed}")
        bounds = (
            1 / math.sqrt(features),
            1 / math.sqrt(features),
            1 / math.sqrt(hidden),
            1 / math.sqrt(hidden),
        )
        parts = [
            (2 * torch.rand(math.prod(shape), generator=generator) - 1) * bound
            for shape, bound in zip(self.shapes, bounds, strict=True)
        ]
        self.parameters = torch.cat(parts)

    def _parts(self, parameters: Tensor) -> list[Tensor]:
        cut = torch.split(parameters, [math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(cut, self.shapes, strict=True)]

    def logits(self, images: Tensor, parameters: Tensor | None = None) -> Tensor:
        first, bias, second, last = self._parts(
            self.parameters if parameters is None else parameters
        )
        return (images @ first.T + bias).relu() @ second.T + last

    def loss(self, images: Tensor, labels: Tensor, step: Tensor) -> float:
        """At the parameters less ``step``."""
        return float(cross_entropy(self.logits(images, self.parameters - step), labels))

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        """``(n, d)``: of the mean loss of each worker's batch. Images ``(n, batch, features)``,
        labels ``(n, batch)``."""
        first, bias, second, last = self._parts(self.parameters)
        n, batch = labels.shape
        hidden = (images @ first.T + bias).relu()
        error = (hidden @ second.T + last).softmax(dim=2) - one_hot(labels, len(last))
        error /= batch
        back = (error @ second) * (hidden > 0)
        parts = (back.mT @ images, back.sum(dim=1), error.mT @ hidden, error.sum(dim=1))
        return torch.cat([part.reshape(n, -1) for part in parts], dim=1)


def _draw(count: int, size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(count, (size,), generator=generator)


def _generator(name: str) -> torch.Generator:
    from hashlib import blake2b

    return torch.Generator().manual_seed(
        int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "big")
    )
