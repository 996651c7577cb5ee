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

from gossip.aggregators import BoundRule, attacks, registry, senders
from gossip.errors import AggregationError, ConfigError, UnknownName

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
        f: Liars there are, and the f that the rule is told.
        batch: Samples of a worker in a round.
        hidden: Units of the one hidden layer.
        sender: What each worker makes of its update, as ``senders.load`` takes it; liars lie about
            what comes of it.
        non_iid: The honest have the samples sorted by label and cut in equal parts;
            liars draw from all.
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
    non_iid: bool = False


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
    """

    accuracy: float | None
    refused: str = ""
    skipped: int = 0
    trouble: str = ""
    arithmetic: str = ""


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
    if not 0 <= trial.f < trial.n or min(trial.rounds, trial.batch, trial.hidden) < 1:
        raise ConfigError(
            f"{trial.f} liars of {trial.n} workers, {trial.rounds} rounds: nothing can be learnt so"
        )
    rule = registry.load(trial.rule)
    if trial.n < rule.at_least(trial.f):
        return TrialResult(None, f"needs {rule.at_least(trial.f)} updates for f = {trial.f}")
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
        self.shares = _shares(trial, data.labels)
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
            f=self.trial.f,
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
                return TrialResult(0.0, "", skipped, self.trouble)
            left = trial.rounds - 1 - round_id
            if left % every == 0 and left < EVALUATIONS * every:
                tested.append(self.model.accuracy(self.data.test_images, self.data.test_labels))
        return TrialResult(sum(tested) / len(tested), "", skipped, self.trouble)

    def _round(self, round_id: int) -> bool:
        """Whether a step was made."""
        trial = self.trial
        chosen = torch.stack(
            [
                share[_draw(len(share), trial.batch, g)]
                for share, g in zip(self.shares, self.chances, strict=True)
            ]
        )
        labels = self.data.labels[chosen]
        honest = trial.n - self.attackers
        if self.name == "label_flip":
            labels[honest:] = attacks.flip_labels(labels[honest:], self.data.classes)
        updates = self._sent(self.model.gradients(self.data.images[chosen], labels))
        if self.attack is not None:
            lies = self.attack.collude(
                updates[:honest],
                self.attackers,
                rule=self._seen_by_attackers(round_id),
                own=updates[honest:],
                round_id=round_id,
            )
            updates = torch.cat([updates[:honest], lies])
        finite = torch.isfinite(updates).all(dim=1)
        # Who is proven faulty is one of f, as in the runtime.
        f = max(0, trial.f - int((~finite).sum()))
        updates = updates[finite]
        if len(updates) < self.rule.at_least(f):
            return self._skip(
                f"{len(updates)} finite updates were left, it needs {self.rule.at_least(f)}"
            )
        try:
            verdict = self.rule.explain(
                updates,
                f=f,
                learning_rate=trial.lr,
                round_id=round_id,
                **self.kept,
                **self._server(self.judge),
            )
        except Exception as error:  # noqa: BLE001
            # liars may have brought it about: as in a real run, the round is lost
            return self._skip(f"it raised {type(error).__name__}: {error}")
        if not bool(torch.isfinite(verdict.aggregate).all()):
            return self._skip("its aggregate was not finite")
        self.kept = {"previous": verdict.aggregate, "state": verdict.state}
        self.model.parameters -= trial.lr * verdict.aggregate
        return True

    def _skip(self, why: str) -> bool:
        self.trouble = self.trouble or why
        return False

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
        What it draws, they know."""
        server = self._server(self.spy)

        def tried(updates: Tensor) -> Tensor:
            try:
                return self.rule(
                    updates,
                    f=self.trial.f,
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

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        return float((self.logits(images).argmax(dim=1) == labels).float().mean())

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


def _shares(trial: Trial, labels: Tensor) -> list[Tensor]:
    """Indices of the samples that each worker draws from."""
    everything = torch.arange(len(labels))
    if not trial.non_iid:
        return [everything] * trial.n
    honest = trial.n if trial.attack == NO_ATTACK else trial.n - trial.f
    if len(labels) < honest:
        raise ConfigError(
            f"{len(labels)} samples for {honest} honest workers: some would have none",
            "fewer workers, more samples",
        )
    return [*labels.argsort(stable=True).tensor_split(honest), *[everything] * (trial.n - honest)]


def _draw(count: int, size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(count, (size,), generator=generator)


def _generator(name: str) -> torch.Generator:
    from hashlib import blake2b

    return torch.Generator().manual_seed(
        int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "big")
    )
