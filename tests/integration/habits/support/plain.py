"""``gossip`` in plain torch: the reference of the table of habits.

``begin.py`` puts this module in the place of ``gossip`` before a script runs. One process trains as
the script says. Of several, each averages its gradients with the others by ``all_gather`` of
``torch.distributed``, before its optimizer steps. The batches are those of the product's own loader
and cursor, and the generators are seeded as the product seeds them; all other numbers are torch's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import IterableDataset

from gossip.core.ledger.data_cursor import DataCursor
from gossip.ipc import StartRoundCommand
from gossip.topologies import draw
from gossip.training.batches import BatchTracker
from gossip.training.loader import ShardedLoader, loader_of
from gossip.training.optimizer import kind_of
from gossip.training.seeding import seed_generators
from gossip.training.streaming import ShardedStream

SEED = 0


class PlainPeer:
    """A peer of a run in which nothing fails."""

    EVERY_SAMPLE = 2**31
    epoch, run_dir = -1, None
    is_main = property(lambda self: self.id == 0)

    def __init__(self) -> None:
        self.id = int(os.environ.get("HABIT_RANK", "0"))
        self.count = int(os.environ.get("HABIT_PEERS", "1"))
        self.roster_peers = self.alive_peers = self.planned_peers = self.initial_peers = self.count
        self.step = 0
        self._cursor = DataCursor(self.count)
        self.batches = BatchTracker()
        self._callbacks: list[Callable[[], object]] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._stepped: set[int] = set()  # optimizers, in this step
        self._used: dict[int, int] = {}  # samples of this step's contributors
        self._samples = 0
        self._passing = self._skips = False
        self._skipped: set[int] = set()
        self._used_alone = 0
        self._loader: Any = None
        if self.count > 1:
            method = f"file://{os.environ['HABIT_OUT']}/meeting"
            dist.init_process_group("gloo", init_method=method, rank=self.id, world_size=self.count)

    @property
    def round(self) -> int:
        return self.step

    # --- the calls of scripts ---------------------------------------------------------------------

    def prepare(  # type: ignore[no-untyped-def]
        self, model: Any, optimizer: Any, judge: Any = None, together=False, clip_norm=None
    ) -> Any:
        self._clip_norm = clip_norm
        given = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        for each in given:
            base = getattr(each, "base", None)
            self._optimizers.append(base if isinstance(base, torch.optim.Optimizer) else each)
        for at, each in enumerate(self._optimizers):
            each.register_step_pre_hook(lambda _, args, kw, at=at: self._before(at, args, kw))
            each.register_step_post_hook(lambda *_, at=at: self._after(at))
        witness = self._parameters(-1)[-1]
        self.batches.prepare(model, witness)
        self._draw()
        return model, optimizer

    def shard(self, data: Any, *, batch_size: int | None = None, accumulate: int = 1, **how: Any):  # type: ignore[no-untyped-def]
        loader = loader_of(data, batch_size, how)
        self.batches.expected = accumulate
        if isinstance(loader.dataset, IterableDataset):
            self._loader = ShardedStream(loader, self._loop, SEED, accumulate=accumulate)
        else:
            self._loader = ShardedLoader(loader, self._loop, SEED, accumulate=accumulate)
            self._cursor.configure(*self._loader.plan[:2])
        return self._loader

    def steps(self, total: int, **_: Any) -> Iterator[int]:
        while self.step < total:
            step = self.step
            self._draw("pass")
            yield step
            if self.step == step:
                self._pass_step()

    def epochs(self, total: int, **_: Any) -> Iterator[int]:
        if not isinstance(self._loader, ShardedLoader):
            yield from range(total)
            return
        while (epoch := self._cursor.epoch) < total:
            self._draw("epoch")
            yield epoch
            while self._cursor.epoch == epoch:
                self._pass_step()  # what ``break`` leaves is read in the next epoch

    def each_step(self, call: Callable[[], object]) -> Callable[[], object]:
        self._callbacks.append(call)
        return call

    def keep(self, **_: Any) -> None:
        pass

    def log(self, **_: Any) -> None:
        pass

    def save_every(self, *_: Any, **__: Any) -> None:
        pass

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass

    # --- a step -----------------------------------------------------------------------------------

    def _before(self, at: int, args: Any, kwargs: Any) -> Any:
        if self._passing:
            return None
        if at in self._stepped:  # the others do not step in this round
            self._end_step(True)
        closure = kwargs.get("closure") or next((a for a in args[1:] if callable(a)), None)
        if closure is None:
            self._contribute(at)
            return None

        def averaged() -> Any:
            loss = closure()
            self._contribute(at)
            return loss

        return (args[0], averaged), {}

    def _contribute(self, at: int) -> None:
        if not self._stepped:
            self._samples = self.batches.end_round(1)
            self._used_alone = self.EVERY_SAMPLE
        self._average(at, True)
        self._clip(at)
        if self.count > 1:
            self._generator = torch.get_rng_state()
            further = bool(self._stepped)
            kind = 0 if len(self._optimizers) == 1 else kind_of([at]) + further
            torch.manual_seed(draw("optimizer", SEED, self.step + further, kind) % 2**63)

    def _average(self, at: int, contributes: bool) -> bool:
        """Put the mean of the contributors' gradients in the place of the own ones. Returns False
        if there are none."""
        parameters = self._parameters(at)
        if self.count == 1:
            self._skipped = {0} if self._skips else set()
            return contributes
        about = [float(contributes), float(self._samples), float(self._skips)]
        about += [float(p.grad is not None) for p in parameters]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        # Gradients travel as float32, which float64 holds exactly beside the counts.
        own = torch.cat(
            [torch.tensor(about).double(), *[g.float().ravel().double() for g in grads]]
        )
        rows = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(rows, own)
        given = {peer: row for peer, row in enumerate(rows) if row[0]}
        self._used = {peer: int(row[1]) for peer, row in given.items()}
        self._skipped = {peer for peer, row in enumerate(rows) if row[2]}
        if not given:
            return False
        mean = torch.stack([row[len(about) :].float() for row in given.values()]).mean(0)
        seen = torch.stack(list(given.values()))[:, 3 : len(about)].any(0)
        for p, part, has in zip(parameters, mean.split([p.numel() for p in parameters]), seen):  # noqa: B905
            p.grad = _put(p, part.view_as(p)) if has else p.grad
        return True

    def _clip(self, at: int) -> None:
        grads = [p.grad for p in self._parameters(at) if p.grad is not None]
        if self._clip_norm is not None:
            norm = torch.cat([grad.double().ravel() for grad in grads]).norm()
            factor = (self._clip_norm / (norm + 1e-6)).clamp(max=1.0).float()
            for grad in grads:
                grad.mul_(factor)

    def _after(self, at: int) -> None:
        if self.count > 1 and not self._passing:
            torch.set_rng_state(self._generator)
        self._stepped.add(at)
        if len(self._stepped) == len(self._optimizers):
            self._end_step(True)

    def _end_step(self, stepped: bool) -> None:
        self._stepped.clear()
        used = {0: self._used_alone} if self.count == 1 else self._used
        self._cursor.commit(range(self.count), used, unused=dict.fromkeys(self._skipped, "skipped"))
        self.step += 1
        if stepped:
            for call in self._callbacks:
                call()
        self._draw()

    def _parameters(self, at: int) -> list[Tensor]:
        return [p for group in self._optimizers[at].param_groups for p in group["params"]]

    def _draw(self, moment: str = "after step") -> None:
        if self.count > 1:
            seed_generators(draw(moment, SEED, self.id, self.step))

    # --- what the product's loader calls ----------------------------------------------------------

    peer = property(lambda self: self.id)

    @property
    def _loop(self) -> Any:
        calls = {name: getattr(self, name) for name in ("next_round", "hand_out", "end_pass")}
        return SimpleNamespace(run=self, rounds=self, steps=self, **calls)

    def next_round(self, epoch_steps: int = 0) -> StartRoundCommand | None:
        if self._stepped:
            self._end_step(True)
        self._draw("step")
        ranges = self._cursor.assign(range(self.count))[self.id]
        return StartRoundCommand(
            self.step, 0, True, self._cursor.epoch, ranges, False, self.count, self.count, self.id
        )

    def end_pass(self, epoch: int | None = None) -> None:
        self._draw("after epoch")

    def pass_round(self, skipped: bool = False) -> None:
        self._pass_step(skipped)

    def _pass_step(self, skipped: bool = False) -> None:
        self.batches.drop()
        self._samples, self._passing, stepped = 0, True, False
        self._skips, self._used_alone = skipped, 0
        for at, optimizer in enumerate(self._optimizers):
            for p in self._parameters(at):
                p.grad = None
            if stepped := self._average(at, False):
                self._clip(at)
                optimizer.step()
        self._passing = self._skips = False
        if not stepped:
            self._end_step(False)

    def hand_out(self, samples: int, batch: int = 0, *_: Any) -> None:
        self.batches.hand_out(samples, batch)


def _put(parameter: Tensor, mean: Tensor) -> Tensor:
    if parameter.grad is None:
        return mean.to(parameter.dtype)
    return parameter.grad.copy_(mean)


def init(**_: Any) -> PlainPeer:
    seed_generators(SEED)
    return PlainPeer()
