"""When peers of a world are there: traces from files, and drawn ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gossip.errors import ConfigError
from gossip_lab.playground import World
from gossip_lab.playground.availability import Availability, read_availability, read_trace


def shares(spec: str, times_s: list[float], peers: int = 400, seed: int = 0) -> list[float]:
    found = read_availability(spec, peers, seed)
    return [float(found.present_peers(peers, at).mean()) for at in times_s]


def changes(found: Availability, peer: int, until_s: float) -> list[float]:
    times = [0.0]
    while (change := found.next_change(peer, times[-1])) < until_s:
        times.append(change)
    return times[1:]


def test_without_a_word_every_peer_is_always_there() -> None:
    always = read_availability("", 3, 0)
    assert always.present_peers(3, 0).all()
    assert always.present_peers(3, 1e9).all()
    assert always.next_change(2, 0) == math.inf


# --- traces ---------------------------------------------------------------------------------------


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_says_who_is_there_when(tmp_path: Path) -> None:
    path = write(
        tmp_path, "peer,from_s,to_s", "1,10,20", "0,0,", "1, 30 ,40.5", "", "1,20,25", "7,0,1"
    )
    found = read_availability(str(path), 2, 0)
    assert [found.present(1, at) for at in (0, 9.9, 10, 19, 20, 24.9, 25, 30, 40.5, 99)] == [
        *(False, False, True, True, True, True, False, True, False, False)
    ]
    assert changes(found, 1, 1e9) == [10, 25, 30, 40.5], "times that touch are one presence"
    assert found.present(0, 1e9)
    assert found.next_change(0, 0) == math.inf


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["peer,from,to", "0,0,1"], "line 1: the columns are not peer,from_s,to_s"),
        ([], "line 1: the columns"),
        (["peer,from_s,to_s", "0,0,1", "x,0,1"], "line 3: 'x,0,1' is not a peer and two times"),
        (["peer,from_s,to_s", "0,0"], "line 2: '0,0' is not a peer"),
        (["peer,from_s,to_s", "0,5,5"], "line 2: peer 0 cannot be present from 5 s to 5 s"),
        (["peer,from_s,to_s", "0,nan,5"], "line 2: peer 0 cannot be present from nan s"),
        (["peer,from_s,to_s", "-1,0,5"], "line 2: peer -1"),
        (["peer,from_s,to_s", "0,0,9", "0,20,30", "0,8,12"], "line 4: .* overlaps with .* line 2"),
        (["peer,from_s,to_s", "0,0,9"], "peer 1 has no line"),
    ],
)
def test_an_invalid_line_is_named_by_number(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(write(tmp_path, *lines), 2)


def test_a_trace_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read nowhere\.csv"):
        read_availability("nowhere.csv", 2, 0)


# --- drawn ----------------------------------------------------------------------------------------


def test_spot_hosts_are_there_for_their_share_of_the_time_and_all_at_the_start() -> None:
    begin, *later = shares("spot:10m:200s", [0, 5000, 9000, 13000])
    assert begin == 1
    assert np.mean(later) == pytest.approx(0.75, abs=0.05)
    found = read_availability("spot:10m:200s", 100, 0)
    times = [np.diff([0, *changes(found, peer, 1e5)]) for peer in range(30)]
    assert np.mean([span for each in times for span in each[0::2]]) == pytest.approx(600, rel=0.1)
    assert np.mean([span for each in times for span in each[1::2]]) == pytest.approx(200, rel=0.1)


def test_campus_hosts_are_away_by_day_and_back_at_night() -> None:
    at_noon, at_night = (
        shares("campus", [h * 3600 for h in (18, 22, 24 + 18)]),
        shares("campus", [h * 3600 for h in (0, 8, 24 + 8)]),
    )
    assert at_noon == [pytest.approx(0.25, abs=0.06)] * 3
    assert at_night == [1, 1, 1]
    assert shares("campus:24m", [18 * 60]) == at_noon[:1], "a day of 24 minutes is the same day"


def test_churn_is_the_share_that_leaves_in_a_minute() -> None:
    found = read_availability("churn:0.2", 1000, 0)
    left = [bool(changes(found, peer, 60)) for peer in range(1000)]
    assert np.mean(left) == pytest.approx(0.2, abs=0.04)
    leaver = left.index(True)
    [away, back, *_] = changes(found, leaver, 1e4)
    assert back - away == pytest.approx(10)


@pytest.mark.parametrize("spec", ["spot:30:10", "campus:10m", "churn:0.5"])
def test_a_peer_has_the_same_times_whatever_was_asked_before(spec: str) -> None:
    one, two = read_availability(spec, 9, 4), read_availability(spec, 3, 4)
    two.present(2, 5000)
    two.present_peers(3, 900)
    assert changes(one, 2, 2000) == changes(two, 2, 2000)
    assert changes(one, 2, 2000) != changes(one, 1, 2000)
    assert changes(one, 2, 2000) != changes(read_availability(spec, 9, 5), 2, 2000)
    for at in changes(one, 2, 2000):
        assert one.present(2, at) != one.present(2, math.nextafter(at, 0))


@pytest.mark.parametrize(
    "spec", ["spot", "spot:1", "spot:0:1", "spot:1:x", "campus:1:2", "churn:1", "churn", "often:3"]
)
def test_other_words_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="there is no availability"):
        read_availability(spec, 3, 0)


def test_a_world_has_its_availability() -> None:
    assert World(peers=4).build().availability.present_peers(4, 1e6).all()
    parts = World(peers=4, availability="spot:10:10", seed=3).build()
    assert not parts.availability.present_peers(4, 1e4).all()
