"""Trials in which the trust table of a run judges the workers, and what is declared is not true."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from gossip.aggregators import attacks
from gossip.core import TrustSettings
from gossip_lab.bench import robustness_page
from gossip_lab.bench.tables import RobustnessTable
from gossip_lab.bench.trial_world import train
from gossip_lab.bench.trials import Trial, TrialResult
from gossip_lab.data_sets import TrainingData

NOTING = """
from pathlib import Path
from gossip.aggregators import Verdict, rule
import torch

@rule
def notes(updates, *, f, round_id):
    '''The first row stands out in all rounds.'''
    with Path(__file__).with_suffix(".txt").open("a") as heard:
        print(round_id, f, len(updates), file=heard)
    far = torch.ones(len(updates), dtype=torch.float64)
    far[0] = 9.0 if len(updates) == 7 else 1.0
    return Verdict(updates.median(0).values, torch.full_like(far, 1 / len(far)), far)
"""
QUARANTINED_AFTER = 16
"""Rounds in which an update stands out, until its sender is in quarantine: 0.9**16 < 0.2."""


def classes(seed: int = 0) -> TrainingData:
    """Three classes of points around three centres: three of seven samples each are of the first
    two, one is of the third."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 2]).repeat(60)
    images = 3 * torch.eye(3, 6)[labels] + 0.5 * torch.randn(420, 6, generator=generator)
    return TrainingData(images[:350], labels[:350], images[350:], labels[350:])


def noted(trial: Trial, folder: Path) -> list[tuple[int, int, int]]:
    """Round, f and updates of each call of a rule in which the first of seven stands out."""
    rule = folder / "noting.py"
    rule.write_text(NOTING)
    heard = rule.with_suffix(".txt")
    heard.unlink(missing_ok=True)
    train(dataclasses.replace(trial, rule=f"{rule}:notes"), classes())
    _tried, *calls = heard.read_text().splitlines()
    return [tuple(map(int, call.split())) for call in calls]  # type: ignore[misc]


PLAIN = Trial("median", "none", 7, 2, rounds=30, batch=8, model="mlp:8")


def test_who_is_in_quarantine_leaves_the_rules_input_but_not_its_f(tmp_path: Path) -> None:
    calls = noted(dataclasses.replace(PLAIN, trust=True), tmp_path)
    free = [(at, 2, 7) for at in range(QUARANTINED_AFTER)]
    assert calls[:QUARANTINED_AFTER] == free
    locked = calls[QUARANTINED_AFTER:]
    assert [call for call in locked if call[2] == 6] == [
        (at, 2, 6) for at in range(QUARANTINED_AFTER, 30)
    ], "suspected is not proven: the rule tolerates as many as before"
    assert [call for call in locked if call[2] == 7] == [
        (at, 2, 7) for at in range(QUARANTINED_AFTER, 30, TrustSettings().measured_every)
    ], "it is measured beside the others"
    assert {call[2] for call in noted(PLAIN, tmp_path)} == {7}, "without a trust table"


def test_who_stands_out_no_more_in_quarantine_comes_back(tmp_path: Path) -> None:
    """Those in quarantine are measured behind the others, and what stands out is the first row."""
    calls = noted(dataclasses.replace(PLAIN, trust=True, rounds=40), tmp_path)
    settings = TrustSettings()
    back = QUARANTINED_AFTER + settings.measured_every * settings.updates_to_return
    without = {at for at, _, rows in calls if rows == 6}
    returned = min(set(range(QUARANTINED_AFTER, 40)) - without)
    assert back - 8 <= returned <= back


def test_an_honest_worker_with_data_of_its_own_is_locked_out_and_its_class_forgotten() -> None:
    trial = dataclasses.replace(PLAIN, rule="suspicion", f=1, rounds=60, split="sorted")
    free, judged = train(trial, classes()), train(dataclasses.replace(trial, trust=True), classes())
    assert (free.honest_quarantined, free.liars_quarantined) == (0, 0)
    assert judged.honest_quarantined >= 1
    assert judged.liars_quarantined == 0
    mean = train(dataclasses.replace(trial, rule="mean"), classes())
    assert mean.worst_class is not None
    assert mean.accuracy is not None
    assert judged.worst_class < 0.5 < mean.worst_class <= mean.accuracy


def test_liars_who_stand_out_are_counted_apart_from_the_honest() -> None:
    trial = dataclasses.replace(PLAIN, n=9, rule="median", attack="sign_flip*10", trust=True)
    found = train(trial, classes())
    assert (found.honest_quarantined, found.liars_quarantined) == (0, 2)
    nans = train(dataclasses.replace(trial, attack="nan"), classes())
    assert (nans.honest_quarantined, nans.liars_quarantined) == (0, 2), "they are proven faulty"
    nobody = train(dataclasses.replace(trial, declared_f=0), classes())
    assert (nobody.honest_quarantined, nobody.liars_quarantined) == (0, 0), (
        "the table locks up no more than are declared"
    )


def test_the_declared_f_is_what_the_rule_is_told(tmp_path: Path) -> None:
    assert {f for _, f, _ in noted(dataclasses.replace(PLAIN, declared_f=3), tmp_path)} == {3}
    trial = dataclasses.replace(PLAIN, rule="krum", attack="zero")
    assert train(trial, classes()).refused == ""
    assert train(dataclasses.replace(trial, declared_f=3), classes()).refused == (
        "needs 9 updates for f = 3"
    )


def test_liars_are_told_which_honest_workers_are_in_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    collude, alone = attacks.Attack.collude, attacks.Attack.__call__

    def noting(attack: attacks.Attack, *arguments: Any, **options: Any) -> torch.Tensor:
        told.append(options["locked"])
        return collude(attack, *arguments, **options)

    def noting_alone(attack: attacks.Attack, *arguments: Any) -> torch.Tensor:
        told.append(attack.somebody_locked)
        return alone(attack, *arguments)

    monkeypatch.setattr(attacks.Attack, "collude", noting)
    monkeypatch.setattr(attacks.Attack, "__call__", noting_alone)
    noted(dataclasses.replace(PLAIN, attack="alie", trust=True), tmp_path)
    assert told == [*[[]] * QUARANTINED_AFTER, *[[0]] * (30 - QUARANTINED_AFTER)]
    told.clear()
    noted(dataclasses.replace(PLAIN, attack="sleeper*1000", trust=True), tmp_path)
    assert told == [*[False] * 2 * QUARANTINED_AFTER, *[True] * 2 * (30 - QUARANTINED_AFTER)]


def test_who_tries_the_rule_tries_it_without_those_in_quarantine(tmp_path: Path) -> None:
    trial = dataclasses.replace(PLAIN, attack="adaptive*4", rounds=20, trust=True)
    calls = noted(trial, tmp_path)
    assert sum(at == QUARANTINED_AFTER for at, _, _ in calls) > 50
    late = [rows for at, _, rows in calls if at >= QUARANTINED_AFTER]
    measured = len(range(QUARANTINED_AFTER, 20, TrustSettings().measured_every))
    assert late.count(7) == measured
    assert late.count(6) == len(late) - measured
    assert {rows for at, _, rows in calls if at < QUARANTINED_AFTER} == {7}


def test_a_table_of_a_declared_f_says_so_and_is_compared_with_the_same_reference() -> None:
    shared = {"rounds": 9, "batch": 8, "lr": 0.5, "model": "mlp:8", "sender": ""}
    shared |= {"split": "dirichlet:0.1", "trust": True}
    table = RobustnessTable(7, 2, 3, ("mean",), ("none", "zero"), (0, 1), 0.9, shared)
    assert {trial.declared_f for trial in table._of("mean", "zero", {})} == {3}
    assert robustness_page.title(table) == "## f = 2 of 7, f = 3 declared, `dirichlet:0.1`"
    true = dataclasses.replace(table, declared_f=2)
    assert {trial.declared_f for trial in true._of("mean", "zero", {})} == {None}
    plain = dataclasses.replace(true, shared={**shared, "split": "iid"})
    assert robustness_page.title(plain) == "## f = 2 of 7"
    blind = dataclasses.replace(table, shared={**shared, "trust": False})
    assert table.without_attackers() == true.without_attackers() == blind.without_attackers()


@pytest.mark.parametrize("trust", [False, True])
def test_the_page_tells_who_was_in_quarantine_and_of_the_worst_class(trust: bool) -> None:
    shared = {"rounds": 9, "batch": 8, "lr": 0.5, "model": "mlp:8", "sender": ""}
    shared |= {"split": "dirichlet:0.1", "trust": trust}
    table = RobustnessTable(7, 2, 2, ("mean",), ("none", "zero"), (0, 1), 0.9, shared)
    results = {"none": TrialResult(0.9, worst_class=0.5, honest_quarantined=2)}
    results["zero"] = TrialResult(0.9, worst_class=0.25, honest_quarantined=1, liars_quarantined=2)
    found = {trial: results[trial.attack] for trial in table.trials()}
    table = dataclasses.replace(table, found=found)
    text = "\n".join(robustness_page.section(table))
    assert text.endswith("| `mean` | 50.0 | 25.0 |")
    assert trust == (
        "- `mean` had honest workers in quarantine under `none` (4 of 14 honest workers, 0 of 0 "
        "liars), `zero` (2 of 10 honest workers, 4 of 4 liars)." in text
    )
    head = " ".join(robustness_page.head([table], "digits", "gossip bench")).split()
    assert trust == ("| `trust` | True |" in " ".join(head))
    assert "| `split` | dirichlet:0.1 |" in " ".join(head)
    cells = table.as_data()["cells"]
    assert [cell["honest_quarantined"] for cell in cells] == [[2, 2], [1, 1]]
