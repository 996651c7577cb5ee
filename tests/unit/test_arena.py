from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from gossip.errors import LocalError
from gossip.ipc import messages as control
from gossip.ipc.arena import Arena, allocate, landing_slots, map_bytes, map_rows


@pytest.mark.parametrize("encoded_bytes", [0, 4, 68])
@pytest.mark.parametrize("elements", [1, 15, 16, 17, 1000])
def test_both_sides_see_the_same_vectors_in_every_slot(elements, encoded_bytes):
    ours = Arena.create(elements, encoded_bytes)
    theirs = Arena.attach(os.dup(ours.fd), elements, encoded_bytes)
    for number, raw in enumerate(ours.encoded):
        raw[:] = number + 1
    slots = [
        (a, b)
        for name in ("updates", "parameters", "results", "mixes")
        for a, b in zip(getattr(ours, name), getattr(theirs, name), strict=True)
    ]
    assert len(slots) == 2 * (control.UPDATE_SLOTS + control.RESULT_SLOTS) + landing_slots(elements)
    for number, (a, _) in enumerate(slots):
        a[:] = number + 1
    for number, (_, b) in enumerate(slots):
        assert b.shape == (elements,)
        assert b.dtype == np.float32
        assert (b == number + 1).all()
        assert b.ctypes.data % 64 == 0
    for number, raw in enumerate(theirs.encoded):
        assert raw.tolist() == [number + 1] * encoded_bytes
    ours.close()
    theirs.close()


def test_progress_is_read_without_asking():
    ours = Arena.create(8)
    theirs = Arena.attach(os.dup(ours.fd), 8)
    assert theirs.progress()[0] == 0
    ours.note_progress(7)
    step, age_s = theirs.progress()
    assert step == 7
    assert 0 <= age_s < 60
    ours.close()
    theirs.close()


def test_a_trainer_that_compiles_does_not_stand_still():
    ours = Arena.create(8)
    theirs = Arena.attach(os.dup(ours.fd), 8)
    ours.note_progress(7)
    assert not theirs.compiles
    assert not theirs.compiled
    ours.note_compiling(True)
    assert theirs.compiles
    assert theirs.progress() == (7, 0.0)
    ours.note_compiling(False)
    assert (theirs.compiles, theirs.compiled) == (False, True)
    assert theirs.progress()[1] > 0
    ours.close()
    theirs.close()


def test_an_arena_of_another_size_is_refused():
    ours = Arena.create(8)
    with pytest.raises(LocalError, match="not one of 16 elements"):
        Arena.attach(os.dup(ours.fd), 16)
    with pytest.raises(LocalError, match="was announced"):
        Arena.attach(os.dup(ours.fd), 100_000)
    ours.close()


def test_memory_that_was_never_written_costs_nothing():
    arena = Arena.create(50_000_000)  # 3.2 GB of slots
    arena.updates[0][:1000] = 1
    assert os.fstat(arena.fd).st_blocks * 512 < 2**20
    arena.close()


def test_closing_is_safe_while_somebody_holds_a_view():
    arena = Arena.create(1000)
    view = arena.updates[1]
    view[:] = 3
    arena.close()
    arena.close()
    assert view.sum() == 3000
    view[:] = 4
    assert view.sum() == 4000


def test_nothing_with_a_name_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    arena = Arena.create(1000)
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert before == after
    assert not list(tmp_path.iterdir())
    arena.close()


def test_the_other_side_cannot_shrink_it_under_our_feet():
    fd = allocate(4096)
    with pytest.raises(PermissionError) as refused:
        os.ftruncate(fd, 1)
    assert refused.value.errno == errno.EPERM
    os.close(fd)


def test_bytes_and_rows_travel_by_descriptor():
    fd = allocate(3000)
    map_bytes(fd, 3000)[:] = b"abc" * 1000
    view = map_bytes(fd, 3000)
    os.close(fd)
    assert bytes(view) == b"abc" * 1000
    fd = allocate(4 * 3 * 5)
    rows, again = map_rows(fd, 3, 5), map_rows(fd, 3, 5)
    os.close(fd)
    rows[2] = 7
    assert again.tolist() == [[0.0] * 5, [0.0] * 5, [7.0] * 5]


def test_descriptors_are_not_leaked():
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for _ in range(20):
        arena = Arena.create(10)
        other = Arena.attach(os.dup(arena.fd), 10)
        arena.close()
        other.close()
        del arena, other
    assert count() <= before


def test_a_result_that_is_lent_to_a_script_is_as_it_lies_until_it_is_written_to():
    arena = Arena.create(5000)  # slots that share a page with their neighbours
    for slot, result in enumerate(arena.results):
        result[:] = slot
    lent = arena.lent_result(1)
    assert (lent == 1.0).all()
    assert len(lent) == 5000
    lent[[0, -1]] = 9.0
    assert (arena.results[1] == 1.0).all()
    arena.results[1][:] = 5.0
    for slot, expected in ((0, 0.0), (1, 5.0), (2, 2.0)):
        assert (arena.lent_result(slot) == expected).all(), "as it lies by now"
    arena.close()


def test_memory_that_is_put_behind_results_changes_nothing_in_them():
    arena = Arena.create(2**19 + 7)
    arena.results[4][:] = 3.0
    before = os.fstat(arena.fd).st_blocks
    arena.populate((4, 5))
    assert os.fstat(arena.fd).st_blocks - before >= arena.results[5].nbytes // 512 - 8
    assert (arena.results[4] == 3.0).all()
    assert not arena.results[5].any()
    arena.close()
    arena.populate((4,))
