"""A peer of ``gossip bench exchange`` and ``gossip bench step``: the same processes run both
sides, gloo's and gossip's, alternately.

Started by ``gossip run``, with its task as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .turns import in_order

GLOO, GOSSIP = "gloo", "gossip"
TURN = "turn "


@dataclass(frozen=True, slots=True)
class BenchTask:
    """Task of each peer.

    Attributes:
        model: A name of ``WORKLOADS``, or ``vector`` for a model without computation.
        device: Device of the model.
        numbers: Length of a vector.
        steps: Steps in a turn of one side.
        folder: Rendezvous of the processes of gloo, and place of the figures of rank 0.
    """

    model: str
    device: str
    numbers: int
    batch: int
    steps: int
    repetitions: int
    peers: int
    folder: str = ""

    def dump(self) -> str:
        return json.dumps(asdict(self))


class Side:
    """One side of the comparison: a model, and ``step``, a whole step of its training."""

    def __init__(self, task: BenchTask, rank: int) -> None:
        import torch

        from .workloads import VECTOR, WORKLOADS, FlatVector

        torch.manual_seed(1)
        self.loss = torch.nn.CrossEntropyLoss()
        self.batches: list[Any] = []
        if task.model == VECTOR:
            self.model: Any = FlatVector(task.numbers).to(task.device)
            # An update several times as long would be rejected as an attack.
            value = 1.0 + rank / task.peers
            self.gradient: Any = torch.full((task.numbers,), value, device=task.device)
        else:
            work = WORKLOADS[task.model]
            generator = torch.Generator().manual_seed(rank)
            self.model = work.model().to(task.device)
            drawn = [work.batch(task.batch, generator) for _ in range(8)]
            self.batches = [tuple(each.to(task.device) for each in batch) for batch in drawn]
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.count = 0

    def step(self) -> None:
        if self.batches:
            inputs, targets = self.batches[self.count % len(self.batches)]
            self.count += 1
            self.optimizer.zero_grad()
            self.loss(self.model(inputs), targets).backward()
        else:
            # As after a backward pass: a script that holds the tensor expects the result in it.
            self.model.numbers.grad, self.gradient = self.gradient, None
        self.exchange()
        self.optimizer.step()
        if not self.batches:
            self.gradient = self.model.numbers.grad

    def exchange(self) -> None:
        """Exchange the gradients before the optimizer steps."""


class GlooVector(Side):
    """One all-reduce of the vector, and its mean."""

    def exchange(self) -> None:
        import torch.distributed as dist

        gradient = self.model.numbers.grad
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())


def _gloo_side(task: BenchTask, rank: int) -> Side:
    from torch.nn.parallel import DistributedDataParallel

    from .workloads import VECTOR

    if task.model == VECTOR:
        return GlooVector(task, rank)
    side = Side(task, rank)
    side.model = DistributedDataParallel(side.model)
    return side


def main() -> None:
    task = BenchTask(**json.loads(sys.argv[1]))
    import gossip

    peer = gossip.init()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        GLOO, init_method=f"file://{task.folder}/rendezvous", rank=peer.id, world_size=task.peers
    )
    sides = {GLOO: _gloo_side(task, peer.id), GOSSIP: Side(task, peer.id)}
    ours = sides[GOSSIP]
    ours.model, ours.optimizer = peer.prepare(ours.model, ours.optimizer)
    took, spent = _measured(task, peer.id, {name: side.step for name, side in sides.items()})
    # A step ends when it has ended in the last process.
    dist.all_reduce(took, dist.ReduceOp.MAX)
    dist.all_reduce(spent)
    if peer.id == 0:
        _leave(task, took.tolist(), (spent / task.peers).tolist())
    dist.barrier()
    del sides, ours  # as in examples/ddp.py: DDP's model must not hold the last reference
    dist.destroy_process_group()
    peer.close()


def _processor_s(name: str) -> float:
    """Return the processor seconds that this side of a peer has used so far: the node is
    gossip's."""
    processes = ["self"]
    if name == GOSSIP:
        for children in Path("/proc/self/task").glob("*/children"):
            processes += children.read_text("ascii").split()
    used_ns = 0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
            with contextlib.suppress(FileNotFoundError):  # the process has just ended
                used_ns += int(thread.read_text("ascii").split()[0])
    return used_ns / 1e9


def _measured(task: BenchTask, rank: int, steps: dict[str, Callable[[], None]]) -> tuple[Any, Any]:
    """Return the seconds per step, ``(sides, turns)``, and the processor seconds of this peer,
    ``(sides,)``. The first turn is a warm-up, and is not counted."""
    import torch
    import torch.distributed as dist

    took = torch.zeros(len(steps), task.repetitions, dtype=torch.float64)
    spent = torch.zeros(len(steps), dtype=torch.float64)
    names = tuple(steps)
    for turn in range(task.repetitions + 1):
        for name in in_order(names, turn):
            dist.barrier()
            used, began = _processor_s(name), time.perf_counter()
            for _ in range(task.steps):
                steps[name]()
            if task.device != "cpu":
                torch.cuda.synchronize()
            if turn:
                at, every = names.index(name), task.steps * task.repetitions
                took[at, turn - 1] = (time.perf_counter() - began) / task.steps
                spent[at] += (_processor_s(name) - used) / every
        if rank == 0:
            print(f"{TURN}{turn}", flush=True)
    return took, spent


def _leave(task: BenchTask, took: list[list[float]], spent: list[float]) -> None:
    result = Path(task.folder, "result.json")
    part = result.with_suffix(".part")
    processor = dict(zip((GLOO, GOSSIP), spent, strict=True))
    part.write_text(json.dumps({GLOO: took[0], GOSSIP: took[1], "processor": processor}))
    os.replace(part, result)


if __name__ == "__main__":
    main()
