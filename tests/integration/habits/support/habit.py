"""What the scripts of habits share: small data and models, a pause in each step, and results in
files that the harness compares. Beside it, ``plain.py`` stands for gossip in plain torch."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import gossip

STEPS = 48
"""Steps of a run of three peers over two epochs of ``dataset``."""
FAULT_STEP = 20
"""The step at which a peer is late or is killed."""
LATE_STEPS = 3
"""Steps that the late peer misses."""
HELD_STEP = 25
"""The step behind which a run waits to be killed; it has saved step 20."""
STEP_S = 0.01
AWAY_STEP_S = 0.3
WAIT_S = 60.0
SITUATION = os.environ.get("HABIT_SITUATION", "single")
OUT = Path(os.environ.get("HABIT_OUT", "."))


def dataset() -> TensorDataset:
    """Return 288 samples of a regression with eight inputs."""
    x = torch.randn(288, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, torch.tanh(x[:, :4].sum(1, keepdim=True)))


def loader(**options: Any) -> DataLoader[Any]:
    """Return a loader of 72 batches of four samples."""
    return DataLoader(dataset(), batch_size=4, shuffle=True, **options)


def model(width: int = 8) -> nn.Sequential:
    """Return a network with 81 parameters, the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD: ``train()`` and ``eval()`` swap the weights."""

    def train(self, mode: bool = True) -> None:
        group = self.param_groups[0]
        for p in group["params"] * (group["train_mode"] != mode):
            p.data.lerp_(self.state[p].get("z", p.data), 0.1 if mode else 1 - 1 / 0.9)
        group["train_mode"] = mode

    def eval(self) -> None:
        self.train(False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            z = self.state[p].setdefault("z", p.clone()).sub_(p.grad, alpha=0.05)
            p.lerp_(z, 0.05).add_(p.grad, alpha=-0.005)


def prepared(net: nn.Module | None = None, optimizer: Any = None) -> tuple[Any, Any, Any]:
    """Return the peer and what it has prepared: by default ``model()`` and SGD with momentum."""
    net = model() if net is None else net
    if optimizer is None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    peer = gossip.init()
    return peer, *peer.prepare(net, optimizer)


def run(net: nn.Module | None = None, optimizer: Any = None, **how: Any) -> None:
    """Prepare, train and write the result, in a script that does nothing beside that."""
    peer, net, optimizer = prepared(net, optimizer)
    train(peer, net, optimizer, **how)
    done(peer, net)


def step(predict: Callable[[Tensor], Tensor], optimizer: Any, x: Tensor, y: Tensor) -> None:
    """Step on the mean squared error of a batch."""
    optimizer.zero_grad()
    mse_loss(predict(x), y).backward()
    optimizer.step()


def train(
    peer: Any,
    net: nn.Module,
    optimizer: Any,
    batches: Any = None,
    *,
    predict: Callable[[Tensor], Tensor] | None = None,
    schedule: Any = None,
) -> None:
    """Train for two epochs, in the loop that most scripts have.

    Args:
        batches: What ``peer.shard`` has returned; by default for ``loader()``.
        predict: Computes the outputs in place of ``net``.
        schedule: A scheduler that is stepped in every batch.
    """
    batches = peer.shard(loader()) if batches is None else batches
    for _ in peer.epochs(2, save="ckpt", every=10):
        for x, y in batches:
            step(predict or net, optimizer, x, y)
            if schedule is not None:
                schedule.step()
            pause(peer)


def batches(peer: Any, data: DataLoader[Any] | None = None) -> Iterator[Any]:
    """Yield the batches of two epochs, by default of ``loader()``, with a pause behind each."""
    sharded = peer.shard(loader() if data is None else data)
    for _ in peer.epochs(2, save="ckpt", every=10):
        for batch in sharded:
            yield batch
            pause(peer)


def pause(peer: Any) -> None:
    """Stretch the step that is over, as the situation needs. Call it once in each step."""
    step = peer.step
    if SITUATION in ("resumed", "fewer") and step >= HELD_STEP and not (OUT / "again").exists():
        (OUT / f"held-{peer.id}").touch()
        _wait_until(lambda: (OUT / "again").exists())
    elif SITUATION == "late":
        time.sleep(STEP_S)
        if peer.id == 2 and step >= FAULT_STEP and not (OUT / "late").exists():
            commits = peer.run_dir / "peer-0" / "commits.jsonl"
            rows = commits.read_bytes().count(b"\n") + LATE_STEPS
            _wait_until(lambda: commits.read_bytes().count(b"\n") >= rows)
            (OUT / "late").touch()
    elif SITUATION == "killed":
        time.sleep(STEP_S)
        if peer.id == 2 and os.environ.get("GOSSIP_INCARNATION", "0") != "0":
            (OUT / "back").touch()
        elif step > FAULT_STEP:
            # A bounded pause in each step: the others send the state between two steps.
            until = time.monotonic() + AWAY_STEP_S
            _wait_until(lambda: (OUT / "back").exists() or time.monotonic() > until)


def done(
    peer: Any,
    module: nn.Module,
    counts: Mapping[str, Any] | None = None,
    shared: Mapping[str, Any] | None = None,
    own: Mapping[str, Any] | None = None,
) -> None:
    """Write the result of this peer.

    Args:
        counts: Values that every situation must end with, such as the number of steps.
        shared: Values that are equal on all peers: numbers, tensors, modules, state dicts.
        own: Values that each peer has for itself.
    """
    parts = {"model": dict(module.named_parameters()), "count": {"steps": peer.step}}
    parts["count"] |= dict(counts or {})
    parts |= {"shared": dict(shared or {}), "own": dict(own or {})}
    parts["own"] |= {f"buffer {name}": value for name, value in module.named_buffers()}
    flat = {name: _tensor(value) for name, value in _flat(parts)}
    new = OUT / f"peer-{peer.id}.new"
    save_file(flat, new)
    new.rename(OUT / f"peer-{peer.id}.safetensors")


def _flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        value = value.state_dict()
    if isinstance(value, Mapping):
        entries = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        entries = [(str(at), each) for at, each in enumerate(value)]
    else:
        return [(name, value)] if isinstance(value, Tensor | int | float) else []
    return [pair for key, each in entries for pair in _flat(each, f"{name}/{key}".strip("/"))]


def _tensor(value: Any) -> Tensor:
    kind = torch.int64 if isinstance(value, int) else torch.float64
    made = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=kind)
    return made.to_dense().clone().contiguous() if made.is_sparse else made.clone().contiguous()


def _wait_until(over: Any) -> None:
    until = time.monotonic() + WAIT_S
    while not over():
        assert time.monotonic() < until, "nothing came for a minute"
        time.sleep(0.002)


_show = sys.excepthook


def _record(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Note an exception that ends the script, for the harness."""
    (OUT / f"refused-{os.getpid()}.json").write_text(json.dumps({"name": kind.__name__}))
    _show(kind, error, trace)


sys.excepthook = _record
