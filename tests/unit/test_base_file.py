"""Parameters that no round moves: they are in a file of their own, which is written once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from cli_calls import gossip_command
from safetensors.torch import load_file
from torch import Tensor, nn
from trainer_fakes import pack_state, unpack_state

from gossip.errors import ConfigError
from gossip.run import checkpoints
from gossip.run.checkpoints import BASE_FILE, MODEL_FILE
from gossip.training.saving import CheckpointSaver, SavePlan
from gossip.training.state import (
    TRAINING_FILE,
    StateMismatch,
    load_document,
    plan_checkpoint,
    plan_state,
    read_checkpoint,
    sizes_of,
)

WIDTH = 2048


class Adapted(nn.Module):
    """A frozen base, and an adapter over it."""

    def __init__(self, seed: int = 0, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base = nn.Linear(width, 8).requires_grad_(False)
        self.tied = self.base.weight
        self.adapter = nn.Linear(4, 2)
        self.optimizer = torch.optim.Adam(self.adapter.parameters(), lr=0.1)
        # as the exchange has found it, once and for all
        self.trained = list(self.adapter.parameters())

    def train_once(self) -> None:
        for parameter in self.trained:
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()

    def values(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.state_dict().items()}


def is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: os.fstat(fd))


@pytest.fixture
def said() -> list[str]:
    return []


Start = Callable[..., CheckpointSaver]


@pytest.fixture
def start(tmp_path: Path, said: list[str]) -> Iterator[Start]:
    """Make what a process saves with."""
    open_ones: list[CheckpointSaver] = []

    def start_saver(streams: bool = False, keep: int = 9) -> CheckpointSaver:
        plan = SavePlan(tmp_path / "ckpt", 1, keep, streams=streams)
        open_ones.append(CheckpointSaver(plan, 0, {"run": "r"}, said.append))
        return open_ones[-1]

    yield start_saver
    for saver in open_ones:
        saver.close()


def save(saver: CheckpointSaver, step: int, model: Adapted) -> None:
    files = plan_checkpoint(model, model.optimizer, {}, model.trained)
    saver.save(step, None, files, b"{}", {"history": f"{step}"})
    saver.wait()


def at(saver: CheckpointSaver, step: int) -> checkpoints.Checkpoint:
    return checkpoints.open_at(saver.folder / checkpoints.name_of(step))


def base_of(saver: CheckpointSaver, step: int) -> os.stat_result:
    return os.stat(saver.folder / checkpoints.name_of(step) / BASE_FILE)


def load(saver: CheckpointSaver, step: int, into: Adapted) -> dict[str, Tensor]:
    found = at(saver, step)
    files = {name: found.read(name) for name in (*found.model_files, TRAINING_FILE)}
    load_document(read_checkpoint(files), into, into.optimizer)
    return into.values()


def on_disk(folder: Path) -> int:
    """Bytes of all files, of which one may have several names."""
    found = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({each.st_ino: each.st_size for each in found}.values())


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True])
def test_a_later_checkpoint_adds_what_is_trained_and_has_the_whole_state(
    start: Start, streams: bool, said: list[str]
) -> None:
    saver, model = start(streams), Adapted()
    base_bytes = model.base.weight.nbytes
    grown, kept = [], []
    for step in range(1, 4):
        model.train_once()
        before = on_disk(saver.folder)
        save(saver, step, model)
        grown.append(on_disk(saver.folder) - before)
        kept.append(model.values())
    assert grown[0] > base_bytes
    assert max(grown[1:]) < base_bytes // 8
    assert base_of(saver, 1).st_nlink == 3
    assert len({at(saver, step).manifest["base"] for step in range(1, 4)}) == 1
    for step, expected in enumerate(kept, 1):
        assert checkpoints.verify(at(saver, step)) == []
        assert is_same(load(saver, step, Adapted(seed=9)), expected), "whatever base was built"
    assert not said


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("unfrozen", [False, True])
def test_a_base_that_the_script_moves_is_written_anew(
    start: Start, streams: bool, unfrozen: bool
) -> None:
    """Not by its version or ``requires_grad``: a target network is moved by ``.data``."""
    saver, model = start(streams), Adapted()
    save(saver, 1, model)
    first = model.values()
    if unfrozen:
        model.base.requires_grad_(True)
    version = model.base.weight._version
    model.base.weight.data.mul_(0.5)
    assert model.base.weight._version == version
    save(saver, 2, model)
    save(saver, 3, model)
    assert base_of(saver, 2).st_ino != base_of(saver, 1).st_ino
    assert base_of(saver, 3).st_ino == base_of(saver, 2).st_ino
    assert is_same(load(saver, 1, Adapted()), first)
    assert is_same(load(saver, 3, Adapted()), model.values())


def test_the_base_stays_as_long_as_a_checkpoint_has_it(start: Start) -> None:
    saver, model = start(keep=2), Adapted()
    for step in range(1, 5):
        model.train_once()
        save(saver, step, model)
    assert [step for step, _ in checkpoints.listed(saver.folder)] == [3, 4]
    assert base_of(saver, 4).st_nlink == 2
    assert is_same(load(saver, 4, Adapted(seed=9)), model.values())


@pytest.mark.parametrize("streams", [False, True])
def test_where_there_are_no_hard_links_the_base_is_copied(
    start: Start, streams: bool, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    saver, model = start(streams), Adapted()
    save(saver, 1, model)
    save(saver, 2, model)
    assert base_of(saver, 2).st_ino != base_of(saver, 1).st_ino
    assert checkpoints.verify(at(saver, 2)) == []
    assert is_same(load(saver, 2, Adapted(seed=9)), model.values())
    assert not said


@pytest.mark.parametrize("streams", [False, True])
def test_a_damaged_base_is_not_copied_and_written_anew_by_the_next_checkpoint(
    start: Start, streams: bool, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    saver, model = start(streams), Adapted()
    save(saver, 1, model)
    damage(saver.folder / checkpoints.name_of(1) / BASE_FILE)
    monkeypatch.setattr(os, "link", lambda *args, **options: os.stat(""))  # it raises
    save(saver, 2, model)
    assert not saver.has(2)
    (line,) = said
    assert f"{BASE_FILE} is damaged" in line
    save(saver, 3, model)
    assert checkpoints.verify(at(saver, 3)) == []
    assert said[1:] == ["checkpoints are written again, from step 3 on"]


def test_a_checkpoint_that_was_removed_meanwhile_costs_another_base(start: Start) -> None:
    saver, model = start(), Adapted()
    save(saver, 1, model)
    os.unlink(saver.folder / checkpoints.name_of(1) / BASE_FILE)
    save(saver, 2, model)
    assert checkpoints.verify(at(saver, 2)) == []


def test_a_process_that_resumes_writes_a_base_of_its_own(start: Start) -> None:
    """What another has written may have been damaged since."""
    saver, model = start(), Adapted()
    save(saver, 1, model)
    saver.close()
    resumed = start()
    save(resumed, 2, model)
    assert base_of(resumed, 2).st_ino != base_of(resumed, 1).st_ino


@pytest.mark.parametrize("missing", [False, True])
def test_a_damaged_base_is_named_for_all_its_checkpoints(start: Start, missing: bool) -> None:
    saver, model = start(), Adapted()
    for step in (1, 2):
        save(saver, step, model)
    place = saver.folder / checkpoints.name_of(2) / BASE_FILE
    if missing:
        place.unlink()
    else:
        damage(place)
    found, passed_over = checkpoints.newest_good(saver.folder)
    assert (None if found is None else found.step) == (1 if missing else None)
    assert [
        f"step-00000000{step}/{BASE_FILE} is damaged" in line
        for step, line in zip((2, 1), passed_over, strict=False)
    ] == [True] * (1 if missing else 2)


def test_a_base_of_other_shapes_is_refused_by_name(start: Start) -> None:
    saver, model = start(), Adapted()
    save(saver, 1, model)
    other = Adapted(width=WIDTH // 2)
    before = other.values()
    with pytest.raises(StateMismatch, match=r"(tied|base\.weight) is \(8, 2048\)"):
        load(saver, 1, other)
    assert is_same(other.values(), before)


def test_a_checkpoint_without_a_base_of_its_own_is_loaded(start: Start) -> None:
    """Those of before, and of rounds in which peers differ."""
    saver, model = start(), Adapted()
    files = plan_checkpoint(model, model.optimizer, {})
    assert BASE_FILE not in files
    saver.save(1, None, files, b"{}", {"history": "1"})
    saver.wait()
    assert "base" not in at(saver, 1).manifest
    assert is_same(load(saver, 1, Adapted(seed=9)), model.values())


def test_an_export_has_the_whole_model(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saver, model = start(), Adapted()
    save(saver, 1, model)
    assert load_file(saver.folder / checkpoints.name_of(1) / MODEL_FILE).keys() == {
        "adapter.weight",
        "adapter.bias",
    }
    out = saver.folder / "whole.safetensors"
    gossip = gossip_command(monkeypatch, capsys, "checkpoints", "export")
    done = gossip(str(saver.folder), str(out))
    assert not done.returncode
    assert "the model of step 1" in done.stdout
    assert is_same(load_file(out), model.values())


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))


# --- states ---------------------------------------------------------------------------------------


def packed(model: Adapted) -> tuple[bytes, int]:
    data = pack_state(model, model.optimizer, {}, model.trained)
    return data, sizes_of(plan_state(model, model.optimizer, {}, model.trained))[1]


def test_the_base_of_a_state_is_the_same_before_and_after_training() -> None:
    fresh, model = Adapted(), Adapted()
    for _ in range(3):
        model.train_once()
    (first, base), (later, same) = packed(fresh), packed(model)
    assert base == same > model.base.weight.nbytes
    assert first[:base] == later[:base]
    assert len(later) - base < base // 8
    model.base.weight.data[0] += 1.0
    assert packed(model)[0][:base] != first[:base]


def test_a_state_with_a_base_is_whole() -> None:
    model, other = Adapted(), Adapted(seed=9)
    model.train_once()
    unpack_state(packed(model)[0], other, other.optimizer)
    assert is_same(other.values(), model.values())
    assert packed(other) == packed(model)


def test_a_model_that_is_trained_as_a_whole_has_no_base() -> None:
    model = Adapted()
    every = list(model.parameters())
    assert sizes_of(plan_state(model, model.optimizer, {}, every))[1] == 0
    assert BASE_FILE not in plan_checkpoint(model, model.optimizer, {}, every)


def test_a_state_that_lacks_its_base_is_refused_by_name() -> None:
    model, other = Adapted(), Adapted(seed=9)
    files = plan_checkpoint(model, model.optimizer, {}, model.trained)
    data = {}
    for name, file in files.items():
        memory = bytearray(file.nbytes)
        file.write(memoryview(memory))
        data[name] = bytes(memory[: file.length])
    del data[BASE_FILE]
    before = other.values()
    with pytest.raises(ConfigError, match=r"no (base\.weight|tied)"):
        load_document(read_checkpoint(data), other, other.optimizer)
    assert is_same(other.values(), before)
