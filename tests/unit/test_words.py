"""One peer is no "1 peers"."""

from __future__ import annotations

import pytest

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
