"""``gossip bench robustness``: which rule learns under which attack, as a table and a heat map."""

from __future__ import annotations

import inspect
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gossip.errors import ConfigError
from gossip.launch.report import counted

from .estimates import Comparison, Estimate, compare

if TYPE_CHECKING:
    from .learning import Trial, TrialResult

COMPOSED = (
    "nnm+krum",
    "nnm+trimmed_mean",
    "nnm+suspicion",
    "bucketing:s=2+geometric_median",
    "arc+geometric_median",
)
"""Beside all rules that have a name."""
BESIDE = {"ipm": "ipm*10", "alie": "alie*1.5"}
INSTEAD = {
    "sign_flip": "sign_flip*10",
    "every_second": "every_second*10",
    "random_direction": "random_direction*10",
}
"""Stronger forms of attacks than by default."""
FAILS_BELOW = 0.9
MAKES_NO_DIFFERENCE = ("jobs", "into", "show", "as_json")
"""To what a page says."""


def robustness(
    rules: Annotated[
        list[str] | None,
        typer.Option(
            help="Rules, separated by blanks; all by default. Repeatable.", show_default=False
        ),
    ] = None,
    attacks: Annotated[
        list[str] | None,
        typer.Option(
            help="Attacks, NAME or NAME*STRENGTH; all by default. Repeatable.", show_default=False
        ),
    ] = None,
    n: Annotated[
        list[int], typer.Option(help="Workers, Byzantine ones included. Repeatable, with --f.")
    ] = [  # noqa: B006
        10,
        20,
    ],
    f: Annotated[list[int], typer.Option(help="Byzantine workers among them.")] = [  # noqa: B006
        2,
        4,
    ],
    declared_f: Annotated[
        list[int] | None,
        typer.Option(help="The f that the rule is told; by default as --f.", show_default=False),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each cell, with seeds 0, 1, ...")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a run.")] = 150,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a worker in a round.")] = 32,
    lr: Annotated[float, typer.Option(help="Learning rate of plain SGD.")] = 0.5,
    hidden: Annotated[int, typer.Option(min=1, help="Units of the hidden layer.")] = 32,
    sender: Annotated[
        str, typer.Option(help="What workers make of their updates: momentum:beta=0.9+clip:10.")
    ] = "",
    split: Annotated[
        list[str],
        typer.Option(
            help=(
                "How the honest share the samples: iid, sorted, dirichlet:ALPHA, gamma:SHARE. "
                "Repeatable."
            )
        ),
    ] = ["iid"],  # noqa: B006
    trust: Annotated[
        bool, typer.Option(help="The trust table of a run keeps out who stands out for long.")
    ] = False,
    data: Annotated[
        str, typer.Option(help="digits, or an .npz file with x_train, y_train, x_test, y_test.")
    ] = "digits",
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="Processes.")] = 1,
    into: Annotated[Path, typer.Option(help="Folder that remembers every run.")] = Path(
        "runs/robustness"
    ),
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the page (.md) here, its heat maps beside it.", show_default=False
        ),
    ] = None,
    fails_below: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="A cell fails below this share of the accuracy without an attack."
        ),
    ] = FAILS_BELOW,
    plot: Annotated[bool, typer.Option(help="Draw heat maps beside --out.")] = True,
    show: Annotated[
        bool, typer.Option("--show", help="Run nothing: tables of what was run so far.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A config.json of ByzFL's benchmark, in place of the options that it sets.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, and nothing else, to stdout.")
    ] = False,
) -> None:
    """Train under every attack with every rule: accuracies with error bars. Ctrl-C, and the same
    command goes on."""
    options = locals()
    if config is not None:
        robustness(**_with_config(config, options))
        return
    command = _command(options)
    from gossip.aggregators import registry, senders

    from . import splits
    from .learning import spelt

    declared = declared_f or f
    _check_numbers(n, f, declared, lr)
    for each in split:
        splits.read_split(each)
    chosen_rules = _words(rules) or [*registry.names(), *COMPOSED]
    for rule in chosen_rules:
        registry.check(rule)
    chosen_attacks = [spelt(attack) for attack in _words(attacks)] or every_attack()
    if rules and not show:
        _check_options(chosen_rules, n, declared)
    _check_attacks(chosen_attacks)
    senders.load(sender)
    _check_installed(digits=data == "digits", plots=out is not None and plot)
    shared = {
        "rounds": rounds,
        "batch": batch,
        "lr": lr,
        "hidden": hidden,
        "sender": sender,
        "trust": trust,
    }
    tables = [
        RobustnessTable(
            workers,
            attackers,
            told,
            tuple(chosen_rules),
            tuple(chosen_attacks),
            tuple(range(seeds)),
            fails_below,
            {**shared, "split": each},
        )
        for each in split
        for workers, attackers, told in zip(n, f, declared, strict=True)
    ]
    from . import robustness_page
    from .trials import recall_all, run_all

    if out is not None:
        robustness_page.check_place(out)
    wanted = [trial for table in tables for trial in table.trials()]
    found = recall_all(wanted, into, data) if show else run_all(wanted, into, data, jobs)
    for table in tables:
        _check_reference(table, found, into)
    if out is not None:
        head = robustness_page.head(tables, found, data, command)
        robustness_page.write(out, tables, found, head, plot)
    if as_json:
        print(json.dumps([table.as_data(found) for table in tables]))
    else:
        parts = [
            [robustness_page.title(table), "", *robustness_page.section(table, found)]
            for table in tables
        ]
        print("\n\n".join("\n".join(part) for part in parts))


def _with_config(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``robustness`` with those that a configuration of ByzFL sets.

    Raises: ConfigError: It cannot be taken over, an option is given twice, or the data are lacking.
    """
    from . import byzfl_config

    taken = byzfl_config.read(path)
    defaults = inspect.signature(robustness).parameters
    for name in taken:
        if options[name] != defaults[name].default:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is given beside {path}, which sets it", "leave one out")
    if options["data"] == defaults["data"].default:
        raise ConfigError(
            f"{path} names data that are not here",
            "give them: --data with an .npz file of x_train, y_train, x_test, y_test",
        )
    return {**options, **taken, "config": None}


def _check_numbers(n: Sequence[int], f: Sequence[int], declared: Sequence[int], lr: float) -> None:
    if len(n) != len(f):
        raise ConfigError(
            f"{counted(len(n), 'number')} of workers and {counted(len(f), 'number')} of liars",
            "give as many --n as --f",
        )
    if len(declared) != len(f):
        raise ConfigError(
            f"{counted(len(f), 'number')} of liars, of which {len(declared)} are declared",
            "give as many --declared-f as --f, or none",
        )
    for workers, attackers, told in zip(n, f, declared, strict=True):
        if not 0 <= attackers < workers:
            raise ConfigError(
                f"{counted(attackers, 'liar')} of {counted(workers, 'worker')}",
                "give an --f from 0 to less than --n",
            )
        if not 0 <= told < workers:
            raise ConfigError(
                f"f = {told} is declared of {counted(workers, 'worker')}",
                "give a --declared-f from 0 to less than --n",
            )
    if not 0 < lr < math.inf:
        raise ConfigError(f"--lr is a learning rate above 0 and cannot be {lr:g}")


def _check_installed(digits: bool, plots: bool) -> None:
    if digits:
        _need(
            "sklearn",
            "the digits come with scikit-learn, which is not installed",
            "pip install 'gossip-train[demo]'",
        )
    if plots:
        _need(
            "matplotlib",
            "heat maps need matplotlib, which is not installed",
            "pip install 'gossip-train[plots]', or --no-plot",
        )


def _check_reference(
    table: RobustnessTable, found: Mapping[Trial, TrialResult], into: Path
) -> None:
    """A table needs what averaging the honest alone comes to."""
    alone = [found[trial] for trial in table.without_attackers() if trial in found]
    if why := next((result.refused for result in alone if result.refused), ""):
        raise ConfigError(
            f"nothing can be learnt by {table.n - table.f} honest workers alone: {why}"
        )
    if not alone:
        raise ConfigError(
            f"nothing was run of {counted(table.f, 'liar')} of {table.n} with these settings "
            f"in {into}",
            "leave out --show to run it",
        )


@dataclass(frozen=True, slots=True)
class RobustnessCell:
    """One rule under one attack: accuracies of the seeds, or why there are none (empty:
    it was not run yet).

    Attributes:
        verdict: Whether the rule learnt as much as it should have, for certain; empty where it
            was not run.
        skipped: Rounds without a step, of each seed.
        trouble: Why the first of those had none.
        worst_classes: Of each seed, the accuracy on the class where it is least.
        honest_quarantined: Honest workers that were ever in quarantine, of each seed.
        liars_quarantined: Liars that were, likewise.
    """

    accuracies: tuple[float, ...]
    why: str
    verdict: Comparison
    skipped: tuple[int, ...] = ()
    trouble: str = ""
    worst_classes: tuple[float, ...] = ()
    honest_quarantined: tuple[int, ...] = ()
    liars_quarantined: tuple[int, ...] = ()

    @property
    def fails(self) -> bool:
        return self.verdict == "fails"

    @property
    def estimate(self) -> Estimate:
        """The mean of the accuracies, and how certain it is."""
        return Estimate(self.accuracies)

    @property
    def mean(self) -> float:
        return self.estimate.mean


@dataclass(frozen=True, slots=True)
class RobustnessTable:
    """All rules and attacks at one n and f.

    Attributes:
        f: Liars there are.
        declared_f: The f that the rules are told.
    """

    n: int
    f: int
    declared_f: int
    rules: tuple[str, ...]
    attacks: tuple[str, ...]
    seeds: tuple[int, ...]
    fails_below: float
    shared: Mapping[str, Any]

    def trials(self) -> list[Trial]:
        """Every run that it is made of, and those without liars that it is compared with."""
        cells = [
            trial
            for rule in self.rules
            for attack in self.attacks
            for trial in self._of(rule, attack)
        ]
        return [*self.without_attackers(), *cells]

    def _of(self, rule: str, attack: str) -> list[Trial]:
        from .learning import Trial

        # A trial that is told the true f is the same whether that was said or left out.
        told = None if self.declared_f == self.f else self.declared_f
        return [
            Trial(rule, attack, self.n, self.f, seed, declared_f=told, **self.shared)
            for seed in self.seeds
        ]

    def without_attackers(self) -> list[Trial]:
        """Plain averaging of the honest workers alone, whom nobody suspects."""
        from .learning import NO_ATTACK, Trial

        shared = {**self.shared, "trust": False}
        return [Trial("mean", NO_ATTACK, self.n - self.f, 0, seed, **shared) for seed in self.seeds]

    def reference(self, found: Mapping[Trial, TrialResult]) -> Estimate:
        """The accuracy that averaging the honest alone comes to."""
        return Estimate(
            tuple(
                found[trial].accuracy or 0.0 for trial in self.without_attackers() if trial in found
            )
        )

    def limit(self, found: Mapping[Trial, TrialResult]) -> Estimate:
        """The accuracy below which a rule fails. It is as uncertain as what it is a share of."""
        return self.reference(found).times(self.fails_below)

    def cell(self, rule: str, attack: str, found: Mapping[Trial, TrialResult]) -> RobustnessCell:
        outcomes = [found[trial] for trial in self._of(rule, attack) if trial in found]
        if not outcomes:
            return RobustnessCell((), "", "")
        why = next((outcome.refused for outcome in outcomes if outcome.refused), "")
        accuracies = tuple(outcome.accuracy for outcome in outcomes if outcome.accuracy is not None)
        if len(accuracies) < len(outcomes):
            return RobustnessCell((), why, "")
        return RobustnessCell(
            accuracies,
            why,
            compare(Estimate(accuracies), self.limit(found)),
            tuple(outcome.skipped for outcome in outcomes),
            next((outcome.trouble for outcome in outcomes if outcome.trouble), ""),
            tuple(outcome.worst_class or 0.0 for outcome in outcomes),
            tuple(outcome.honest_quarantined for outcome in outcomes),
            tuple(outcome.liars_quarantined for outcome in outcomes),
        )

    def worst(
        self, rule: str, found: Mapping[Trial, TrialResult]
    ) -> tuple[str, RobustnessCell] | None:
        """The attack that hurts a rule most; None when it ran under none."""
        cells = [(attack, self.cell(rule, attack, found)) for attack in self.attacks]
        able = [(attack, cell) for attack, cell in cells if cell.accuracies]
        return min(able, key=lambda item: item[1].mean) if able else None

    def arithmetics(self, found: Mapping[Trial, TrialResult]) -> list[str]:
        """What calculated its runs; more than one where they were made on unlike machines."""
        return sorted({found[trial].arithmetic for trial in self.trials() if trial in found})

    def as_data(self, found: Mapping[Trial, TrialResult]) -> dict[str, Any]:
        cells = [
            {
                "rule": rule,
                "attack": attack,
                "accuracies": cell.accuracies,
                **(cell.estimate.as_data() if cell.accuracies else {}),
                "verdict": cell.verdict,
                "why": cell.why,
                "skipped": cell.skipped,
                "trouble": cell.trouble,
                "worst_classes": cell.worst_classes,
                "honest_quarantined": cell.honest_quarantined,
                "liars_quarantined": cell.liars_quarantined,
            }
            for rule in self.rules
            for attack in self.attacks
            for cell in [self.cell(rule, attack, found)]
        ]
        about = {
            "schema": "gossip.robustness/2",
            "n": self.n,
            "f": self.f,
            "declared_f": self.declared_f,
            "seeds": self.seeds,
            **self.shared,
        }
        about |= {
            "arithmetic": self.arithmetics(found),
            "without_attackers": self.reference(found).as_data(),
            "fails_below": self.fails_below,
            "limit": self.limit(found).as_data(),
        }
        return {**about, "cells": cells}


def _command(given: Mapping[str, Any]) -> str:
    """What to type for these arguments of ``robustness``,
    but for what makes no difference to the page."""
    words = ["gossip", "bench", "robustness"]
    for name, parameter in inspect.signature(robustness).parameters.items():
        value, option = given[name], name.replace("_", "-")
        if name in MAKES_NO_DIFFERENCE or value == parameter.default:
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [
                word
                for one in (value if isinstance(value, list) else [value])
                for word in (f"--{option}", str(one))
            ]
    return shlex.join(words)


def _check_options(rules: Sequence[str], n: Sequence[int], f: Sequence[int]) -> None:
    """Raises ConfigError for a rule whose options do not cover the liars. That n is too small for
    it is told in its cells."""
    from gossip.aggregators import registry

    for spec in rules:
        rule = registry.load(spec)
        for workers, attackers in zip(n, f, strict=True):
            rule.check(attackers, max(workers, rule.at_least(attackers)))


def every_attack() -> list[str]:
    """No attack, and all that a server can meet."""
    from gossip.aggregators.attacks import DATA_ATTACKS, KINDS, names

    plain = [name for name in names() if KINDS[name].shape != "apart"]
    beside = [BESIDE[name] for name in plain if name in BESIDE]
    return ["none", *sorted([*(INSTEAD.get(name, name) for name in plain), *DATA_ATTACKS, *beside])]


def _check_attacks(attacks: Sequence[str]) -> None:
    from .learning import read_attack

    for attack in attacks:
        read_attack(attack)


def _words(given: list[str] | None) -> list[str]:
    return list(dict.fromkeys(word for text in given or () for word in text.split()))


def _need(module: str, what: str, hint: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ConfigError(what, hint)
