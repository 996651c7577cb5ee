"""What goes between a GPU and the arena, as far as it can be seen without one. With one:
tests/integration/test_cuda.py."""

from __future__ import annotations

import contextlib
import enum
import logging
import mmap

import pytest
import torch

from gossip.ipc import PAGED_ELEMENTS, Arena
from gossip.training import staging
from gossip.training.staging import Staging


def test_all_numbers_arrive_in_order_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "GATHERED_NUMBERS", 10)
    torch.manual_seed(0)
    shapes = [(3,), (0, 4), (2, 4), (5, 5), (1,), (9,), (2,)]
    tensors = [torch.randn(shape) for shape in shapes]
    tensors += [torch.randn(4, 3).t(), torch.randn(7).to(torch.bfloat16), torch.zeros(()).expand(6)]
    out = torch.full((sum(map(torch.numel, tensors)) + 5,), 9.0)
    assert Staging(torch.device("cpu")).gather(tensors, out)
    expected = torch.cat([each.reshape(-1).float() for each in tensors])
    assert torch.equal(out[:-5], expected)
    assert (out[-5:] == 9.0).all()
    assert [len(row) for row in staging._rows(tensors)] == [3, 8, 25, 10, 2, 12, 7, 6]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [0, 11, 39])
def test_a_number_that_is_not_finite_is_seen(
    number: float, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "GATHERED_NUMBERS", 10)
    whole = torch.ones(40)
    whole[at] = number
    assert not Staging(torch.device("cpu")).gather(whole.split([8, 2, 20, 10]), torch.empty(40))


def test_long_slots_of_an_arena_share_no_page() -> None:
    arena = Arena.create(PAGED_ELEMENTS + 1)
    starts = [
        torch.from_numpy(vector).data_ptr()
        for vectors in (arena.updates, arena.parameters, arena.mixes, arena.results)
        for vector in vectors
    ]
    assert all(start % mmap.PAGESIZE == 0 for start in starts)
    arena.updates[0][:], arena.results[0][:] = 1.0, 2.0
    node = Arena.attach(arena.fd, arena.elements)
    assert (node.updates[0] == 1.0).all()
    assert (node.results[0] == 2.0).all()
    assert (node.lent_result(0) == 2.0).all()
    assert not node.updates[1].any()


class FakeRuntime:
    """Pins nothing, and notes what it was asked for."""

    class cudaError(enum.IntEnum):  # noqa: N801 as CUDA names it
        success = 0
        no = 712

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.answer = self.cudaError.success
        self.asked = 0

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> enum.IntEnum:  # noqa: N802
        assert flags == 0
        self.asked += 1
        if not self.answer:
            self.pinned[address] = nbytes
        return self.answer

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802
        del self.pinned[address]

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        return f"error {int(error)}"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return fake


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Staging:
    made = Staging(torch.device("cpu"))
    monkeypatch.setattr(made, "_is_cuda", True)
    monkeypatch.setattr(made, "_wait", lambda: None)
    return made


def test_a_slot_is_pinned_when_it_is_first_used_and_until_the_arena_goes(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, slots = on_a_gpu(monkeypatch), [torch.zeros(PAGED_ELEMENTS + 3) for _ in range(3)]
    gpu.lend(slots)
    assert not runtime.pinned
    for _ in range(2):
        gpu.gather([torch.ones(5)], slots[0])
        assert torch.equal(gpu.arrive(slots[1]), slots[1])
    nbytes = 4 * (PAGED_ELEMENTS + 3)
    assert runtime.pinned == {slots[0].data_ptr(): nbytes, slots[1].data_ptr(): nbytes}
    assert runtime.asked == 2
    gpu.close()
    assert not runtime.pinned
    gpu.arrive(slots[2])
    assert not runtime.pinned, "it is no slot any more"


def test_what_is_short_or_no_slot_is_not_pinned(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, short = on_a_gpu(monkeypatch), torch.zeros(PAGED_ELEMENTS - 1)
    gpu.lend([short])
    gpu.arrive(short)
    gpu.arrive(torch.zeros(PAGED_ELEMENTS))
    assert not runtime.asked


def test_memory_that_cannot_be_pinned_is_told_once_and_copied_all_the_same(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu, slots = on_a_gpu(monkeypatch), [torch.ones(PAGED_ELEMENTS) for _ in range(2)]
    runtime.answer = FakeRuntime.cudaError.no
    gpu.lend(slots)
    with caplog.at_level(logging.WARNING):
        assert gpu.arrive(slots[0]).sum() == PAGED_ELEMENTS
        assert gpu.arrive(slots[1]).sum() == PAGED_ELEMENTS
    assert [record.getMessage() for record in caplog.records] == [
        "1 MiB of memory cannot be pinned (error 712): updates take longer between GPU and node"
    ]
    assert runtime.asked == 1
