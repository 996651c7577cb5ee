"""Trackers get what the run's files have, and can neither slow nor end a run."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from recorded_run import KILLED_AT, QUARANTINED_AT, ROUNDS, RecordedRun
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html

from gossip.errors import ConfigError
from gossip.launch.report import RunReader
from gossip.launch.track import beside
from gossip.launch.track.base import Point, RunDescription
from gossip.launch.track.exporting import export
from gossip.launch.track.run_points import BATCH, RunPoints
from gossip.run import TRACKERS, check_trackers, tracker_log, trackers_asked_for


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    return RecordedRun(tmp_path / "run")


class Kept:
    """A tracker that keeps what it gets."""

    def __init__(self) -> None:
        self.curves: dict[str, list[tuple[int, float]]] = {}
        self.events: list[tuple[int, str]] = []
        self.batches: list[int] = []

    def begin(self, about: RunDescription) -> None:
        pass

    def log_event(self, step: int, at: float, text: str) -> None:
        self.events.append((step, text))

    def close(self) -> None:
        pass

    def points(self, points: Sequence[Point]) -> None:
        self.batches.append(len(points))
        for point in points:
            self.curves.setdefault(point.name, []).append((point.step, point.value))


def read_all(run: RecordedRun) -> Kept:
    kept = Kept()
    RunPoints(run.folder, kept).read_on()
    return kept


def test_curves_have_every_value_that_was_logged_once(run: RecordedRun) -> None:
    kept = Kept()
    points = RunPoints(run.folder, kept)
    for first in range(0, ROUNDS, 9):
        last = min(first + 9, ROUNDS)
        run.rounds(first, last)
        run.log_losses(0, first, last)
        points.read_on()
    points.read_on()
    assert kept.curves["loss/peer-0"] == [(n, 1 / (n + 1)) for n in range(ROUNDS)]
    assert kept.curves["swarm/loss"] == [(n, 2.0 - n / 40) for n in range(ROUNDS)]
    assert [value for _, value in kept.curves["swarm/round_s"]] == pytest.approx(
        [0.1] * 39, abs=1e-5
    )
    assert kept.curves["swarm/contributors"][-1] == (ROUNDS - 1, 3.0)
    assert points.given == sum(map(len, kept.curves.values()))
    assert "skipped/peer-0" not in kept.curves


def test_faults_trust_and_participation_are_there(run: RecordedRun) -> None:
    kept = read_all(run.whole())
    texts = {text: step for step, text in kept.events}
    assert any(text.startswith("- peer 3 quarantined at round 15") for text in texts)
    assert any(text.startswith("x peer 1 killed by 9") for text in texts)
    assert kept.curves["swarm/deaths"][-1][1] == 1
    assert kept.curves["trust/peer-3"][-1][1] < 0.2
    assert kept.curves["participation/peer-2"][-1][1] < 0.5
    assert next(step for text, step in texts.items() if "killed" in text) in (
        KILLED_AT - 1,
        KILLED_AT,
    )
    assert next(step for text, step in texts.items() if "quarantined" in text) in (
        QUARANTINED_AT - 1,
        QUARANTINED_AT,
    )


def test_who_is_missing_and_who_was_started_again_is_there(run: RecordedRun) -> None:
    kept = read_all(run.whole())
    assert [value for _, value in kept.curves["skipped_by/peer-1"]] == [0.0, 3.0, 0.0]
    assert [value for _, value in kept.curves["starts/peer-1"]] == [1.0, 2.0]
    assert [value for _, value in kept.curves["starts/peer-0"]] == [1.0]
    assert kept.curves["swarm/server"][:4] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 0.0)]
    assert kept.curves["swarm/attempt"] == [(0, 0.0)]


def test_a_round_that_the_next_server_made_is_there(run: RecordedRun) -> None:
    run.rounds(0, 2)
    path = run.folder / "peer-1" / "commits.jsonl"
    path.write_text(path.read_text().replace('"made_at": 0', '"made_at": 1'))
    run.rounds(2, 3)
    kept = read_all(run)
    assert kept.curves["swarm/attempt"] == [(0, 0.0), (1, 1.0), (2, 0.0)]


def test_a_stopped_peer_is_no_death(run: RecordedRun) -> None:
    run.rounds(0, 5)
    run.event(1.6, 0, "fault", kind="hang", round=5, seconds=2.0, fault="hang:0@5+2s")
    run.rounds(5, 20)
    kept = read_all(run)
    assert any(text.startswith("* injected: SIGSTOP peer 0") for _, text in kept.events)
    assert kept.curves["swarm/deaths"][-1][1] == 0


def test_how_a_run_was_left_is_told_last(run: RecordedRun) -> None:
    kept = Kept()
    run.rounds(0, 25)  # peer 1 is killed in round 20; then everybody falls silent
    run.event(run.at(24) + 0.1, 2, "skip", subject=0, round=24, reason="suspect")
    points = RunPoints(run.folder, kept)
    points.read_on()
    points.end()
    assert kept.events[-1][1] == "x over: 0 of 4 peers finished; not: 0-3"
    assert kept.curves["skipped_by/peer-0"][-1] == (24, 1.0)


def test_values_come_in_batches_of_a_bounded_size(run: RecordedRun) -> None:
    run.log_losses(0, 0, 2 * BATCH + 5)
    kept = read_all(run)
    assert max(kept.batches) == BATCH


def test_what_a_run_was_started_with_is_told(run: RecordedRun) -> None:
    code = {"commit": "abc", "changed_files": 2}
    (run.folder / "environment.json").write_text(json.dumps({"started": 5.0, "code": code}))
    about = RunPoints(run.folder, Kept()).about()
    assert (about.name, about.began) == ("digits-0a1b", 5.0)
    assert about.settings["faults"] == "sign_flip:3"
    assert about.tags["code.commit"] == "abc"


def test_a_tracker_that_is_not_there_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS, "wandb", ("no_such_package",))
    with pytest.raises(ConfigError, match="needs no_such_package") as told:
        check_trackers(["wandb"])
    assert told.value.hint == "pip install 'gossip-train[wandb]'"
    with pytest.raises(ConfigError, match="Did you mean 'mlflow'"):
        check_trackers(["mlfow"])


def test_an_extra_of_each_name_is_declared() -> None:
    text = Path(__file__).parents[2].joinpath("pyproject.toml").read_text()
    needing = [name for name, packages in TRACKERS.items() if packages]
    assert [name for name in needing if f"\n{name} = [" not in text] == []


def test_trackers_of_the_environment_are_checked_as_those_of_an_option() -> None:
    asked = {"GOSSIP_TRACK": " tensorboard, prometheus,"}
    assert trackers_asked_for(asked) == ["tensorboard", "prometheus"]
    assert trackers_asked_for({}) == []
    with pytest.raises(ConfigError, match="Did you mean 'tensorboard'"):
        trackers_asked_for({"GOSSIP_TRACK": "tensorbord"})


# --- beside a run ---------------------------------------------------------------------------------


def exporter_is(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Puts a process that runs ``code`` in the place of the exporter."""

    def started(name: str, folder: Path) -> subprocess.Popen[bytes]:
        with tracker_log(name, folder).open("wb") as out:
            command = [sys.executable, "-S", "-c", code]
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)

    monkeypatch.setattr(beside, "start_tracker", started)


def said_of(run: RecordedRun) -> list[str]:
    said: list[str] = []
    with beside.tracked(["tensorboard"], run.folder, said.append):
        pass
    return said


def test_a_trackers_last_words_are_said(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter_is(monkeypatch, "import sys; sys.stdin.read(); print('7 values were exported')")
    assert said_of(run) == ["tensorboard: 7 values were exported"]


def test_a_tracker_that_fails_is_named_with_what_to_do(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter_is(monkeypatch, "raise OSError('disk full')")
    (line,) = said_of(run)
    assert line.startswith("! tensorboard has failed: OSError: disk full")
    assert line.endswith(f"then: gossip track {run.folder} --to tensorboard")


def test_a_tracker_that_blocks_is_ended_after_the_run(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "END_S", 0.2)
    exporter_is(monkeypatch, "import signal\nwhile True: signal.pause()")
    (line,) = said_of(run)
    assert "had not stored all values 0.2 s after the end" in line


def test_a_tracker_that_cannot_be_started_ends_nothing(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(beside, "start_tracker", fails)
    (line,) = said_of(run)
    assert "cannot be started (Cannot allocate memory); training continues" in line


def test_an_error_of_the_run_passes(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter_is(monkeypatch, "import sys; sys.stdin.read()")
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt), beside.tracked(["wandb"], run.folder, said.append):
        raise KeyboardInterrupt
    assert said == ["wandb: it printed nothing"]


# --- the trackers themselves ----------------------------------------------------------------------


@pytest.fixture
def exported(run: RecordedRun) -> RecordedRun:
    run.whole().log_losses(0, 0, ROUNDS)
    return run


def test_tensorboard_reads_the_same_values_back(exported: RecordedRun) -> None:
    for _ in range(2):  # the second export takes the place of the first
        export("tensorboard", exported.folder, launched=False)
        everything = {"scalars": 0, "tensors": 0}
        read = EventAccumulator(str(exported.folder / "tensorboard"), everything)
        read.Reload()
        losses = [(each.step, each.value) for each in read.Scalars("loss/peer-0")]
        assert [step for step, _ in losses] == list(range(ROUNDS))
        assert [value for _, value in losses] == pytest.approx(
            [1 / (n + 1) for n in range(ROUNDS)], rel=1e-6
        )
        texts = [each.tensor_proto.string_val[0].decode() for each in read.Tensors("events")]
        reader = RunReader(exported.folder)
        reader.update()
        assert texts[:-1] == [each.text for each in reader.happenings]
        assert texts[-1] == "= over: 4 of 4 peers finished"
        settings = read.Tensors("run")[0].tensor_proto.string_val[0].decode()
        assert "|aggregator|guarded_mean|" in settings


def test_a_bar_in_a_setting_ends_no_cell_of_the_table(run: RecordedRun) -> None:
    config = json.loads((run.folder / "config.json").read_text())
    config["faults"] = ["partition:0,1|2,3@9s"]
    (run.folder / "config.json").write_text(json.dumps(config))
    run.whole()
    export("tensorboard", run.folder, launched=False)
    read = EventAccumulator(str(run.folder / "tensorboard"), {"tensors": 0})
    read.Reload()
    table = read.Tensors("run")[0].tensor_proto.string_val[0].decode()
    assert "<td>partition:0,1|2,3@9s</td>" in markdown_to_safe_html(table)
