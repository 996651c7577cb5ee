"""What a checkpoint takes of memory: counted, not measured by the clock or the machine. And what a
failure that nobody expects costs."""

from __future__ import annotations

import errno
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from torch import nn
from trainer_fakes import pack_state

from gossip.errors import ConfigError
from gossip.run import checkpoints
from gossip.training.saving import CheckpointSaver, SavePlan
from gossip.training.state import (
    BLOCK_BYTES,
    StateFile,
    plan_checkpoint,
    plan_state,
    read_state_file,
    split_state,
)

WIDTH = 2048
STATE_BYTES = 3 * 4 * (WIDTH * WIDTH + WIDTH)  # parameters, and two moments of each


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[CheckpointSaver]:
    made = CheckpointSaver(SavePlan(tmp_path, 1, 2), 0, {"run": "x"}, pytest.fail)
    assert made.is_writer()
    yield made
    made.close()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def streaming(tmp_path: Path, said: list[str]) -> Iterator[CheckpointSaver]:
    made = CheckpointSaver(SavePlan(tmp_path, 1, 2, streams=True), 0, {"run": "x"}, said.append)
    assert made.is_writer()
    yield made
    made.wait()  # its thread would allocate memory within the next test
    made.close()


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(
    saver: CheckpointSaver, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, told: str
) -> None:
    files = plan_checkpoint(model, optimizer, {"kept": told})
    saver.save(step, None, files, b"{}", {"history": str(step)})
    saver.wait()


def test_a_state_whose_header_grows_is_copied_into_the_memory_of_the_one_before(
    saver: CheckpointSaver,
) -> None:
    """The copy before was kept beside the next: the header has numbers of any length, and the
    thread that writes held on to what it had written."""
    model, optimizer = trained()
    plan_checkpoint(model, optimizer, {})  # torch imports what it needs for that
    tracemalloc.start()
    try:
        for step, told in enumerate(("0.1", "0.123456789", "0.1"), 1):
            save(saver, step, model, optimizer, told)
        # Of a state that is another, of which the copy before is too small.
        save(saver, 4, model, optimizer, "0" * 2**18)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert STATE_BYTES < most < 1.5 * STATE_BYTES
    assert [step for step, _ in checkpoints.listed(saver.folder)] == [3, 4]


def small(value: float) -> dict[str, StateFile]:
    return {"model.safetensors": StateFile({"model": torch.full((8,), value)})}


def values(saver: CheckpointSaver, step: int) -> list[float]:
    found = checkpoints.open_at(saver.folder / checkpoints.name_of(step))
    read: list[float] = read_state_file(found.read("model.safetensors"))["model"].tolist()
    return read


def test_the_first_save_may_come_when_no_thread_can_be_started(
    saver: CheckpointSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at exit with Python 3.12."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for step in (1, 2):
        saver.save(step, None, small(float(step)), b"{}", {})
        assert saver.is_idle
    assert values(saver, 2) == [2.0] * 8


def test_a_full_disk_keeps_nobody_from_being_the_writer(
    saver: CheckpointSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the last peer would wait for a writer that there is not. Its name has no room there."""
    saver.release()

    def refuse(*values: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    assert saver.is_writer()


def test_a_stage_is_written_without_a_copy(streaming: CheckpointSaver) -> None:
    model, optimizer = trained()
    plan_checkpoint(model, optimizer, {})  # torch imports what it needs for that
    files = plan_checkpoint(model, optimizer, {"kept": "0.1"})
    places = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors_of(model, optimizer)]
    seen = 0
    for file in files.values():
        for block in list(file.blocks())[1:]:  # behind the header
            begin = np.frombuffer(block, np.uint8).ctypes.data
            assert len(block) <= BLOCK_BYTES
            assert any(first <= begin and begin + len(block) <= last for first, last in places)
            seen += len(block)
    assert seen == sum(t.nbytes for t in tensors_of(model, optimizer))
    tracemalloc.start()
    try:
        streaming.save(1, None, files, b"{}", {"history": "1"})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < BLOCK_BYTES


def test_the_digest_of_a_state_takes_no_copy() -> None:
    model, optimizer = trained()
    extra = {"kept": torch.arange(5)}
    packed = pack_state(model, optimizer, extra)
    tracemalloc.start()
    try:
        digest = plan_state(model, optimizer, extra).digest()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    parts = b"".join([blake3(part).digest(len(digest)) for part in split_state(packed)])
    assert digest == blake2b(parts, digest_size=len(digest)).digest()
    assert most < BLOCK_BYTES


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [*(parameter.detach() for parameter in model.parameters()), *moments]


ODD: dict[str, Any] = {
    "turned": torch.arange(12.0).reshape(3, 4).t(),
    "some": torch.arange(12)[::3],
    "first": torch.arange(12)[:1:3],
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False, True]),
    "one": torch.tensor(7),
    "none": torch.empty(0, 3),
    "repeated": torch.ones(1).expand(5),
    "text": "x",
}


@pytest.mark.parametrize("block_bytes", [3, BLOCK_BYTES])
def test_blocks_of_any_tensors_make_up_the_file_that_a_copy_has(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr("gossip.training.state.BLOCK_BYTES", block_bytes)
    file = StateFile({"model": ODD})
    memory = bytearray(file.nbytes)
    file.write(memoryview(memory))
    assert b"".join(bytes(block) for block in file.blocks()) == memory[: file.length]


def test_what_changes_once_a_stage_is_handed_over_is_not_in_the_checkpoint(
    streaming: CheckpointSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, goes_on, real = torch.ones(8), threading.Event(), os.fsync

    def fsync(fd: int) -> None:
        assert goes_on.wait(30)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    files = {"model.safetensors": StateFile({"model": value})}
    streaming.save(1, None, files, b"{}", {"history": "1"})
    assert not streaming.has(1), "it is not durable yet"
    value.fill_(2.0)
    goes_on.set()
    streaming.wait()
    assert values(streaming, 1) == [1.0] * 8


def failing(real: Callable[..., Any], *times: int) -> Callable[..., Any]:
    """Fails at these calls."""
    seen = 0

    def call(*arguments: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen in times:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    return call


@pytest.mark.parametrize(("call", "time"), [("write", 1), ("write", 3), ("mkdir", 1), ("fsync", 2)])
def test_a_full_disk_costs_a_stage_that_checkpoint_alone(
    streaming: CheckpointSaver,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    time: int,
) -> None:
    monkeypatch.setattr(os, call, failing(getattr(os, call), time))
    for step in (1, 2):
        streaming.save(step, None, small(step), b"{}", {"history": str(step)})
        streaming.wait()
    assert [step for step, _ in checkpoints.listed(streaming.folder)] == [2]
    assert values(streaming, 2) == [2.0] * 8
    assert [line.split(":")[0] for line in said] == [
        f"cannot save checkpoints to {streaming.folder}",
        "checkpoints are written again, from step 2 on",
    ]
    assert not [p for p in streaming.folder.iterdir() if p.name.endswith(".incomplete")]


def test_what_belongs_to_a_peer_and_cannot_be_written_holds_up_no_later_checkpoint(
    streaming: CheckpointSaver, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = StateFile({"model": torch.ones(8)})
    with monkeypatch.context() as patched:
        patched.setattr("gossip.training.saving.write_own", failing(print, 1))
        streaming.save(1, own, small(1.0), b"{}", {"history": "1"})
        streaming.wait()
    streaming.save(2, own, small(2.0), b"{}", {"history": "2"})
    streaming.wait()
    assert values(streaming, 2) == [2.0] * 8
    assert len(said) == 2


def test_a_quota_that_shows_up_as_a_file_is_closed_stops_neither_training_nor_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    saver = CheckpointSaver(SavePlan(tmp_path, 1, 2, streams=True), 0, {"run": "x"}, said.append)
    assert saver.is_writer()
    files = {"model.safetensors": StateFile({"model": torch.ones(8)})}
    close = os.close

    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def closes(fd: int) -> None:
        is_new = "incomplete" in os.readlink(f"/proc/self/fd/{fd}")
        close(fd)
        if is_new:
            full()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        patched.setattr(os, "close", closes)
        saver.save(1, None, files, b"{}", {"history": "1"})
        saver.wait()
    assert "quota" in saver.failed.lower()
    saver.save(2, None, files, b"{}", {"history": "1"})
    saver.wait()
    assert [step for step, _ in checkpoints.listed(tmp_path)] == [2]
    assert said[-1] == "checkpoints are written again, from step 2 on"
    saver.close()


def test_what_nobody_expected_ends_one_checkpoint_and_not_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = CheckpointSaver(SavePlan(tmp_path, 1, 2), 0, {"run": "x"}, lambda line: None)
    assert saver.is_writer()
    files = {"model.safetensors": StateFile({"model": torch.ones(8)})}
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write", lambda *_: 1 // 0)
        saver.save(1, None, files, b"{}", {"history": "1"})
        saver.wait()
    assert saver.failed == "ZeroDivisionError: integer division or modulo by zero"
    saver.save(2, None, files, b"{}", {"history": "1"})
    saver.wait()
    assert [step for step, _ in checkpoints.listed(tmp_path)] == [2]
    saver.close()


# --- a run saves to no folder that has checkpoints of another run ---------------------------------


@pytest.mark.parametrize(
    ("saved_by", "version", "why"),
    [
        ("former", checkpoints.FORMAT, "has checkpoints of the run former, up to step 4"),
        ("former", 1, "has format 1, this gossip reads 2"),
        ("own", checkpoints.FORMAT, ""),
    ],
)
def test_checkpoints_of_another_run_are_not_saved_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_by: str, version: int, why: str
) -> None:
    with monkeypatch.context() as former:
        former.setattr(checkpoints, "FORMAT", version)
        checkpoints.write(tmp_path, 4, {"model": b"x"}, {"run": saved_by}, keep=9)
    saver = CheckpointSaver(SavePlan(tmp_path, 1, 2), 0, {"run": "own"}, pytest.fail)
    try:
        saver.check_folder(resumes=True)
        if why:
            with pytest.raises(ConfigError, match=why) as refused:
                saver.check_folder(resumes=False)
            assert "save to another folder" in str(refused.value.hint)
        else:
            saver.check_folder(resumes=False)
    finally:
        saver.close()
