"""``slow:1*4@20s+30s``: a trainer is slow from a moment of the run on, and its node says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossip.config import RunConfig
from gossip.errors import BadFault
from gossip.faults import parse
from gossip.faults.kinds import Slow
from gossip.faults.plan import from_toml
from gossip.inject import FaultyTrainer
from gossip.inject.claims import ClaimFiles
from gossip.inject.lasting import LastingFaults
from gossip.run import WriteFailures


class Journal:
    """Notes events."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def event(self, event: str, **fields: Any) -> None:
        self.told.append({"event": event, **fields})


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    clock = SimpleNamespace(sleep=found.append, monotonic=lambda: 100.0)
    monkeypatch.setattr("gossip.inject.faulty_trainer.time", clock)
    return found


@pytest.mark.parametrize(
    ("began", "factor"),
    [(None, 1), (95.0, 1), (79.9, 4), (50.1, 4), (49.9, 1)],
    ids=["not begun", "before", "since just now", "still", "over"],
)
def test_steps_are_slow_while_the_fault_is_on(
    tmp_path: Path, slept: list[float], began: float | None, factor: int
) -> None:
    if began is not None:
        (tmp_path / "faults").mkdir()
        (tmp_path / "faults" / "began").write_text(repr(began))
    config = RunConfig(peers=2, faults=("slow:1*4@20s+30s",))
    FaultyTrainer(config, 1, tmp_path).computed(99.0)
    assert slept == ([] if factor == 1 else [pytest.approx(factor - 1.0)])


def test_without_an_end_it_lasts(tmp_path: Path, slept: list[float]) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "began").write_text("1.0")
    FaultyTrainer(RunConfig(peers=2, faults=("slow:1*4@20s",)), 1, tmp_path).computed(99.0)
    assert slept == [pytest.approx(3.0)]


def test_its_beginning_and_its_end_are_told_once_in_all_lives(tmp_path: Path) -> None:
    journal = Journal()
    for _ in range(2):  # the second is a later life of the peer
        (fault,) = parse("slow:1*4@20s+30s")
        assert isinstance(fault, Slow)
        claims = ClaimFiles(tmp_path / "faults", 1, WriteFailures(lambda path, why: None))
        lasting = LastingFaults([(0, fault)], claims, journal)  # type: ignore[arg-type]
        for run_s in (19.0, 21.0, 22.0, 49.0, 51.0, 52.0):
            lasting.on(run_s, 7)
    common = {"kind": "slow", "round": 7, "fault": "slow:1*4@20s+30s"}
    assert journal.told == [
        {"event": "fault", **common, "seconds": 30.0},
        {"event": "fault_over", **common},
    ]


def test_a_peer_without_a_folder_tells_of_it_once(tmp_path: Path) -> None:
    journal = Journal()
    fault = Slow(1, 4.0, 20.0, 30.0)
    claims = ClaimFiles(None, 1, WriteFailures(lambda path, why: None))
    lasting = LastingFaults([(0, fault)], claims, journal)  # type: ignore[arg-type]
    for run_s in (21.0, 22.0, 51.0, 52.0):
        lasting.on(run_s, 7)
    assert [row["event"] for row in journal.told] == ["fault", "fault_over"]


def test_a_table_that_says_how_long_and_not_when_is_refused() -> None:
    with pytest.raises(BadFault, match="for_s needs at_s"):
        from_toml('[[fault]]\nkind = "slow"\npeer = 1\nfactor = 2\nfor_s = 3.0\n')
