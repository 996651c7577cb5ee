"""Tables of trials: a cell for each rule and attack, at one n, f and split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from statistics import fmean
from types import MappingProxyType
from typing import Any

from gossip_lab.estimates import Comparison, Estimate, compare, false_discovery_level

from .trials import NO_ATTACK, Trial, TrialResult

Found = Mapping[Trial, TrialResult]
Choice = Mapping[str, Any]
"""Settings of a trial among which the best is chosen: lr, sender, weight_decay."""

OF_A_CELL = frozenset({"rule", "attack", "n", "f", "seed", "declared_f", "record"})
"""Fields of a trial that may differ between the trials of a table. All other settings are shared,
unless a choice overrides them."""

NOTHING: Choice = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RobustnessCell:
    """Results of one rule under one attack.

    Attributes:
        outcomes: Results of the seeds that were run.
        verdict: ``holds`` or ``fails`` if the accuracy is significantly above or below the limit,
            else ``undecided``. Empty if the rule was not run, or cannot be run.
    """

    outcomes: tuple[TrialResult, ...]
    verdict: Comparison

    @property
    def why(self) -> str:
        """Reason why the rule cannot be run; empty if the rule can be run, or was not run yet."""
        return next((outcome.refused for outcome in self.outcomes if outcome.refused), "")

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Accuracies of the seeds; empty if the trial of any seed cannot be run."""
        known = [each.accuracy for each in self.outcomes if each.accuracy is not None]
        return tuple(known) if len(known) == len(self.outcomes) else ()

    @property
    def estimate(self) -> Estimate:
        """Mean of the accuracies, and its uncertainty."""
        return Estimate(self.accuracies)

    @property
    def mean(self) -> float:
        return self.estimate.mean


@dataclass(frozen=True, slots=True)
class RobustnessRow:
    """One rule under all attacks.

    Attributes:
        cells: By attack, in the order of the table.
    """

    rule: str
    cells: Mapping[str, RobustnessCell]

    @property
    def worst(self) -> RobustnessCell:
        """Cell with the lowest mean accuracy. If no cell has accuracies, the first cell."""
        first, *_ = cells = list(self.cells.values())
        known = [cell for cell in cells if cell.accuracies]
        return min(known, key=lambda cell: cell.mean, default=first)


@dataclass(frozen=True, slots=True)
class RobustnessTable:
    """All rules and attacks at one n and f.

    Attributes:
        f: Byzantine workers.
        declared_f: The f of the rules.
        shared: Settings of all trials of the table.
        choices: Settings to choose from. Each rule is shown with those of the best accuracy under
            the worst attack, on the held-out samples. One element if there is no choice.
        found: Results of the trials that were run.
    """

    n: int
    f: int
    declared_f: int
    rules: tuple[str, ...]
    attacks: tuple[str, ...]
    seeds: tuple[int, ...]
    fails_below: float
    shared: Mapping[str, Any]
    choices: tuple[Choice, ...] = (NOTHING,)
    found: Found = field(default_factory=dict)

    @staticmethod
    def defaults() -> dict[str, Any]:
        return {each.name: each.default for each in fields(Trial) if each.name not in OF_A_CELL}

    def settings(self, choice: Choice = NOTHING) -> dict[str, Any]:
        """Return the settings of the table's trials, including settings that keep their default."""
        return {**self.defaults(), **self.shared, **choice}

    def trials(self) -> list[Trial]:
        """Return the trials of the honest workers alone, as the reference, and then the trials of
        all cells."""
        cells = [
            trial
            for choice in self.choices
            for rule in self.rules
            for attack in self.attacks
            for trial in self._of(rule, attack, choice)
        ]
        alone = [trial for choice in self.choices for trial in self._alone(choice)]
        return [*alone, *cells]

    def _of(self, rule: str, attack: str, choice: Choice) -> list[Trial]:
        # None if the declared f is the true f: otherwise equal trials would be run twice.
        told = None if self.declared_f == self.f else self.declared_f
        settings = self.settings(choice)
        return [
            Trial(rule, attack, self.n, self.f, seed, declared_f=told, **settings)
            for seed in self.seeds
        ]

    def _alone(self, choice: Choice) -> list[Trial]:
        settings = {**self.settings(choice), "trust": False}
        return [
            Trial("mean", NO_ATTACK, self.n - self.f, 0, seed, **settings) for seed in self.seeds
        ]

    def results(self, rule: str, attack: str) -> list[TrialResult]:
        """Return the results of the finished seeds, with the rule's best settings."""
        return self._results_of(self._of(rule, attack, self.chosen(rule)))

    def _results_of(self, trials: Iterable[Trial]) -> list[TrialResult]:
        return [self.found[trial] for trial in trials if trial in self.found]

    def runs(self) -> list[tuple[Trial, TrialResult]]:
        """Return all finished runs, in the order of ``trials``."""
        return [(trial, self.found[trial]) for trial in self.trials() if trial in self.found]

    def chosen(self, rule: str) -> Choice:
        """Return the settings with which the rule has the best mean accuracy under its worst
        attack, on the held-out samples. Return the first of equally good settings."""
        if len(self.choices) == 1:
            return self.choices[0]

        return max(
            self.choices,
            key=lambda choice: min(
                self._validated(self._of(rule, attack, choice)) for attack in self.attacks
            ),
        )

    def _validated(self, trials: Iterable[Trial]) -> float:
        """Return the mean accuracy on the held-out samples; -1 if no samples are held out or no
        trial was run."""
        known = [result.validation for result in self._results_of(trials)]
        values = [value for value in known if value is not None]
        return fmean(values) if values else -1.0

    def without_attackers(self) -> list[Trial]:
        """Return the trials in which only the honest workers are averaged, with the settings that
        are best for averaging. No trust table judges these workers."""
        best = max(self.choices, key=lambda choice: self._validated(self._alone(choice)))
        return self._alone(best)

    def reference(self) -> Estimate:
        """Return the accuracy of averaging the honest workers alone."""
        alone = self._results_of(self.without_attackers())
        return Estimate(tuple(result.accuracy or 0.0 for result in alone))

    def limit(self) -> Estimate:
        """Return the accuracy below which a rule fails: a share of the reference accuracy, with the
        relative uncertainty of the reference."""
        return self.reference().times(self.fails_below)

    def cells(self) -> dict[tuple[str, str], RobustnessCell]:
        """Return all cells; the key is (rule, attack). On average 5 % of the ``holds`` and
        ``fails`` are wrong."""
        margins = {
            (rule, attack): self._margins(rule, attack)
            for rule in self.rules
            for attack in self.attacks
        }
        p_values = [margin.p_value for margin in margins.values() if margin.values]
        level = false_discovery_level(p_values)
        return {
            key: RobustnessCell(
                tuple(self.results(*key)), compare(margin, level) if margin.values else ""
            )
            for key, margin in margins.items()
        }

    def _margins(self, rule: str, attack: str) -> Estimate:
        """Return how far the accuracies are above the limit, seed by seed; no values if a run has
        no accuracy."""
        trials = self._of(rule, attack, self.chosen(rule))
        runs = [
            (self.found[trial].accuracy, self.found[alone].accuracy or 0.0)
            for trial, alone in zip(trials, self.without_attackers(), strict=True)
            if trial in self.found and alone in self.found
        ]
        known = [(it, alone) for it, alone in runs if it is not None]
        if len(known) < len(runs):
            return Estimate(())
        return Estimate(tuple(it - self.fails_below * alone for it, alone in known))

    def rows(self) -> list[RobustnessRow]:
        """Return a row for each rule, the most robust rule first."""
        cells = self.cells()
        rows = [
            RobustnessRow(rule, {attack: cells[rule, attack] for attack in self.attacks})
            for rule in self.rules
        ]
        return sorted(rows, key=_weakness)

    def arithmetics(self) -> list[str]:
        """Return the different arithmetics of the table's runs: more than one if the runs were made
        on different machines."""
        return sorted({result.arithmetic for _, result in self.runs()})

    def as_data(self) -> dict[str, Any]:
        listed = []
        for (rule, attack), cell in self.cells().items():
            outcomes = cell.outcomes if cell.accuracies else ()
            listed.append(
                {
                    "rule": rule,
                    "attack": attack,
                    "accuracies": cell.accuracies,
                    **(cell.estimate.as_data() if cell.accuracies else {}),
                    "verdict": cell.verdict,
                    "why": cell.why,
                    "skipped": [each.skipped for each in outcomes],
                    "trouble": next((each.trouble for each in outcomes if each.trouble), ""),
                    "worst_classes": [each.worst_class or 0.0 for each in outcomes],
                    "honest_quarantined": [each.honest_quarantined for each in outcomes],
                    "liars_quarantined": [each.liars_quarantined for each in outcomes],
                    "curves": [each.curve for each in cell.outcomes],
                }
            )
        about = {
            "schema": "gossip.robustness/2",
            "n": self.n,
            "f": self.f,
            "declared_f": self.declared_f,
            "seeds": self.seeds,
            **self.settings(self.choices[0]),
        }
        if len(self.choices) > 1:
            for name in self.choices[0]:
                about[name] = list(dict.fromkeys(choice[name] for choice in self.choices))
            about["chosen"] = {rule: dict(self.chosen(rule)) for rule in self.rules}
        about |= {
            "arithmetic": self.arithmetics(),
            "without_attackers": self.reference().as_data(),
            "fails_below": self.fails_below,
            "limit": self.limit().as_data(),
        }
        return {**about, "cells": listed}


def _weakness(row: RobustnessRow) -> tuple[float, str]:
    return (-row.worst.mean if row.worst.accuracies else 2.0, row.rule)
