"""The file of drills, as nodes and trainers read it."""

from __future__ import annotations

from pathlib import Path

from gossip.faults.drills import LOOK_EVERY_S, Drill, DrillFile, write
from gossip.faults.kinds import ByzantineFault, Slow
from gossip.faults.world import Partition


def test_a_fault_of_a_drill_is_active_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    faults = (
        Partition(((0, 1), (2,)), 0.0, 5.0),
        Slow(1, 4.0),
        ByzantineFault("sign_flip", (2,), 10.0),
    )
    file = DrillFile(tmp_path)
    assert file.on(98.0) == ()
    write(tmp_path, [Drill(at, fault, 100.0 + at, 105.0) for at, fault in enumerate(faults)])
    assert [file.on(at) for at in (99.9, 100.0, 103.0, 105.0)] == [(), faults[:1], faults, ()]
    assert [file.slowness(peer, 103.0) for peer in (0, 1)] == [1.0, 4.0]
    assert [file.lie(peer, 103.0) for peer in (1, 2)] == [None, faults[2]]
    assert (file.slowness(1, 105.0), file.lie(2, 105.0)) == (1.0, None)
    assert DrillFile(None).on(103.0) == ()


def test_a_file_is_read_again_when_it_has_changed_and_a_damaged_one_never(tmp_path: Path) -> None:
    slow = Slow(1, 4.0)
    write(tmp_path, [Drill(0, slow, 0.0, 105.0)])
    file = DrillFile(tmp_path)
    assert file.on(100.0) == (slow,)
    (tmp_path / "drills.json").write_text('[{"number": 1}]')
    assert file.on(100.0 + LOOK_EVERY_S) == (slow,)
    write(tmp_path, [])
    assert file.on(100.0 + 2 * LOOK_EVERY_S) == ()
