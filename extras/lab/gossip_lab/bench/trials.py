"""Trials: runs of one rule under one attack, as cells of a table. ``trial_world.train`` runs a
trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gossip.aggregators import attacks
from gossip.config import REFERENCE_SAMPLES
from gossip.errors import ConfigError, UnknownName
from gossip_lab import splits

NO_ATTACK = "none"


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings of one run. All workers but the last f are honest.

    Attributes:
        rule: The rule, as ``registry.load`` accepts it.
        attack: ``name``, ``name*strength``, ``label_flip`` or ``none``. With ``none`` all workers
            are honest. The name of a user's attack is ``file.py:name``.
        n: Workers, Byzantine ones included.
        f: Byzantine workers.
        batch: Samples per worker and local step.
        sender: Transformation of each worker's update, as ``senders.load`` accepts it. Attacks use
            the transformed updates.
        split: Division of the samples among the honest workers, as ``splits.split`` accepts it;
            Byzantine workers draw from all samples.
        declared_f: The f of the rule and the trust table; None means the true f.
        trust: Whether a trust table judges the workers by the rule's verdicts, as in a run. The
            rule does not receive the updates of workers in quarantine.
        model: The model, as in ``World.model``.
        weight_decay: Coefficient of weight decay in plain SGD.
        reference: Number of samples per round on which a rule with a judge rates updates.
        validation: Share of the training samples that are held out to choose among settings.
        test_samples: Number of test samples. They are drawn once, and are the same in all runs; 0
            means all.
        every: Rounds between two points of the accuracy curve; 0 for no curve.
        local_steps: Steps of plain SGD of each worker in a round; with more than one, updates are
            model differences.
        outer: The outer step on the aggregate, as ``outer.load`` accepts it; empty if updates are
            gradients.
        milestones: Rounds, separated by blanks. At each of these rounds the learning rate is
            multiplied by ``lr_decay``.
        split_seed: Seed of the split; None means the seed of the run.
        encoding: Encoding of updates and results, as ``load_encoding`` accepts it; empty means no
            encoding.
        record: Whether the result has the ``RECORD`` columns, with a row for each worker and round.
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
    reference: int = REFERENCE_SAMPLES
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
        """Whether updates are model differences instead of gradients."""
        return self.local_steps > 1 or bool(self.outer)

    @property
    def tolerated(self) -> int:
        """The f of the rule."""
        return self.f if self.declared_f is None else self.declared_f


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of a trial.

    Attributes:
        accuracy: Accuracy on the test samples, 0 to 1: the mean of the last tests. If the model is
            not finite, the accuracy is 0.
        refused: Reason why the rule cannot be run, even without attack; then the accuracy is None.
        skipped: Number of rounds without a step, because too few updates were finite, the rule
            raised an exception, or the aggregate was not finite.
        trouble: Reason why the first of the ``skipped`` rounds made no step.
        arithmetic: Software and processor that decide how sums are rounded, see
            ``trial_store.arithmetic``; empty if they were not recorded.
        worst_class: The lowest accuracy on the test samples of one class; the mean of the last
            tests, as in ``accuracy``.
        honest_quarantined: Number of honest workers that were ever in quarantine.
        liars_quarantined: Number of Byzantine workers that were ever in quarantine.
        validation: The accuracy on the held-out samples, as in ``accuracy``; None if no samples are
            held out.
        curve: Pairs of a number of rounds and the accuracy on the test samples after them.
        records: Name of a column of ``RECORD`` -> its values; empty if no records were requested.
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
"""Columns of a record. ``weight`` is the weight of the worker's update in the aggregate.
``outlyingness`` is a multiple of the typical outlyingness, or None if the rule did not receive the
update. ``trust_score`` is the score after the round, 0 to 1, or None without a trust table.
``loss`` is the mean loss of the honest samples before the step."""


def spelt(attack: str) -> str:
    """Return an attack in its canonical spelling; with a plain minus sign in the strength."""
    name, star, strength = attack.strip().partition("*")
    plain = name if attacks.place_of(name) else name.replace("-", "_")
    return plain + star + strength


def read_attack(text: str) -> tuple[str, float | None]:
    """Return name and strength of ``name*strength``. Raises: ConfigError: There is no such attack,
    or the attack needs gossip rounds."""
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
