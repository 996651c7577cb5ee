"""What the peers of a run agree on by files, on a disk that is full and in a folder that is gone:
no error, no fault twice."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gossip.faults.plan import parse
from gossip.inject import process as node_faults
from gossip.inject.claims import ClaimFiles
from gossip.inject.process import FaultInjector
from gossip.launch.report.run_model import RunModel
from gossip.observe import read_event
from gossip.run.journal import Journal
from gossip.run.records import WriteFailures

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run's folder on a disk that takes no new file; nothing there can be deleted either."""
    (tmp_path / "faults").mkdir()

    def refuse(*_: object, **__: object) -> Any:
        raise FULL

    opens = os.open

    def only_read(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        return refuse() if flags & os.O_CREAT else opens(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", only_read)
    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    return tmp_path


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def troubles(told: list[tuple[str, str]]) -> WriteFailures:
    return WriteFailures(lambda path, why: told.append((path, why)))


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals that the process group would have got."""
    signals: list[int] = []
    monkeypatch.setattr(node_faults, "_refuse_unless_alone", lambda fault: None)
    monkeypatch.setattr(os, "killpg", lambda group, number: signals.append(number))
    return signals


def test_of_several_the_first_has_the_claim(tmp_path: Path, troubles: WriteFailures) -> None:
    claims = [ClaimFiles(tmp_path / "faults", peer, troubles) for peer in (0, 1)]
    assert [each.try_claim("3", otherwise=False) for each in claims] == [True, False]
    assert claims[1].beginning() >= claims[0].beginning() == claims[0].began() == claims[1].began()
    assert not troubles.lacking
    assert sorted(os.listdir(tmp_path / "faults")) == ["3", "began"]


@pytest.mark.parametrize("otherwise", [True, False])
def test_a_claim_on_a_full_disk_is_as_was_said_and_told_of_once(
    full: Path, troubles: WriteFailures, told: list[tuple[str, str]], otherwise: bool
) -> None:
    claims = ClaimFiles(full / "faults", 1, troubles)
    assert claims.try_claim("0", otherwise=otherwise) is otherwise
    assert claims.try_claim("1", otherwise=otherwise) is otherwise
    assert claims.beginning() > 0.0
    assert told == [(str(full / "faults" / "0"), "No space left on device")]


def test_a_claim_that_was_made_stands_though_there_was_no_room_for_what_it_says(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    troubles: WriteFailures,
    told: list[tuple[str, str]],
) -> None:
    def refuse(fd: int, text: str) -> None:
        os.close(fd)
        raise FULL

    monkeypatch.setattr("gossip.inject.claims._write", refuse)
    one, other = (
        ClaimFiles(tmp_path / "faults", 0, troubles),
        ClaimFiles(tmp_path / "faults", 1, troubles),
    )
    assert one.try_claim("0", otherwise=False)
    assert not other.try_claim("0", otherwise=True)
    assert len(told) == 1


def test_a_run_folder_that_was_deleted_does_not_come_back(
    tmp_path: Path, troubles: WriteFailures, told: list[tuple[str, str]]
) -> None:
    claims = ClaimFiles(tmp_path / "run" / "faults", 1, troubles)
    assert claims.try_claim("0", otherwise=True)
    assert claims.beginning() > 0.0
    assert not (tmp_path / "run").exists()
    assert [why for _, why in told] == ["No such file or directory"]


def test_a_peer_carries_out_its_own_fault_on_a_full_disk_and_no_later_life_repeats_it(
    full: Path, struck: list[int]
) -> None:
    for incarnation in (0, 1):
        saboteur = FaultInjector(parse(["restart:1@2+3s"]), 1, incarnation, full, Journal(1, None))
        for round_id in range(5):
            saboteur.reached(round_id)
        assert len(struck) == 1


def test_where_no_claim_can_be_made_not_all_who_serve_die(full: Path, struck: list[int]) -> None:
    journal = Journal(1, None)
    saboteur = FaultInjector(parse(["crash:server@2"]), 1, 0, full, journal)
    for round_id in range(5):
        saboteur.reached(round_id)
        saboteur.serves(round_id)
    assert not struck
    assert str(full / "faults" / "0") in journal.troubles.lacking


def test_a_fault_of_links_that_all_peers_tell_of_is_one() -> None:
    view = RunModel(3)
    rows: list[dict[str, Any]] = [
        {
            "event": event,
            "peer": peer,
            "kind": "partition",
            "fault": "partition:0|1,2@5s+9s",
            "round": 7,
            "t": t + 0.01 * peer,
        }
        for event, t in (("fault", 5.0), ("fault_over", 14.0))
        for peer in range(3)
    ]
    lines = [line for row in rows for line in view.apply(read_event({**row}))]
    assert lines == [
        "* injected: partition:0|1,2@5s+9s at round 7",
        "* over: partition:0|1,2@5s+9s at round 7",
    ]
    assert [(outage.at, outage.over_at) for outage in view.failures.outages] == [(5.0, 14.0)]
