"""The robustness table for other programs, its curves, and the choice of settings."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gossip.aggregators import attacks
from gossip.errors import ConfigError, UnknownName
from gossip.launch.cli import app
from gossip_lab.bench import exports, robustness_page
from gossip_lab.bench.robustness import every_attack
from gossip_lab.bench.tables import RobustnessTable
from gossip_lab.bench.trial_store import run_all
from gossip_lab.bench.trials import TrialResult

CHOICES = (
    {"lr": 0.1, "sender": "", "weight_decay": 0.0},
    {"lr": 0.5, "sender": "", "weight_decay": 0.0},
)


def searched() -> RobustnessTable:
    """Two rules and rates: one of them learns more with the higher rate but for one attack."""
    table = RobustnessTable(
        7, 2, 2, ("median", "krum"), ("none", "zero"), (0, 1), 0.9, {"validation": 0.2}, CHOICES
    )
    found = {}
    for trial in table.trials():
        high = trial.lr == 0.5
        held = 0.9 if high else 0.6
        if trial.rule == "krum" and high and trial.attack == "zero":
            held = 0.2
        # The test samples speak for the other rate: nothing may be chosen by them.
        curve = ((5, 0.5), (10, 0.3 if high else 0.95))
        found[trial] = TrialResult(
            0.3 if high else 0.95, worst_class=0.1, validation=held, curve=curve
        )
    return replace(table, found=found)


def test_each_rule_has_the_settings_that_are_best_for_it_on_what_was_held_out() -> None:
    table = searched()
    assert table.chosen("median")["lr"] == 0.5
    assert table.chosen("krum")["lr"] == 0.1, "its worst attack counts"
    assert table.cells()["median", "none"].accuracies == (0.3, 0.3)
    assert table.reference().mean == 0.3
    assert len(table.trials()) == 2 * (2 + 2 * 2 * 2)
    lines = "\n".join(robustness_page.section(table))
    assert "| rule | worst | `none` | `zero` | settings |" in lines
    assert "| lr = 0.5 |" in lines
    head = " ".join(robustness_page.head([table], "digits", "gossip bench"))
    assert "| `lr` | 0.1 or 0.5 |" in head
    assert "| `validation` | 0.2 |" in head
    assert "by the training samples that are held out" in head.replace("\n", " ")
    assert table.as_data()["chosen"]["krum"]["lr"] == 0.1


def test_a_csv_file_has_a_row_for_each_run() -> None:
    table = searched()
    rows = list(csv.DictReader(io.StringIO(exports.csv_of([table, table]))))
    assert len(rows) == len(table.trials())
    assert {row["rule"] for row in rows} == {"mean", "median", "krum"}
    krum = next(row for row in rows if row["rule"] == "krum" and row["lr"] == "0.5")
    shown = krum["declared_f"], krum["validation"], krum["validation_accuracy"]
    assert shown == ("2", "0.2", "0.9")
    assert krum["curve"] == "5:0.5 10:0.3"


def test_latex_has_a_table_with_nothing_special_left_in_it() -> None:
    table = searched()
    text = exports.latex_of([table], "my_data%.npz")
    assert r"my\_data\%.npz" in text
    cells = r"& 95.0 $\pm$ 0.0 & 95.0 $\pm$ 0.0 & 95.0 $\pm$ 0.0 &"
    assert rf"\texttt{{krum}} {cells} lr = 0.1" in text
    assert text.count("&") == 3 * 4


def test_a_caption_says_all_that_a_table_was_made_with() -> None:
    table = searched()
    text = exports.latex_of([table], "digits")
    assert "lr = 0.1 or 0.5, " in text
    assert "mean and standard error over 2 seeds" in text
    assert r"\label{tab:digits-2-of-7}" in text
    settings = {"lr": 0.2, "sender": "momentum:beta=0.9", "weight_decay": 0.001}
    shared = {"trust": True, "batch": 8, "split": "gamma:0.5", "test_samples": 99}
    shared |= {"milestones": "3 6", "lr_decay": 0.5, "split_seed": 4}
    one = RobustnessTable(7, 1, 2, ("median",), ("none",), (0,), 0.9, shared, (settings,))
    one = replace(one, found={trial: TrialResult(0.5) for trial in one.trials()})
    text = exports.latex_of([one], "digits")
    for said in (
        "percent, one seed: data = digits",
        r"batch = 8, lr = 0.2, sender = momentum:beta=0.9, split = gamma:0.5, trust = True",
        r"weight\_decay = 0.001, test\_samples = 99",
        r"milestones = 3 6, lr\_decay = 0.5, split\_seed = 4",
        "f = 1 of n = 7, f = 2 declared",
        r"reaches 50.0; the limit is 45.0, 90 \% of that",
        r"\label{tab:digits-1-of-7-told-2-gamma-0.5}",
    ):
        assert said in text, said
    assert "standard error" not in text


def test_curves_are_means_over_the_seeds_and_drawn(tmp_path: Path) -> None:
    table = searched()
    points = robustness_page.curve_of(table, "median", "none")
    assert [(made, estimate.mean) for made, estimate in points] == [(5, 0.5), (10, 0.3)]
    robustness_page.draw_curves(table, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def bench(folder: Path, *more: object) -> str:
    words = ["--n", 5, "--f", 1, "--seeds", 1, "--rounds", 3, "--into", folder / "runs", *more]
    called = CliRunner().invoke(
        app, ["bench", "robustness", *map(str, words)], catch_exceptions=False
    )
    return called.output


@pytest.mark.usefixtures("forked")
def test_the_command_writes_all_forms_at_once(tmp_path: Path) -> None:
    page, rows, tex = (tmp_path / name for name in ("page.md", "a.csv", "a.tex"))
    forms = ["--out", page, "--csv", rows, "--latex", tex]
    search = ["--lr", 0.1, "--lr", 0.5, "--validation", 0.2, "--curves", 1]
    bench(tmp_path, "--rules", "mean", "--attacks", "none", *forms, *search)
    assert (tmp_path / "page-1-of-5.png").exists()
    assert (tmp_path / "page-curves-1-of-5.png").exists()
    assert rows.read_text("utf-8").count("\n") == 1 + 4
    assert "booktabs" in tex.read_text("utf-8")
    assert "--lr 0.1 --lr 0.5" in page.read_text("utf-8")
    assert "--csv" not in page.read_text("utf-8")


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.usefixtures("forked")
def test_records_have_a_row_for_each_worker_and_round(tmp_path: Path, form: str) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    read = {"csv": pyarrow.csv.read_csv, "parquet": pyarrow.parquet.read_table}[form]
    path = tmp_path / f"records.{form}"
    attack = ["--rules", "suspicion", "--attacks", "none sign_flip*10", "--trust"]
    bench(tmp_path, *attack, "--record", path)
    rows = read(path).to_pylist()
    attacked = [r for r in rows if r["rule"] == "suspicion" and r["attack"] == "sign_flip*10"]
    rounds, n = attacked[0]["rounds"], attacked[0]["n"]
    assert [(r["round"], r["worker"]) for r in attacked] == [
        (at, worker) for at in range(rounds) for worker in range(n)
    ]
    assert [r["worker"] for r in attacked[:n] if r["byzantine"]] == [n - 1]
    for at in range(rounds):
        of_round = attacked[at * n : (at + 1) * n]
        assert sum(r["weight"] for r in of_round) == pytest.approx(1.0)
        assert len({r["loss"] for r in of_round}) == 1
        assert max(of_round, key=lambda r: r["outlyingness"])["byzantine"]
    assert {r["trust_score"] for r in attacked if not r["byzantine"]} == {1.0}
    assert {r["trust_score"] for r in rows if r["rule"] == "mean" and not r["f"]} == {None}

    path.unlink()
    bench(tmp_path, *attack, "--record", path, "--show")
    assert read(path).to_pylist() == rows
    shown = bench(tmp_path, *attack, "--show")
    assert "?" not in shown, "the same runs, without their records"


@pytest.mark.usefixtures("forked")
def test_records_of_runs_with_whole_and_broken_rates_are_in_one_file(tmp_path: Path) -> None:
    """A configuration of ByzFL has the learning rates as they stand in JSON: 1 and 0.5."""
    import pyarrow.parquet

    shared = {"rounds": 3, "validation": 0.2, "record": True, "split_seed": 4}
    choices = tuple({"lr": lr, "sender": "", "weight_decay": 0.0} for lr in (1, 0.5))
    table = RobustnessTable(5, 1, 1, ("mean",), ("none",), (0,), 0.9, shared, choices)
    found = run_all(table.trials(), tmp_path, "digits", 1, quiet=True)
    table = replace(table, found=found)
    exports.write_records(tmp_path / "a.parquet", [table], tmp_path, "digits")
    rows = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert {row["lr"] for row in rows} == {1.0, 0.5}
    assert {row["split_seed"] for row in rows} == {4}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        *((["--milestones", at], "each must be a round from 1 to 2") for at in (0, 3, 900)),
        (["--record", "records.txt"], r"neither in \.parquet nor in \.csv"),
        (["--lr", 0.1, "--lr", 0.5], "2 settings to choose from, but no samples to choose by"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, words: list[object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        bench(tmp_path, "--rules", "mean", *words)


ATTACKS = """
from gossip.aggregators import attacks

def backwards(update, *, strength=3.0):
    return -strength * update

def averaged(crowd):
    return crowd.all_alike(-9 * crowd.mean())

@attacks.attack(shape="together", strength=2.0, meaning="factor")
def declared(crowd, *, strength):
    return crowd.all_alike(-strength * crowd.mean())

@attacks.attack(strength=2.0)
def bare(update, *, strength):
    return -strength * update

def demanding(update, odd):
    return update
"""


def test_a_declared_strength_can_be_set_though_its_meaning_is_not_said(tmp_path: Path) -> None:
    path = tmp_path / "attacks.py"
    path.write_text(ATTACKS)
    update = torch.ones(3)
    assert attacks.make(f"{path}:bare", 5.0)(update, 0).tolist() == [-5.0] * 3
    assert attacks.make(f"{path}:bare")(update, 0).tolist() == [-2.0] * 3


@pytest.mark.usefixtures("forked")
def test_an_attack_of_a_file_is_tried_as_the_others_are(tmp_path: Path) -> None:
    path = tmp_path / "my-attacks.py"
    path.write_text(ATTACKS)
    named = [f"{path}:backwards*20", f"{path}:averaged", f"{path}:declared"]
    rounds = ["--rounds", 20, "--batch", 8]
    said = bench(tmp_path, "--rules", "mean median", "--attacks", " ".join(named), *rounds)
    assert "my-attacks.py:backwards*20" in said
    known = sorted((tmp_path / "runs").iterdir())
    bench(tmp_path, "--rules", "mean median", "--attacks", " ".join(named), *rounds)
    assert sorted((tmp_path / "runs").iterdir()) == known
    path.write_text(ATTACKS.replace("-9", "-8"))
    bench(tmp_path, "--rules", "mean", "--attacks", named[1], *rounds)
    assert len(list((tmp_path / "runs").iterdir())) == len(known) + 1, "it is another attack now"
    assert not {"backwards", "averaged"}.intersection(every_attack()), "none of it stays known"


def test_an_attack_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    path = tmp_path / "attacks.py"
    path.write_text(ATTACKS)
    for name, error, says in (
        (f"{path}:backward", UnknownName, "backwards"),
        (f"{path}:demanding", ConfigError, "needs odd, which is not available"),
        (f"{tmp_path}/none.py:x", ConfigError, "there is no file .* to take x from"),
    ):
        with pytest.raises(error, match=says):
            bench(tmp_path, "--rules", "mean", "--attacks", name)
    path.write_text(ATTACKS.replace("def declared", "def sign_flip"))
    with pytest.raises(ConfigError, match="there is an attack 'sign_flip' already"):
        bench(tmp_path, "--rules", "mean", "--attacks", f"{path}:sign_flip")
