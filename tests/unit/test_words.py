"""One peer is no "1 peers": what a run of one peer, or on one host, is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossip.errors import OutOfMemory
from gossip.launch.join import joining
from gossip.launch.report.run_model import RunModel
from gossip.launch.report.words import at_round, counted
from gossip.observe import read_event


@pytest.mark.parametrize(("count", "said"), [(0, "0 peers"), (1, "1 peer"), (2, "2 peers")])
def test_only_one_is_said_in_the_singular(count: int, said: str) -> None:
    assert counted(count, "peer") == said


def test_who_has_had_no_round_is_in_none() -> None:
    assert [at_round(number) for number in (-1, 0)] == ["before its first round", "at round 0"]
    view = RunModel(2)
    stopped = {"t": 1.0, "event": "exited", "code": 143, "how": "exit code 143"}
    assert view.apply(read_event({**stopped, "peer": 1})) == [
        "- peer 1 has left before its first round, on request"
    ]


@pytest.mark.parametrize(
    ("peers", "said"), [(1, "1 peer needs about 1.0 GiB"), (2, "2 peers need about 1.0 GiB")]
)
def test_the_memory_that_one_peer_needs_is_said_of_one(peers: int, said: str) -> None:
    assert str(OutOfMemory(peers, 2**30, 2**20)).startswith(said)


@pytest.mark.parametrize(
    ("most", "wanted", "said"),
    [
        (1, 1, "room for 1 peer at a time: 1 was to join"),
        (3, 2, "room for 3 peers at a time: 2 were to join"),
    ],
)
def test_a_run_of_one_that_is_full_says_so_of_one(most: int, wanted: int, said: str) -> None:
    place = cast(Any, SimpleNamespace(folder="runs/a", config=SimpleNamespace(peers_max=most)))
    assert said in str(joining._no_room(place, wanted, 0))


@pytest.mark.parametrize(
    ("n", "local", "said"), [(1, 1, "1 peer x 1 sample"), (2, 8, "2 peers x 8 samples")]
)
def test_the_batch_of_one_peer_is_said_of_one(n: int, local: int, said: str) -> None:
    batch = {
        "peer": 0,
        "event": "batch",
        "round": 0,
        "policy": "scale",
        "peers": n,
        "local": local,
        "samples": n * local,
    }
    (line,) = RunModel(n, cast(Any, SimpleNamespace(byzantine=[]))).apply(read_event({**batch}))
    assert line.startswith(f"= batch: {said}, {n * local} a round (scale)")
