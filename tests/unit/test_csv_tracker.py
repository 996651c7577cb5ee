"""CSV files of a run have every value with its round and peer, and stay in their folder."""

import csv
from pathlib import Path

import pytest
from recorded_run import ROUNDS, RecordedRun

from gossip.launch.track.base import Point, Told, split_curve
from gossip.launch.track.exporting import export
from gossip.launch.track.to_csv import open_tracker


def rows(folder: Path, name: str) -> list[list[str]]:
    with (folder / "csv" / name).open(newline="") as file:
        header, *found = csv.reader(file)
    assert header == ["step", "value", "peer"]
    return found


def test_a_file_of_each_metric_has_every_value_with_its_peer(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run").whole()
    for peer in (0, 2):
        run.log_losses(peer, 0, ROUNDS)
    for _ in range(2):  # the second export takes the place of the first
        given = export("csv", run.folder, launched=False)
        losses = rows(run.folder, "loss.csv")
        for peer in ("0", "2"):
            own = [(int(step), float(value)) for step, value, of in losses if of == peer]
            assert own == [(n, 1 / (n + 1)) for n in range(ROUNDS)]
        swarm = rows(run.folder, "swarm_loss.csv")
        assert swarm == [[str(n), repr(2.0 - n / 40), ""] for n in range(ROUNDS)]
        files = sorted(each.name for each in (run.folder / "csv").glob("*.csv"))
        assert sum(len(rows(run.folder, name)) for name in files) == given
        events = (run.folder / "csv" / "events.txt").read_text().splitlines()
        assert any("- peer 3 quarantined at round 15" in line for line in events)
        assert events[-1] == "round 39: = over in round 39: 4 of 4 peers came to the end"


NAMES = ["../../a", "..", "", "/etc/x", "top 5", "a/b", "a%2Fb", "é\0\n", "\ud800", "n" * 3000]


def test_no_name_of_a_metric_leads_out_of_the_folder_or_into_another_file(tmp_path: Path) -> None:
    tracker = open_tracker(tmp_path)
    names = [*NAMES, "n" * 2999 + "m"]
    tracker.points([Point(f"{name}/peer-1", 3, 0.5, 0.0) for name in names])
    tracker.log_event(Told(3, 0.0, "\ud800"))
    tracker.close()
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert {each.parent for each in files} == {tmp_path / "csv"}
    tables = [each.name for each in files if each.suffix == ".csv" or each.name == ".csv"]
    assert len(tables) == len(names)
    assert all(rows(tmp_path, name) == [["3", "0.5", "1"]] for name in tables)


@pytest.mark.parametrize(
    ("curve", "metric", "peer"),
    [
        ("loss/peer-12", "loss", 12),
        ("a/b/peer-0", "a/b", 0),
        ("swarm/loss", "swarm/loss", None),
        ("loss/swarm", "loss", None),
        ("a/b", "a/b", None),
    ],
)
def test_a_curve_is_a_metric_of_a_peer(curve: str, metric: str, peer: int | None) -> None:
    assert split_curve(curve) == (metric, peer)
