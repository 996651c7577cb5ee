"""``gossip play`` and ``gossip sweep``: what they write and print, and that a sweep survives a
SIGKILL."""

from __future__ import annotations

import csv
import json
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import zygote
from condor import Description, Pool
from parsed_html import Parsed
from pyarrow import parquet
from typer.testing import CliRunner

from gossip.errors import ConfigError
from gossip.launch.cli import app
from gossip_lab import World, grid
from gossip_lab.playground import tables
from gossip_lab.playground.page import CURVES, QUARANTINED
from gossip_lab.playground.played import METRICS, Row

SMALL = 'peers = 3\nsplit = "dirichlet:0.5"\nlr = 0.5\n'
PLAY = ("play", "world.toml", "--rounds", "7", "--every", "3")
STOPPING = """
import signal
from gossip.aggregators import rule
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
calls = 0
@rule
def stop(updates):
    global calls
    calls += 1
    if calls == 6:
        signal.raise_signal(signal.SIGINT)
    return updates.mean(dim=0)
"""
KILLING = """
import os, pathlib, signal
from gossip.aggregators import rule
@rule
def kill(updates):
    if len(list(pathlib.Path("killed/cells").glob("*.json"))) >= 2:
        try:
            pathlib.Path("was_killed").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
    return updates.mean(dim=0)
"""
MINE = """from gossip.aggregators import rule
from gossip.topologies import topology
@topology
def raises(roster, round_id, seed):
    return nosuch
def attack(update):
    raise ValueError("my own")
@rule
def broken(updates):
    return updates.nosuch()
"""
GRID = """
rounds = 4
every = 2
[world]
peers = 3
aggregator = "rules.py:kill"
[grid]
lr = [0.1, 0.5]
seed = [0, 1, 2]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world.toml").write_text(SMALL)
    return tmp_path


def invoke(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, f"{done.output}{done.exception!r}"
    return done


def read(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def texts(rows: Iterable[Iterable[Any]]) -> list[list[str]]:
    return [[str(value) for value in row] for row in rows]


def test_python_toml_and_options_give_the_same_rows(here: Path) -> None:
    world = World(peers=3, split="dirichlet:0.5", lr=0.5)
    rows = texts(world.play(rounds=7, every=3).rows)
    assert len(rows) == 3 * len(METRICS), "after rounds 3, 6 and 7"
    assert texts(World.from_toml(here / "world.toml").play(rounds=7, every=3).rows) == rows
    invoke(*PLAY, "--csv", "file.csv", "--parquet", "file.parquet")
    assert read(here / "file.csv") == [list(Row._fields), *rows]
    stored = parquet.read_table(here / "file.parquet").to_pydict()
    assert texts(zip(*stored.values(), strict=True)) == rows
    (here / "world.toml").write_text('peers = 9\nsplit = "iid"\nlr = 0.1\n')
    options = ("--peers", "3", "--split", "dirichlet:0.5", "--lr", "0.5", "--csv", "options.csv")
    invoke(*PLAY, *options)
    assert read(here / "options.csv") == read(here / "file.csv"), "an option wins over the file"


def test_a_world_leaves_its_fields_rows_and_a_report(here: Path) -> None:
    done = invoke(*PLAY, "--into", "out")
    world = World.from_toml(here / "out/world.toml")
    assert world == World(peers=3, split="dirichlet:0.5", lr=0.5)
    assert len(read(here / "out/rows.csv")) == 1 + 3 * len(METRICS)
    head, *lines = done.stdout.splitlines()
    assert head.split()[:3] == ["round", "time", "sent"]
    assert [line.split()[0] for line in lines] == ["3", "6", "7"]
    assert "written: out/rows.csv, out/world.toml, out/report.html" in done.stderr
    assert (here / "out/report.html").as_uri() in done.stderr
    page = (here / "out/report.html").read_text()
    shown = Parsed(page)
    charts = len(CURVES) - len(QUARANTINED)  # nobody was in quarantine
    assert len(shown.of("figure")) == charts * 3 + 1
    assert [each["class"] for each in shown.of("input")] == ["by-time", "by-round", "by-bytes"]
    assert len(shown.of("script")) == 0
    assert "http" not in page.replace("http-equiv", "")
    counts = [each for each in shown.of("path") if each["class"] == "heat"]
    task = world.build().task
    held = {
        (int(label), peer) for peer in range(3) for label in task.data.labels[task.shares[peer]]
    }
    assert len(counts) == len(held), "a cell for each class that a peer holds"


def test_json_is_all_that_is_on_stdout() -> None:
    found = json.loads(invoke(*PLAY, "--json", "--f", "0").stdout)
    assert found["schema"] == "gossip.play/1"
    assert found["world"]["lr"] == 0.5
    assert [at["round"] for at in found["evaluations"]] == [3, 6, 7]
    assert found["evaluations"][-1]["present"] == 3


def test_both_engines_are_compared() -> None:
    found = invoke("play", "world.toml", "--rounds", "3", "--check").stdout
    assert found.startswith("all parameters are equal in 3 rounds; exact: accuracy 0.")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("play", "absent.toml"), "cannot read absent.toml"),
        (("play", "--engine", "fats"), "Did you mean 'fast'"),
        (("play", "--csv", "absent/rows.csv"), "no folder absent"),
        (("play", "--parquet", "rows.csv"), "--parquet rows.csv"),
        (("play", "--check", "--csv", "rows.csv"), "--check writes no rows"),
        (
            ("play", "--check", "--peers", "20", "--faults", "sign_flip:17"),
            "a comparison plays only the first 16 of 20 peers",
        ),
        (("sweep", "grid.toml", "--engine", "raay"), "Did you mean 'ray'"),
        (("sweep", "grid.toml", "--asha", "loss"), "unknown metric to stop by 'loss'"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_played(
    words: tuple[str, ...], what: str, here: Path
) -> None:
    (here / "grid.toml").write_text(GRID)
    (here / "rules.py").write_text("def kill(updates):\n    return updates[0]\n")
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 1, "main makes it 2"
    assert what in str(done.exception)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--topology", "mine.py:raises"), "mine.py, line 5: NameError"),
        (("--faults", "attack:mine.py:attack:0"), "mine.py, line 7: ValueError: my own"),
        (("--check", "--topology", "mine.py:raises"), "mine.py, line 5: NameError"),
        (("--model", "syntax.py:net"), "(syntax.py, line 2)"),
    ],
)
def test_an_error_in_a_file_of_the_user_is_one_line_with_its_place(
    words: tuple[str, ...], what: str, here: Path
) -> None:
    (here / "mine.py").write_text(MINE)
    (here / "syntax.py").write_text("\ndef net(:\n")
    done = CliRunner().invoke(app, ["play", "--peers", "3", *words])
    assert isinstance(done.exception, ConfigError)
    assert what in str(done.exception)


def test_an_error_not_of_a_users_file_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(World, "evaluations", fail)
    assert isinstance(CliRunner().invoke(app, ["play"]).exception, RuntimeError)


@pytest.mark.parametrize("topology", ["rolling", "ring"])
def test_rounds_without_a_step_are_counted_on_stderr(topology: str, here: Path) -> None:
    (here / "mine.py").write_text(MINE)
    words = ("play", "--peers", "3", "--rounds", "2", "--topology", topology)
    done = invoke(*words, "--aggregator", "mine.py:broken")
    assert "warning: in 2 of 2 rounds some or all peers made no step" in done.stderr
    assert "warning" not in invoke(*words).stderr


def test_times_of_slow_peers_in_gossip_rounds_are_warned_of() -> None:
    slow = ("play", "--peers", "3", "--rounds", "2", "--faults", "slow:1*3")
    assert "warning: with slow peers in gossip rounds" in invoke(*slow, "--topology", "ring").stderr
    assert "warning" not in invoke(*slow).stderr
    assert "warning" not in invoke(*slow, "--topology", "ring", "--engine", "exact").stderr


def test_a_sweep_names_a_cell_with_rounds_without_a_step_and_counts_them(here: Path) -> None:
    (here / "mine.py").write_text(MINE)
    (here / "grid.toml").write_text(
        "rounds = 2\n[world]\npeers = 3\n"
        '[grid]\naggregator = ["mean", "mine.py:broken"]\nseed = [0, 1]\n'
    )
    words = ("sweep", "grid.toml", "--into", "out")
    for more in ((), ("--show",)):
        done = invoke(*words, *more)
        assert (
            "warning of 2 cells, such as aggregator = mine.py:broken, seed = 0: in" in done.stderr
        )


def test_rows_as_parquet_need_a_package_and_say_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, [*PLAY, "--parquet", "rows.parquet"])
    assert "rows.parquet needs pyarrow" in str(done.exception)


def test_ctrl_c_keeps_the_rows_so_far(here: Path) -> None:
    (here / "rules.py").write_text(STOPPING)
    words = ("play", "world.toml", "--every", "2", "--aggregator", "rules.py:stop")
    done = invoke(*words, "--into", "out", code=130)
    rounds = [int(row[1]) for row in read(here / "out/rows.csv")[1:]]
    assert sorted(set(rounds)) == [2, 4]
    assert "interrupted after 5 of 100 rounds" in done.stderr
    assert (here / "out/report.html").is_file()


def test_a_killed_sweep_goes_on_and_plays_no_cell_twice(here: Path) -> None:
    (here / "rules.py").write_text(KILLING)
    (here / "grid.toml").write_text(GRID)
    command = [sys.executable, "-m", "gossip.launch.cli", "sweep", "grid.toml", "-j", "2", "--into"]
    killed = zygote.run([*command, "killed"], cwd=here, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = {path: path.stat().st_mtime_ns for path in (here / "killed/cells").glob("*.json")}
    assert 2 <= len(before) < 6
    again = zygote.run([*command, "killed"], cwd=here, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert f"{6 - len(before)} cells to run, {len(before)} were run before" in again.stderr
    after = {path: path.stat().st_mtime_ns for path in (here / "killed/cells").glob("*.json")}
    assert len(after) == 6
    assert {path: after[path] for path in before} == before
    undisturbed = zygote.run([*command, "whole"], cwd=here, capture_output=True, text=True)
    assert undisturbed.returncode == 0, undisturbed.stderr
    rows = read(here / "killed/rows.csv")
    assert rows == read(here / "whole/rows.csv")
    assert rows[0] == ["lr", *Row._fields]
    assert len(rows) == 1 + 6 * 2 * len(METRICS)
    assert again.stdout == undisturbed.stdout
    assert "±" in again.stdout
    page = Parsed((here / "killed/report.html").read_text())
    bands = [each for each in page.of("path") if each.get("class", "").startswith("band")]
    counted = len(CURVES) - len(QUARANTINED)
    assert len(bands) == 2 * 3 * counted, "of both settings, over each axis, for each metric"


def test_an_error_of_a_cell_is_reported_and_the_others_are_played(here: Path) -> None:
    sweep = grid(
        World(peers=3), rounds=1, into="out", quiet=True, aggregator=["mean", "krum"], f=[0, 2]
    )
    assert len(sweep.results) == 4
    (error,) = sweep.errors
    assert error.startswith("aggregator = krum, f = 2: ConfigError: krum needs")
    assert len(sweep.rows) == 3 * len(METRICS)
    assert len(list((here / "out/cells").glob("*.json"))) == 3, "it is not stored"
    assert sweep.table()[-1].split()[:4] == ["krum", "2", "0", "0"]


def test_a_dag_without_condor_gives_the_rows_of_a_local_sweep(here: Path) -> None:
    values = {"lr": [0.1, 0.5], "split": ["iid", "sorted"]}
    options = {"rounds": 3, "every": 2, "quiet": True}
    waiting = grid(World(peers=3), engine="condor", into="dag", **options, **values)
    assert waiting.missing == 4
    pool = Pool(here / "pool")
    description = here / "dag/condor/cell.sub"
    Description(description.read_text())
    lines = (here / "dag/condor/sweep.dag").read_text().splitlines()
    nodes = [lines[at : at + 3] for at in range(0, len(lines), 3)]
    for at, (job, given, retry) in enumerate(nodes):
        assert job == f"JOB cell{at} {description}"
        assert retry == f"RETRY cell{at} 3 UNLESS-EXIT 2"
        (node,) = pool.submit(description, {"cell": given.split('"')[1]})
        node.start()
        assert node.finish() == 0
    found = grid(World(peers=3), engine="condor", into="dag", **options, **values)
    assert found.missing == 0
    assert (here / "dag/condor/sweep.dag").read_text() == ""
    assert found.rows == grid(World(peers=3), into="local", **options, **values).rows
