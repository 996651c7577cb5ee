"""Trials: one rule under one attack, as cells of a table. ``trial_world.train`` runs one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gossip.aggregators import attacks
from gossip.errors import ConfigError, UnknownName
from gossip_lab import splits

NO_ATTACK = "none"
REFERENCE = 256
"""Number of reference samples of a rule with a judge, as in a run."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. All workers but the last f are honest.

    Attributes:
        rule: Spec for ``registry.load``.
        attack: ``name``, ``name*strength``, ``label_flip`` or ``none``: with ``none`` the last f
            are honest too. An attack of the user is ``file.py:name``.
        n: Workers, Byzantine ones included.
        f: Byzantine workers.
        batch: Samples of a worker in a round.
        sender: Transformation of each worker's update, as ``senders.load`` takes it. Attacks use
            the transformed updates.
        split: Division of the samples among the honest workers, as ``splits.split`` takes it;
            Byzantine workers draw from all of them.
        declared_f: The f of the rule and the trust table; None means the true one.
        trust: Whether the trust table of a run judges the workers by the rule's verdicts: the rule
            does not receive the updates of those in quarantine.
        model: As ``World.model``.
        weight_decay: Weight decay of plain SGD: this multiple of the parameters is added to each
            gradient.
        reference: Number of samples by which a rule with a judge rates updates in a round.
        validation: Share of the training samples that is held out, for a choice among settings.
        test_samples: Samples of a test, drawn once and the same in all runs; 0 means all.
        every: Rounds between the tests of a curve; 0 if none is made.
        local_steps: Steps of plain SGD of each worker in a round; with more than one, updates are
            model differences.
        outer: The outer step after them, as ``outer.load`` takes it; empty if updates are
            gradients.
        milestones: Rounds, separated by blanks, from which the learning rate is multiplied by
            ``lr_decay`` (again at each).
        split_seed: Seed of the split; None means that of the run.
        encoding: Encoding of updates and results, as ``load_encoding`` takes it; empty means none.
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
    sender: str = ""
    split: str = splits.IID
    declared_f: int | None = None
    trust: bool = False
    model: str = "mlp"
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
        refused: Reason why the rule cannot be run, even without attack; then the accuracy is None.
        skipped: Rounds without a step: too few finite updates were left, or the rule raised, or its
            aggregate was not finite.
        trouble: Reason why the first of these rounds made no step.
        arithmetic: Software and processor that decide how sums are rounded, see
            ``trial_store.arithmetic``; empty if they were not recorded.
        worst_class: The lowest accuracy on the test samples of one class; the mean of the last
            tests, as in ``accuracy``.
        honest_quarantined: Honest workers that were ever in quarantine.
        liars_quarantined: Byzantine workers that were ever in quarantine.
        validation: The accuracy on the held-out samples, as in ``accuracy``; None if no samples are
            held out.
        curve: Numbers of rounds, and the accuracy on the test samples after them.
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
typical one; none if the rule did not receive it), trust score after the round (0 to 1; none without
a trust table), and mean loss of the honest samples at the parameters before the step."""


def spelt(attack: str) -> str:
    """Return an attack in its canonical spelling; with a plain minus sign in the strength."""
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
            f"{name} sends each receiver a different update, so it works only in gossip rounds",
            "leave it out here",
        )
    return name, value
