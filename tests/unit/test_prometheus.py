"""What Prometheus is given: the newest values, as text, on loopback, and only to who names that."""

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_run import ROUNDS, RecordedRun

from gossip.errors import ConfigError
from gossip.launch.track import to_prometheus
from gossip.launch.track.base import Point, RunDescription
from gossip.launch.track.run_points import RunPoints
from gossip.launch.track.to_prometheus import Prometheus, open_tracker


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Prometheus]:
    found = Prometheus(tmp_path, 0)
    yield found
    found.close()


def scraped(tracker: Prometheus, path: str = "/metrics", host: str = "") -> tuple[int, str, str]:
    place = tracker.url.split("/")[2]
    connection = http.client.HTTPConnection(place, timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text, kind = answer.read().decode(), answer.headers["Content-Type"]
    connection.close()
    return answer.status, kind, text


def value(text: str, metric: str) -> float:
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(metric))


def test_the_newest_values_of_a_run_are_served(tmp_path: Path, tracker: Prometheus) -> None:
    run = RecordedRun(tmp_path / "run").whole()
    run.log_losses(0, 0, ROUNDS)
    points = RunPoints(run.folder, tracker)
    tracker.begin(points.about())
    points.read_on()
    status, kind, text = scraped(tracker)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert value(text, 'gossip_loss{run="digits-0a1b",peer="0"} ') == pytest.approx(1 / ROUNDS)
    assert value(text, 'gossip_swarm_loss{run="digits-0a1b"} ') == pytest.approx(2 - 39 / 40)
    assert value(text, 'gossip_round{run="digits-0a1b"} ') == ROUNDS - 1
    assert value(text, "gossip_events_total") == points.reader.happened
    assert text.count("# TYPE gossip_loss gauge") == 1


def test_names_and_labels_are_such_as_prometheus_takes(tracker: Prometheus) -> None:
    tracker.begin(RunDescription("0", 'a "b"\\c\nd', {}))
    tracker.points([Point("top-5 é/peer-12", 3, 0.5, 0.0), Point("a/b", 3, 1e-30, 0.0)])
    text = scraped(tracker)[2]
    assert 'gossip_top_5__{run="a \\"b\\"\\\\c\\nd",peer="12"} 0.5' in text
    assert value(text, "gossip_a_b{") == 1e-30


def test_only_who_names_this_address_is_answered(tracker: Prometheus) -> None:
    assert tracker.url.startswith("http://127.0.0.1:")
    port = tracker.url.split(":")[2].split("/")[0]
    assert scraped(tracker, host=f"evil.example:{port}")[0] == 403
    assert scraped(tracker, path="/")[0] == 404
    assert scraped(tracker, host=f"localhost:{port}")[0] == 200


def test_the_address_is_in_the_folder_and_a_port_that_is_taken_is_passed_over(
    tmp_path: Path, tracker: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = int(tracker.url.split(":")[2].split("/")[0])
    monkeypatch.setattr(to_prometheus, "PORT", taken)
    monkeypatch.delenv(to_prometheus.PORT_VARIABLE, raising=False)
    (tmp_path / "other").mkdir()
    second = open_tracker(tmp_path / "other")
    assert (tmp_path / "other" / "prometheus.url").read_text() == f"{second.url}\n" != tracker.url
    second.close()
    monkeypatch.setenv(to_prometheus.PORT_VARIABLE, str(taken))
    with pytest.raises(ConfigError, match=f"cannot serve metrics on port {taken}"):
        open_tracker(tmp_path)
    monkeypatch.setenv(to_prometheus.PORT_VARIABLE, "many")
    with pytest.raises(ConfigError, match="is not a port"):
        open_tracker(tmp_path)
