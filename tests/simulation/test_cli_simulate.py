"""``gossip simulate`` as people and scripts use it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from effort import effort
from typer.testing import CliRunner

from gossip.errors import GossipError
from gossip.faults import plan as faults
from gossip.faults.kinds import Hang
from gossip.launch.cli import app
from gossip_lab.simulation.campaign import play
from gossip_lab.simulation.campaign.play import SimulationResult, ViolationRecord
from gossip_lab.simulation.schedules.schedule import Schedule

COMMAND = [sys.executable, "-m", "gossip.launch.cli", "simulate"]
PLAN = """
[simulate]
seed = 12
peers = 4
topology = "rolling"
aggregator = "mean"
active_s = 2.0
duration_s = 2.0
compute_s = [0.1, 0.2]

[[fault]]
kind = "restart"
peer = 1
at_s = 1.2
after_s = 0.2

[[fault]]
kind = "partition"
sides = [[0, 1], [2, 3]]
at_s = 1.6
for_s = 0.2
"""


def simulate(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def test_a_plan_with_a_seed_is_played_once_told_about_and_drawn(plan: Path, tmp_path: Path) -> None:
    done = simulate("--faults", str(plan), "--picture", str(tmp_path / "end.svg"))
    assert done.returncode == 0, done.stderr
    assert "seed 12: 4 peers, rolling, mean" in done.stdout
    assert "took place: restart 1, partition 1" in done.stdout
    assert done.stdout.rstrip().endswith("no violation")
    assert (tmp_path / "end.svg").read_text().startswith("<svg ")


def test_json_is_all_that_stdout_holds_and_says_what_was_covered(plan: Path) -> None:
    done = simulate(
        "--faults", str(plan), "--seeds", "2", "--jobs", "1", "--json", "--out", str(plan.parent)
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["schema"] == "gossip.simulate/1"
    assert (said["schedules"], said["violations"], said["failures"]) == (2, 0, [])
    assert said["faults"] == {
        kind: {"drawn": 2, "schedules": 2, "times": 2} for kind in ("partition", "restart")
    }
    assert said["kinds_of_fault"] == {"2": 2}
    assert said["judged"]["S9"] > 0


def test_a_replay_as_json_names_the_trace_which_is_the_same_each_time(plan: Path) -> None:
    words = ["--replay", "3", "--faults", str(plan), "--json"]
    there = json.loads(simulate(*words).stdout)
    here = json.loads(CliRunner().invoke(app, ["simulate", *words]).stdout)
    assert there == here
    assert there["seed"] == 3
    assert len(there["trace_hash"]) == 32
    assert faults.from_toml(there["plan"]).simulate["seed"] == 3


def broken(schedule: Schedule) -> SimulationResult:
    """Stands in for a core that breaks whenever a peer hangs."""
    found = (
        ViolationRecord("S8", 1, 7.5, "applied twice")
        if any(isinstance(fault, Hang) for fault in schedule.faults)
        else None
    )
    return SimulationResult(
        schedule, found, "00" * 16, 50, 30.0, {"hang": 1} if found else {}, 0, {}, {}, {"S8": 3}
    )


def test_a_violation_exits_1_and_leaves_one_command_and_a_plan_that_replay_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "run", broken)
    done = CliRunner().invoke(
        app, ["simulate", "--seeds", "12", "--jobs", "1", "--out", str(tmp_path)]
    )
    assert done.exit_code == 1
    (path,) = tmp_path.glob("*.toml")
    assert f"replay:  gossip simulate --faults {path}" in done.output
    small = faults.load(path)
    assert [type(fault) for fault in small.faults] == [Hang]
    assert small.simulate["peers"] == 2
    assert all(line.strip() in done.output for line in small.to_toml().splitlines())
    again = broken(replace(Schedule(0)).with_plan(small))
    assert again.violation is not None
    # What real processes can do, they can do with the very same file.
    assert small.specs == (str(small.faults[0]),)


LATE = (
    '[simulate]\nseed = 12\nactive_s = 2.0\nduration_s = 2.0\n[[fault]]\nkind = "loss"\nshare = '
    "0.5\nat_s = 5.0\nfor_s = 1.0\n"
)


@pytest.mark.parametrize("many", [[], ["--seeds", "2", "--jobs", "1"]])
def test_a_plan_whose_faults_never_take_place_fails(many: list[str], tmp_path: Path) -> None:
    path = tmp_path / "late.toml"
    path.write_text(LATE)
    done = CliRunner().invoke(
        app, ["simulate", "--faults", str(path), "--out", str(tmp_path), *many]
    )
    assert done.exit_code == 1
    assert "proves too little: loss" in done.output
    if not many:
        assert "did not take place: loss (faults begin before active_s = 2)" in done.output


def test_ctrl_c_tells_what_was_found_so_far_and_leaves_the_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[int] = []

    def interrupted(schedule: Schedule) -> SimulationResult:
        played.append(schedule.seed)
        if len(played) == 12:
            raise KeyboardInterrupt
        return broken(schedule)

    monkeypatch.setattr(play, "run", interrupted)
    done = CliRunner().invoke(
        app, ["simulate", "--seeds", "1000", "--jobs", "1", "--out", str(tmp_path), "--json"]
    )
    assert done.exit_code == 130
    said = json.loads(done.stdout)
    assert (said["schedules"], said["interrupted"]) == (11, True)
    assert said["violating_seeds"]
    (path,) = tmp_path.glob("*.toml")
    assert path == Path(said["failures"][0]["plan_file"])
    # as it was played: nothing was made small
    assert faults.load(path).simulate["seed"] == said["violating_seeds"][0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--trace"], "--replay SEED"),
        (["--replay", "3", "--seeds", "5"], "neither --seeds nor --minutes"),
        (["--topology", "rong"], "Did you mean 'ring'?"),
        (["--aggregator", "mediam", "--replay", "1"], "Did you mean 'median'?"),
        (["--aggregator", "zeno", "--replay", "1"], "requests the loss from the trainer"),
        (
            ["--aggregator", "krum:f=0"],
            "krum:f=0 tolerates f=0 Byzantine peers, and the run has f=1",
        ),
        (
            ["--aggregator", "multi_krum:m=9"],
            "multi_krum:m=9 needs 10 updates to tolerate f=1 Byzantine peers, got 9",
        ),
        (["--aggregator", "multi_krum", "--peers", "4"], "multi_krum needs 5 updates"),
        (["--peers", "0"], "1 to 64 peers"),
        (["--peers", "65"], "1 to 64 peers"),
        (["--replay", "-5"], "seed -5"),
        (["--first-seed", "-3"], "seed -3"),
        (["--seeds", "0"], "nothing to play: 0 seeds --seeds"),
        (["--jobs", "0"], "at least one process"),
        (["--faults", "nowhere.toml"], "cannot read the fault plan nowhere.toml"),
        (["--out", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_a_hint(options: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["simulate", *options])
    assert isinstance(done.exception, GossipError), done.output
    assert done.exception.exit_code == 2
    assert says in f"{done.exception} {done.exception.hint}"


def test_a_plan_whose_rule_does_not_cover_its_liars_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[simulate]\nseed = 1\npeers = 8\naggregator = "dnc:c=0.6"\n[[fault]]\nkind = "zero"\n'
        "peers = [1, 2]\n"
    )
    for more in ([], ["--seeds", "2"]):
        done = CliRunner().invoke(app, ["simulate", "--faults", str(path), *more])
        assert "dnc: c=0.6 leaves out 1 updates, but f=2" in str(done.exception)


def test_a_world_in_a_plan_that_cannot_be_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[simulate]\npeers = 65\n")
    done = CliRunner().invoke(app, ["simulate", "--faults", str(path), "--seeds", "1"])
    assert isinstance(done.exception, GossipError), done.output
    assert "1 to 64 peers" in str(done.exception)


@pytest.mark.parametrize("command", [["run", "train.py"], ["demo"]])
def test_real_runs_refuse_a_plan_for_the_simulator_alone(command: list[str], plan: Path) -> None:
    plan.write_text(
        plan.read_text() + '[[fault]]\nkind = "drift"\npeer = 1\nrate = 0.9\nat_s = 1\nfor_s = 1\n'
    )
    done = CliRunner().invoke(app, [command[0], "--faults", str(plan), *command[1:]])
    assert "only the simulator supports 'drift'" in str(done.exception)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL), *effort([], [(signal.SIGTERM, 143)])],
)
def test_a_search_that_is_ended_leaves_no_process_behind(number: signal.Signals, code: int) -> None:
    search = subprocess.Popen(
        [*COMMAND, "--seeds", "100000", "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell starts what runs in the background with SIGINT ignored,
        # and that would be inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        parent, deadline = psutil.Process(search.pid), time.monotonic() + 60
        while len(children := parent.children(recursive=True)) < 2:
            assert time.monotonic() < deadline, "it starts no processes"
            assert search.poll() is None, search.communicate()
            time.sleep(0.05)
        search.send_signal(number)
        search.wait(60)  # and not for the end of its output, which a child may hold open
        assert search.returncode == code
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive
        _, errors = search.communicate(timeout=60)
        if number != signal.SIGKILL:
            assert b"Traceback" not in errors
            assert b"leaked" not in errors
    finally:
        if search.poll() is None:
            search.kill()
            search.wait()
