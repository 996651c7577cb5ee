"""Training under attack in one process, and the command that makes a table of it."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import gossip
from gossip.errors import ConfigError, UnknownName
from gossip.launch.cli import app
from gossip_lab.bench import robustness as bench_robustness, robustness_page, trial_store
from gossip_lab.bench.robustness import every_attack
from gossip_lab.bench.tables import RobustnessTable
from gossip_lab.bench.trial_world import TrialWorld, train
from gossip_lab.bench.trials import Trial, TrialResult, read_attack
from gossip_lab.data_sets import TrainingData

FEW = {"rounds": 30, "batch": 8, "model": "mlp:8"}


def blobs(seed: int = 0) -> TrainingData:
    """Three classes of points around three centres."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (400,), generator=generator)
    images = 3 * torch.eye(3, 6)[labels] + torch.randn(400, 6, generator=generator)
    return TrainingData(images[:300], labels[:300], images[300:], labels[300:])


def test_the_same_trial_has_the_same_outcome_and_another_seed_another() -> None:
    data, trial = blobs(), Trial("median", "gaussian", 7, 2, rounds=20, batch=4, model="mlp:8")
    assert train(trial, data) == train(trial, data)
    outcomes = {train(dataclasses.replace(trial, seed=seed), data).accuracy for seed in range(4)}
    assert len(outcomes) > 1


def test_the_learning_rate_falls_at_each_milestone() -> None:
    trial = Trial("mean", rounds=20, lr=0.8, milestones="5 10", lr_decay=0.25)
    assert [trial.lr_in(at) for at in (0, 4, 5, 9, 10, 19)] == [0.8, 0.8, 0.2, 0.2, 0.05, 0.05]
    data = blobs()
    small = {"n": 7, "f": 0, "batch": 4, "model": "mlp:8", "every": 10, "rounds": 20}
    stopped = train(Trial("mean", milestones="10", lr_decay=0.0, **small), data)  # type: ignore[arg-type]
    plain = train(Trial("mean", **small), data)  # type: ignore[arg-type]
    assert stopped.curve[0] == plain.curve[0]
    assert stopped.curve[1][1] == stopped.curve[0][1], "no step is made any more"
    assert plain.curve[1][1] != plain.curve[0][1]


def test_a_split_of_its_own_seed_is_the_same_in_all_runs() -> None:
    def parts(seed: int, split_seed: int | None) -> list[list[int]]:
        trial = Trial("mean", n=5, f=0, seed=seed, split="dirichlet:0.1", split_seed=split_seed)
        return [part.tolist() for part in TrialWorld(trial, blobs())._task.shares]

    assert parts(0, 3) == parts(1, 3) == parts(3, None)
    assert parts(0, None) != parts(1, None)


@pytest.mark.parametrize(
    ("rule", "learns"),
    [("mean", False), *((each, True) for each in ("median", "krum", "nnm+trimmed_mean", "zeno"))],
)
def test_the_mean_breaks_under_large_lies_and_robust_rules_learn(rule: str, learns: bool) -> None:
    trial = Trial(rule, "sign_flip*10", 9, 2, rounds=40, batch=8, model="mlp:8")
    accuracy = train(trial, blobs()).accuracy
    assert (accuracy > 0.8) == learns


@pytest.mark.parametrize("attack", every_attack())
def test_every_attack_is_tried_and_the_median_keeps_learning(attack: str) -> None:
    accuracy = train(
        Trial("median", attack, 9, 2, rounds=25, batch=8, model="mlp:8"), blobs()
    ).accuracy
    assert accuracy > 0.6, attack


def test_who_sends_what_is_not_finite_is_dropped_and_counted() -> None:
    data = blobs()
    without = train(Trial("mean", "none", 7, 0, rounds=20, batch=4, model="mlp:8"), data)
    with_nan = train(Trial("mean", "nan", 9, 2, rounds=20, batch=4, model="mlp:8"), data)
    assert with_nan.accuracy == without.accuracy, (
        "the honest draw the same samples, and the others are gone"
    )


def test_what_a_rule_cannot_take_is_said_and_no_accuracy_made_up() -> None:
    data = blobs()
    assert train(Trial("krum", "none", 6, 2), data) == TrialResult(
        None, "needs 7 updates for f = 2"
    )
    refused = train(Trial("monna", "none", 9, 2, rounds=3), data)
    assert refused.accuracy is None
    assert "gossip rounds" in refused.refused


def test_with_local_steps_rules_of_a_judge_learn_as_the_mean_does_where_nobody_lies() -> None:
    found = {}
    for rule in ("mean", "zeno_pp:lengths=updates", "fltrust:lengths=updates", "zeno"):
        trial = Trial(rule, "none", 6, 1, rounds=4, batch=8, lr=0.5, model="mlp:8", local_steps=40)
        found[rule] = train(dataclasses.replace(trial, outer="mean"), blobs()).accuracy or 0.0
    assert found["mean"] > 0.95
    assert min(found.values()) > found["mean"] - 0.03, found


@pytest.mark.parametrize("given", [{"local_steps": 4}, {"outer": "mean"}])
def test_a_rule_that_makes_differences_as_long_as_a_gradient_is_told_of_in_its_cell(
    given: dict[str, Any],
) -> None:
    trial = Trial("zeno_pp", "none", 6, 1, rounds=2, batch=8, model="mlp:8")
    assert train(trial, blobs()).accuracy is not None
    refused = train(dataclasses.replace(trial, **given), blobs())
    assert refused.accuracy is None
    assert refused.refused.endswith("another length: write zeno_pp:lengths=updates")


TIMID = """
from gossip.errors import AggregationError

def refuses(updates, *, f):
    if float(updates.norm(dim=1).max()) > 20 * float(updates.norm(dim=1).median()):
        raise AggregationError("somebody is far away")
    return updates.mean(0)

def breaks(updates, *, f):
    if float(updates.norm(dim=1).max()) > 20 * float(updates.norm(dim=1).median()):
        raise RuntimeError("somebody is far away")
    return updates.mean(0)

def nans(updates, *, f):
    return updates.mean(0) / 0 * 0

def never(updates, *, f):
    raise AggregationError("out of order")
"""


def with_results(table: RobustnessTable, found: Mapping[Trial, TrialResult]) -> RobustnessTable:
    return dataclasses.replace(table, found=found)


@pytest.mark.parametrize(
    ("name", "words"), [("refuses", "AggregationError"), ("breaks", "RuntimeError")]
)
def test_a_rule_that_raises_under_attack_loses_those_rounds_and_fails_there(
    name: str, words: str, tmp_path: Path
) -> None:
    path, data = tmp_path / "timid.py", blobs()
    path.write_text(TIMID)
    calm = Trial(f"{path}:{name}", "none", 9, 2, rounds=30, batch=8, model="mlp:8")
    honest = train(calm, data)
    assert honest.skipped == 0
    assert honest.accuracy is not None
    for attack in ("sign_flip*1000", "adaptive"):
        attacked = train(dataclasses.replace(calm, attack=attack), data)
        assert attacked.accuracy is not None
        if attack != "adaptive":  # which finds out what the rule can bear
            assert attacked.accuracy < 0.9 * honest.accuracy
            assert attacked.skipped == 30
            assert attacked.trouble == f"it raised {words}: somebody is far away"
    attacks_ = ("none", "sign_flip*1000")
    shown = RobustnessTable(9, 2, 2, (calm.rule,), attacks_, tuple(range(4)), 0.9, FEW)
    shown = with_results(shown, {trial: train(trial, data) for trial in shown.trials()})
    text = "\n".join(robustness_page.section(shown))
    lost = "made no step under `sign_flip*1000` (120 of 120 rounds): it raised"
    assert f"{lost} {words}: somebody is far away." in text
    assert "**fails**" in text
    assert shown.as_data()["cells"][1]["skipped"] == [30] * 4


def test_a_rule_or_an_attack_that_raises_without_reason_cannot_be_run(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(
        "from gossip.aggregators import rule\n@rule\ndef late(updates, *, f):\n"
        "    return updates.double().mean(dim=0)\n"
        "def boom(update):\n    raise ValueError('attack broke')\n"
    )
    settings: dict[str, Any] = {"n": 5, "f": 1, "rounds": 3, "batch": 8, "model": "mlp:8"}
    trials = [
        Trial(f"{path}:late", "none", **settings),
        Trial("median", f"attack:{path}:boom".removeprefix("attack:"), **settings),
    ]
    for trial, why in zip(trials, ("RuntimeError", "ValueError: attack broke"), strict=True):
        made = trial_store._play("digits", trial)
        assert made["accuracy"] is None
        assert str(made["refused"]).startswith(f"raised {why}")


def test_a_rule_of_nothing_but_nan_says_how_many_rounds_it_lost_and_one_that_never_works_is_refused(
    tmp_path: Path,
) -> None:
    path, data = tmp_path / "timid.py", blobs()
    path.write_text(TIMID)
    outcome = train(Trial(f"{path}:nans", "none", 7, 2, rounds=12, batch=8, model="mlp:8"), data)
    assert (outcome.skipped, outcome.trouble) == (12, "its aggregate was not finite")
    assert train(Trial(f"{path}:never", "none", 7, 2, rounds=12), data) == TrialResult(
        None, "out of order"
    )


NOTING = """
from pathlib import Path

def notes(updates, *, f, round_id):
    with Path(__file__).with_suffix(".txt").open("a") as heard:
        print(round_id, file=heard)
    return updates.sort(dim=0).values[f : len(updates) - f].mean(0)
"""


def test_a_rule_is_told_the_round_and_so_are_the_liars_who_try_it(tmp_path: Path) -> None:
    path = tmp_path / "noting.py"
    path.write_text(NOTING)
    trial = Trial(f"{path}:notes", "none", 7, 2, rounds=4, batch=8, model="mlp:8")
    assert train(trial, blobs()).refused == ""
    heard = path.with_suffix(".txt").read_text().split()
    assert heard == ["0", "0", "1", "2", "3"], "it is tried once before"
    train(dataclasses.replace(trial, attack="adaptive*1"), blobs())
    _tried, *more = path.with_suffix(".txt").read_text().split()[len(heard) :]
    assert len(more) > 8
    assert set(more) == {"0", "1", "2", "3"}
    assert more == sorted(more), "who searches in a round searches on the rule of that round"


def test_momentum_and_labels_sorted_apart_change_the_training() -> None:
    data, plain = blobs(), Trial("median", "none", 7, 2, rounds=10, batch=4, model="mlp:8", lr=0.1)
    reached = {
        train(trial, data).accuracy
        for trial in (
            plain,
            dataclasses.replace(plain, sender="momentum:0.9"),
            dataclasses.replace(plain, split="sorted"),
        )
    }
    assert len(reached) == 3


def test_attacks_are_read_with_their_strength_and_refused_with_a_reason() -> None:
    assert read_attack("sign-flip*10") == ("sign_flip", 10.0)
    assert read_attack("sign-flip*1e-1") == ("sign_flip", 0.1)
    assert read_attack("scale*-5") == ("scale", -5.0)
    assert read_attack("label_flip") == ("label_flip", None)
    with pytest.raises(UnknownName, match="Did you mean 'alie'"):
        read_attack("alia")
    for text, says in (
        ("dissensus", "gossip rounds"),
        ("none*2", "no strength"),
        ("alie*much", "not a number"),
        ("zero*2", "zero"),
    ):
        with pytest.raises(ConfigError, match=says):
            read_attack(text)


# --- the table ------------------------------------------------------------------------------------


def table(
    rules: tuple[str, ...] = ("median", "mean", "krum"),
    attacks: tuple[str, ...] = ("none", "scale"),
    n: int = 6,
) -> RobustnessTable:
    return RobustnessTable(n, 2, 2, rules, attacks, (0, 1, 2), 0.9, FEW)


def outcomes(shown: RobustnessTable, accuracy: float = 0.9) -> dict[Trial, TrialResult]:
    found = {trial: TrialResult(accuracy + 0.005 * trial.seed) for trial in shown.trials()}
    for trial in found:
        if trial.rule == "mean" and trial.attack == "scale":
            found[trial] = TrialResult(0.2)
        if trial.rule == "krum":
            found[trial] = TrialResult(None, "needs 7 updates for f = 2")
    return found


def test_a_failing_cell_says_so_and_one_that_cannot_be_run_is_a_dash_with_its_reason() -> None:
    shown = table()
    text = "\n".join(robustness_page.section(with_results(shown, outcomes(shown))))
    assert "| `mean` | **fails** (20.0 ± 0.0) | 90.5 ± 0.3 | **fails** (20.0 ± 0.0) |" in text
    assert "| `krum` | - | - | - |" in text
    assert "\n- Cannot be run: `krum`: needs 7 updates for f = 2." in text
    assert "These rules hold under `scale`: `median`." in text
    assert text.index("| `median` |") < text.index("| `mean` |") < text.index("| `krum` |")


def test_a_table_of_what_was_run_so_far_says_what_is_missing() -> None:
    shown = table(rules=("median", "mean"))
    found = {
        trial: outcome
        for trial, outcome in outcomes(shown).items()
        if (trial.rule, trial.attack) != ("median", "scale")
    }
    text = "\n".join(robustness_page.section(with_results(shown, found)))
    assert "| `median` | 90.5 ± 0.3 | 90.5 ± 0.3 | ? |" in text
    assert "1 cell not run yet" in text
    assert "No rule is known to hold under `scale`." in text, (
        "the median held under the one that was run"
    )
    assert "none" not in text.lower().replace("`none`", "")
    scaled = with_results(table(("mean",), ("scale",)), outcomes(shown))
    assert "No rule holds under `scale`." in "\n".join(robustness_page.section(scaled))


def test_a_run_is_compared_with_the_one_of_its_seed() -> None:
    """Accuracies differ more between seeds than between rules."""
    shown = table(rules=("median",), attacks=("none",))
    reference = {0: 0.5, 1: 0.7, 2: 0.9}
    above = {trial: TrialResult(reference[trial.seed] + 0.01) for trial in shown.trials()}
    found = above | {trial: TrialResult(reference[trial.seed]) for trial in shown._alone({})}
    assert with_results(shown, found).cells()["median", "none"].verdict == "holds"
    swapped = found | {
        trial: TrialResult(reference[2 - trial.seed] + 0.01)
        for trial in shown.trials()
        if trial.rule == "median"
    }
    assert with_results(shown, swapped).cells()["median", "none"].verdict == "undecided"


@pytest.mark.parametrize(
    ("rules", "attacks_", "verdict"),
    [
        (("median",), ("none",), "holds"),
        (("median", "krum", "mda", "cge"), ("none", "scale", "inf", "nan", "zero"), "undecided"),
    ],
)
def test_the_more_cells_a_table_has_the_more_a_verdict_needs(
    rules: tuple[str, ...], attacks_: tuple[str, ...], verdict: str
) -> None:
    shown = table(rules, attacks_)
    chance, margin = (0.02, -0.02, 0.01), (0.10, 0.12, 0.16)
    found = {
        trial: TrialResult(0.81 + (margin if cell == ("median", "none") else chance)[trial.seed])
        for trial in shown.trials()
        for cell in [(trial.rule, trial.attack)]
    } | {trial: TrialResult(0.9) for trial in shown._alone({})}
    assert with_results(shown, found).cells()["median", "none"].verdict == verdict


def test_an_attack_that_sends_the_honest_mean_is_named() -> None:
    def section(n: int, attacks_: tuple[str, ...]) -> str:
        shown = table(("median",), attacks_, n)
        return "\n".join(robustness_page.section(with_results(shown, outcomes(shown))))

    assert "- No attack with 2 of 10 workers Byzantine: `alie`." in section(
        10, ("none", "alie", "alie*1.5")
    )
    assert "No attack" not in section(10, ("none", "alie*1.5", "scale"))
    assert "No attack" not in section(9, ("none", "alie"))


def write_page(
    page: Path, shown: RobustnessTable, found: dict[Trial, TrialResult], plot: bool = False
) -> None:
    shown = with_results(shown, found)
    head = robustness_page.head([shown], "digits", "gossip bench")
    robustness_page.write(page, [shown], head, plot)


def test_a_page_is_written_with_its_heat_maps(tmp_path: Path) -> None:
    shown = table()
    write_page(tmp_path / "docs" / "page.md", shown, outcomes(shown), plot=True)
    page = (tmp_path / "docs" / "page.md").read_text("utf-8")
    assert "page-2-of-6.png" in page
    assert "\n    gossip bench\n" in page
    reached = "This is 3 seeds and 30 rounds: averaging without any attacker reaches 90.5 %"
    assert reached in page.replace("\n", " ")
    assert (tmp_path / "docs" / "page-2-of-6.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_says_what_calculated_its_runs(tmp_path: Path) -> None:
    shown, page = table(), tmp_path / "page.md"
    found = {
        trial: dataclasses.replace(
            outcome, arithmetic=f"torch 2.13.0, {'AVX2' if trial.seed else 'AVX512'}"
        )
        for trial, outcome in outcomes(shown).items()
    }
    write_page(page, shown, found)
    calculated = "Calculated with torch 2.13.0, AVX2 and torch 2.13.0, AVX512. Other processors"
    assert calculated in page.read_text("utf-8").replace("\n", " ")
    assert with_results(shown, found).as_data()["arithmetic"] == [
        "torch 2.13.0, AVX2",
        "torch 2.13.0, AVX512",
    ]
    write_page(page, shown, outcomes(shown))
    written = page.read_text("utf-8")
    assert "Calculated" not in written, "runs of which it was not kept"
    assert f"Made on {date.today().isoformat()} with gossip {gossip.__version__}" in written


@pytest.mark.usefixtures("forked")
def test_a_page_names_the_command_that_makes_it(tmp_path: Path) -> None:
    rule, out = tmp_path / "mine.py", tmp_path / "page.md"
    rule.write_text("def keep(updates, *, f): return updates.mean(0)\n")
    words = ["bench", "robustness", "--rules", f"mean {rule}:keep"]
    words += shlex.split("--attacks none --n 5 --f 1 --seeds 1 --rounds 2 --no-plot --jobs 1")
    words += ["--into", str(tmp_path / "runs"), "--out", str(out)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    page = out.read_text("utf-8")
    (command,) = [line.strip() for line in page.splitlines() if line.startswith("    gossip")]
    assert f"Calculated with {trial_store.arithmetic()}. " in page.replace("\n", " "), (
        "the worker keeps it, and so does its file"
    )
    kept = [word for word in words if word not in ("--jobs", "--into", str(tmp_path / "runs"))]
    assert sorted(shlex.split(command)) == sorted(
        ["gossip", *kept[: kept.index("--no-plot") + 1], "--out", str(out)]
    )


def test_a_run_is_remembered_by_everything_that_makes_a_difference(tmp_path: Path) -> None:
    trial, outcome = Trial("median", "alie*1.5", 10, 2), TrialResult(0.5, skipped=3)
    store = trial_store.store_of(tmp_path, "digits")
    store.write(trial, dataclasses.asdict(outcome))
    assert store.read(trial) == outcome
    for field, value in (
        ("rule", "mean"),
        ("attack", "alie"),
        ("n", 11),
        ("seed", 1),
        ("sender", "clip:1"),
        ("split", "sorted"),
        ("trust", True),
        ("declared_f", 3),
    ):
        assert store.read(dataclasses.replace(trial, **{field: value})) is None
    assert trial_store.store_of(tmp_path, "mnist.npz").read(trial) is None
    (written,) = tmp_path.iterdir()
    written.write_text(written.read_text("utf-8")[:40])
    assert store.read(trial) is None, "a torn file is run again"


def test_a_run_that_was_recorded_is_the_same_run(tmp_path: Path) -> None:
    trial, outcome = Trial("median", "alie", 10, 2), TrialResult(0.5)
    recorded = dataclasses.replace(trial, record=True)
    store = trial_store.store_of(tmp_path, "digits")
    store.write(trial, dataclasses.asdict(outcome))
    assert store.read(recorded) is None, "it has no records"
    records = {"round": [0, 0]}
    store.write(recorded, dataclasses.asdict(dataclasses.replace(outcome, records=records)))
    assert store.read(trial) == outcome
    assert store.read(recorded) == outcome
    assert trial_store.recall_records(store, trial) == records


@pytest.mark.usefixtures("forked")
def test_the_command_runs_what_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def bench(seeds: int) -> list[dict[str, object]]:
        bench_robustness.robustness(
            rules=["mean trimmed-mean"], attacks=["none scale"], n=[5], f=[1],
            seeds=seeds, rounds=5, batch=4, lr=[0.5], model="mlp:8", split=["iid"], data="digits",
            jobs=1, into=tmp_path, out=None, fails_below=0.9, plot=False, as_json=True,
        )  # fmt: skip
        parsed: list[dict[str, object]] = json.loads(capsys.readouterr().out)
        return parsed

    (first,) = bench(1)
    assert len(list(tmp_path.glob("*.json"))) == 5
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    (again,) = bench(1)
    assert again == first
    (more,) = bench(2)
    assert len(more["cells"][0]["accuracies"]) == 2  # type: ignore[index]
    assert all(path.stat().st_mtime_ns == before[path] for path in before)


@pytest.mark.usefixtures("forked")
def test_each_size_has_its_table_and_strengths_keep_their_minus(tmp_path: Path) -> None:
    words = shlex.split("bench robustness --rules mean --attacks sign-flip*1e-1 --n 5 --f 1")
    words += ["--n", "6", "--f", "2", "--seeds", "1", "--rounds", "2", "--into", str(tmp_path)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    first, second = done.output.split("\n\n## f = 2 of 6\n\nWithout attackers")
    assert "## f = 1 of 5\n\nWithout attackers" in first
    assert "| `sign_flip*1e-1` |" in first
    assert "| `sign_flip*1e-1` |" in second


def test_misspelt_rules_attacks_and_senders_stop_the_command_at_once(tmp_path: Path) -> None:
    for change, says in (
        ({"rules": ["krun"]}, "krum"),
        ({"attacks": ["alia"]}, "alie"),
        ({"sender": ["momentun"]}, "momentum"),
        ({"rules": ["mean zeno:b=1"], "n": [10], "f": [4]}, "zeno leaves out b=1 updates, but f=4"),
        ({"rules": ["mean zeno_pp"], "local_steps": [1, 4]}, "as long as the judge's gradient"),
        ({"rules": ["mean nnm+fltrust"], "outer": ["mean"]}, "as long as the judge's gradient"),
        ({"n": [10, 20], "f": [2]}, "of Byzantine workers"),
        ({"n": [5], "f": [5]}, "5 Byzantine of 5 workers"),
        ({"rules": None, "n": [5], "f": [-1]}, "-1 Byzantine of 5 workers"),
        ({"n": [0], "f": [0]}, "0 Byzantine of 0 workers"),
        ({"lr": [math.nan]}, "--lr must be a learning rate above 0, not nan"),
        ({"lr": [-1.0]}, "--lr must be a learning rate above 0, not -1"),
        ({"lr": [math.inf]}, "not inf"),
    ):
        options = {
            "rules": ["mean"],
            "attacks": ["none"],
            "n": [5],
            "f": [1],
            "into": tmp_path / "never",
            **change,
        }
        with pytest.raises(ConfigError, match=says):
            bench_robustness.robustness(**options)  # type: ignore[arg-type]
    assert not (tmp_path / "never").exists()
