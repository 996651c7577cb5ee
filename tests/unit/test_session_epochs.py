"""``peer.epochs``: the agreed epoch, what a body leaves of it, and when it is saved."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from trainer_fakes import FakeNode, FakeNodeSwarm, backward, small_model, step

from gossip.core import events
from gossip.core.ledger import pack_ledger, squeeze
from gossip.core.ledger.data_cursor import DataCursor
from gossip.errors import ConfigError
from gossip.ipc import messages as control
from gossip.run import checkpoints
from gossip.training import saving

STEPS = 4


def data(n: int = 20) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(n, 5), torch.arange(n)), batch_size=5, shuffle=True)


class Dealer:
    """A node of a swarm of one with ``STEPS`` rounds an epoch, from round ``first`` to the end of
    ``epochs``, and then of as many as the last one has ``further``."""

    def __init__(self, epochs: int, first: int = 0, further: int = 0) -> None:
        self.first, self.last, self.epochs = first, STEPS * epochs + further, epochs
        self.used: list[int] = []  # samples of each contribution
        self.asked: list[events.DataConfigured] = []

    def __call__(self, n: FakeNode) -> None:
        n.prepared()
        n.go(self.first)
        round_id = self.first
        while True:
            match said := n.next():
                case events.DataConfigured():
                    self.asked.append(said)
                    self.deal(n, round_id)
                case control.Contribute():
                    self.used.append(said.samples)
                    if said.samples:
                        n.apply(round_id, round_id % 4, n.arena.updates[said.slot])
                    else:
                        n.send(control.ApplyCommand(round_id, -1, 0.0))
                case control.AppliedReply():
                    round_id += 1
                    self.deal(n, round_id)
                case events.LedgerRequest():
                    tables = ([0], [], DataCursor(3, 20, 5).pack(), [], [], 0)
                    ledger = squeeze(pack_ledger(round_id, bytes(16), tables, whole=True))
                    n.send(events.LedgerReply(round_id, ledger))
                case control.Close():
                    n.send(events.Halt(said.reason, 0))
                    return

    def deal(self, n: FakeNode, round_id: int) -> None:
        is_further = STEPS * self.epochs <= round_id < self.last
        epoch = self.epochs - 1 if is_further else round_id // STEPS
        n.go(round_id, round_id % 4, ranges=[(5 * round_id, 5 * round_id + 5)], epoch=epoch)


@contextmanager
def training(
    dealer: Dealer, **options: Any
) -> Iterator[tuple[Any, Any, torch.nn.Module, torch.optim.Optimizer]]:
    """Yield a session, its loader, and what it has prepared."""
    model, optimizer = small_model()
    with FakeNodeSwarm(dealer, **options) as swarm:
        loader = swarm.session.shard(data())
        swarm.session.prepare(model, optimizer)
        yield swarm.session, loader, model, optimizer


def test_what_a_body_leaves_of_its_epoch_is_passed() -> None:
    model, optimizer = small_model()
    dealer = Dealer(3)
    with FakeNodeSwarm(dealer) as swarm:
        peer = swarm.session
        loader = peer.shard(data())
        peer.prepare(model, optimizer)
        began = []
        for epoch in peer.epochs(3):
            began.append((epoch, peer.step))
            for at, _ in enumerate(loader):
                if at == 2:
                    break
                if at != 1 or epoch != 1:
                    step(model, optimizer, 0)
        assert began == [(0, 0), (1, 4), (2, 8)]
        assert peer.step == 12
    assert swarm.nodes[0].plans == [control.ScriptPlan(3 * STEPS)]
    assert dealer.used == [5, 5, 0, 0, 5, 0, 0, 0, 5, 5, 0, 0]


@pytest.mark.parametrize("batches", [STEPS, 3])
def test_steps_of_a_pass_beyond_the_epoch_are_refused(batches: int) -> None:
    """Or they would use up the next epoch. A look at a batch is none of them."""
    with training(Dealer(3)) as (peer, loader, model, optimizer):
        for _ in peer.epochs(1):
            for _ in range(3):
                for _, _ in zip(range(batches), loader, strict=False):
                    if peer.step == STEPS:
                        next(iter(loader))
                        with pytest.raises(ConfigError, match="would use up the next epoch"):
                            step(model, optimizer, 0)
                        return
                    step(model, optimizer, 0)
    raise AssertionError


def test_a_loop_up_to_where_an_earlier_one_has_ended_is_refused() -> None:
    with training(Dealer(4)) as (peer, *_):
        assert [epoch for n in (2, 3) for epoch in peer.epochs(n)] == [0, 1, 2]
        for loop in (peer.epochs(3), peer.steps(3 * STEPS)):
            with pytest.raises(ConfigError, match="has ended at step 12"):
                next(loop)
        for _ in peer.steps(14):
            break
        assert list(peer.steps(14)) == [12, 13], "the loop was left before its end"


def test_an_epoch_that_is_gone_on_with_has_the_steps_that_are_left() -> None:
    with training(Dealer(3, first=6)) as (peer, loader, model, optimizer):
        bodies = []
        for epoch in peer.epochs(3):
            for _ in loader:
                bodies.append(epoch)
                step(model, optimizer, 0)
        assert bodies == [1, 1, 2, 2, 2, 2]


def test_further_steps_are_of_the_last_epoch() -> None:
    dealer = Dealer(2, further=3)
    with training(dealer) as (peer, loader, model, optimizer):
        bodies = []
        for epoch in peer.epochs(2, remainder="extend"):
            for _ in loader:
                bodies.append(epoch)
                step(model, optimizer, 0)
        assert bodies == 4 * [0] + 7 * [1]
    assert dealer.asked == [events.DataConfigured(20, 5), events.DataConfigured(20, 5, 0, 2)]


def test_workers_end_after_the_goodbye_and_the_last_checkpoint(tmp_path: Path) -> None:
    """They may take seconds, and a node waits three of them for the goodbye."""
    model, optimizer = small_model()
    seen: list[tuple[list[int], list[str]]] = []
    with FakeNodeSwarm(Dealer(3)) as swarm:
        peer = swarm.session
        loader = peer.shard(data())
        peer.prepare(model, optimizer)
        batches = iter(loader)
        for _ in peer.steps(12, save=tmp_path, every=100):
            next(batches)
            step(model, optimizer, 0)
            if peer.step == 2:
                break
        loader.close = lambda: seen.append(  # type: ignore[method-assign]
            (
                [step for step, _ in checkpoints.listed(tmp_path)],
                [said.reason for said in swarm.nodes[0].heard if isinstance(said, control.Close)],
            )
        )
        peer.close("stopped")
    assert seen == [([2], ["stopped"])]


def test_an_epoch_is_saved_when_its_body_is_over(tmp_path: Path) -> None:
    """A scheduler that steps once an epoch is in the checkpoint of its last step."""
    model, optimizer = small_model()
    counted = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    seen: dict[int, int] = {}
    with FakeNodeSwarm(Dealer(2)) as swarm:
        peer = swarm.session
        loader = peer.shard(data())
        peer.prepare(model, optimizer)
        peer.keep(scheduler=counted)
        for _ in peer.epochs(2, save=tmp_path / "ckpt", every=2, keep=9):
            for _ in loader:
                step(model, optimizer, 0)
            told = swarm.nodes[0].plans[-1]
            assert told == control.ScriptPlan(2 * STEPS, str(tmp_path / "ckpt"), 2)
            peer._checkpoints.saver.wait()
            assert not peer._checkpoints.saver.has(peer.step), "before its epoch is over"
            counted.step()
    for at in (2, 4, 6, 8):
        found = checkpoints.open_at(tmp_path / "ckpt" / checkpoints.name_of(at))
        model, optimizer = small_model()
        counted = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with FakeNodeSwarm(Dealer(2, first=at), resume=f"{tmp_path / 'ckpt'}@{at}") as swarm:
            swarm.session.prepare(model, optimizer)
            swarm.session.keep(scheduler=counted)
            assert swarm.session.planned_peers == 3
            assert json.loads(found.read("ledger.json"))["round"] == at
        seen[at] = counted.last_epoch
    assert seen == {2: 0, 4: 1, 6: 1, 8: 2}


def test_training_goes_on_without_checkpoints_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it was: the peer that writes stood still for 76 s where syncing took 10 s."""
    real, synced = os.fsync, threading.Event()

    def fsync(fd: int) -> None:
        synced.wait()
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(saving, "SLOW_DISK_S", 0.05)
    with FakeNodeSwarm(Dealer(3)) as swarm:
        peer = swarm.session
        model, optimizer = swarm.prepare()
        for step in peer.steps(12, save=tmp_path / "ckpt", every=2, keep=9):
            backward(model, 0)
            optimizer.step()
            if step == 7:
                synced.set()
                peer._checkpoints.saver.wait()
                monkeypatch.setattr(saving, "SLOW_DISK_S", 60.0)
    assert [step for step, _ in checkpoints.listed(tmp_path / "ckpt")] == [2, 8, 10, 12]
    said = capsys.readouterr().err
    assert said.count("the previous one is still being written") == 1
    assert "there is no checkpoint of step 4" in said


def test_where_peers_have_state_of_their_own_all_save_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving.CheckpointSaver, "is_in_time", lambda self, step: False)
    model = torch.nn.Sequential(torch.nn.Linear(5, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with FakeNodeSwarm(Dealer(2)) as swarm:
        peer = swarm.session
        peer.prepare(model, optimizer)
        for _ in peer.steps(8, save=tmp_path / "ckpt", every=2, keep=9):
            model(torch.randn(3, 5)).sum().backward()
            optimizer.step()
    assert [step for step, _ in checkpoints.listed(tmp_path / "ckpt")] == [2, 4, 6, 8]


class Three(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.ones(5), at) for at in range(3)])


def test_what_cannot_be_a_run_of_epochs_is_refused() -> None:
    with FakeNodeSwarm(Dealer(1)) as swarm:
        peer = swarm.session
        swarm.prepare()
        for wrong in (-1, 1.5, "2"):
            with pytest.raises(ConfigError, match="not a number of epochs"):
                peer.epochs(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="remainder is 'read'"):
            peer.epochs(1, remainder="read")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="every without save"):
            peer.epochs(1, every=3)
        with pytest.raises(ConfigError, match="data set with an index"):
            peer.epochs(1, remainder="extend")
        peer.shard(Three(), batch_size=2)
        with pytest.raises(ConfigError, match="data set with an index"):
            peer.epochs(1, remainder="extend")


@contextmanager
def evaluating(model: torch.nn.Module, how: str) -> Iterator[None]:
    with torch.no_grad() if how == "no_grad" else nullcontext():
        model.train(how != "eval_mode")
        yield
        model.train()


@pytest.mark.parametrize("where", ["before", "within", "behind"])
@pytest.mark.parametrize("length", [2, STEPS])
@pytest.mark.parametrize("how", ["no_grad", "eval_mode"])
def test_an_evaluation_on_the_sharded_loader_is_refused(how: str, length: int, where: str) -> None:
    """Whole or in part, before, within or behind the pass that trains."""
    with training(Dealer(4)) as (peer, loader, model, optimizer):
        steps = 0

        def evaluate() -> None:
            with evaluating(model, how):
                for at, _ in enumerate(loader, 1):
                    if at == length:
                        break

        def train() -> None:
            nonlocal steps
            for _ in peer.epochs(3):
                if where == "before":
                    evaluate()
                for at, _ in enumerate(loader):
                    step(model, optimizer, 0)
                    steps += 1
                    if where == "within" and at == 0:
                        evaluate()
                if where == "behind":
                    evaluate()

        with pytest.raises(ConfigError, match="and no step followed any of them"):
            train()
        assert steps == {"before": 0, "within": 1, "behind": STEPS}[where]


def test_an_evaluation_is_refused_if_an_epoch_is_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "STEPS", 1)
    model, optimizer = small_model()
    with FakeNodeSwarm(Dealer(4)) as swarm:
        peer = swarm.session
        loader = peer.shard(data(5))
        peer.prepare(model, optimizer)
        epochs = peer.epochs(4)
        next(epochs)
        for _ in loader:
            step(model, optimizer, 0)
        with pytest.raises(ConfigError, match="had 1 batch,"), torch.no_grad():
            list(loader)


def test_an_evaluation_on_a_stream_is_refused() -> None:
    model, optimizer = small_model()
    with FakeNodeSwarm(Dealer(4)) as swarm:
        peer = swarm.session
        loader = peer.shard(DataLoader(Three(), batch_size=1))
        peer.prepare(model, optimizer)
        for _ in loader:
            step(model, optimizer, 0)
        with pytest.raises(ConfigError, match="and no step followed any of them"), torch.no_grad():
            list(loader)


def test_a_model_may_train_in_eval_mode_and_pass_over_batches() -> None:
    """As one whose statistics stay as they were trained elsewhere."""
    dealer = Dealer(2)
    with training(dealer) as (peer, loader, model, optimizer):
        model.eval()
        for epoch in peer.epochs(2):
            for at, (x, _) in enumerate(loader):
                if epoch == 1 and at < 2:
                    continue
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
    assert dealer.used == [5] * STEPS + [0, 0, 5, 5]


@pytest.mark.parametrize("first", [STEPS, 2 * STEPS - 2])
def test_batches_that_are_passed_over_where_the_model_trains_are_no_evaluation(first: int) -> None:
    """Not one of a whole epoch, or of what is left of it, is of use."""
    dealer = Dealer(3, first=first)
    with training(dealer) as (peer, loader, model, optimizer):

        def train() -> None:
            for epoch in peer.epochs(3):
                for x, _ in loader:
                    if epoch == 1:
                        continue
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()

        with pytest.warns(UserWarning, match="and no step followed any of them"):
            train()
    assert dealer.used == [0] * (2 * STEPS - first) + [5] * STEPS


def test_an_iterator_that_is_made_anew_where_it_ends_is_no_such_pass() -> None:
    with training(Dealer(3, first=6)) as (
        peer,
        loader,
        model,
        optimizer,
    ):  # in the middle of epoch 1
        batches = iter(loader)
        for _ in peer.epochs(3):
            for _ in range(len(loader)):
                if next(batches, None) is None:
                    batches = iter(loader)
                    if next(batches, None) is None:
                        break
                step(model, optimizer, 0)
        assert peer.step >= 12


def test_numbers_that_are_drawn_after_a_step_are_not_drawn_for_the_next_batch() -> None:
    """Such as the noise of a GAN's second optimizer."""
    with training(Dealer(2)) as (peer, loader, model, optimizer):
        drawn = []
        for _ in peer.epochs(2):
            drawn.append(float(torch.rand(1)))
            for _ in loader:
                drawn.append(float(torch.rand(1)))
                step(model, optimizer, 0)
                drawn.append(float(torch.rand(1)))
            drawn.append(float(torch.rand(1)))
    assert len(set(drawn)) == len(drawn) == 4 + 4 * STEPS


def test_the_batch_size_stays() -> None:
    with training(Dealer(1)) as (_, loader, *_), pytest.raises(AttributeError, match="batch_size"):
        loader.batch_size = 2


def test_a_look_at_the_first_batch_costs_no_step() -> None:
    dealer = Dealer(2)
    with training(dealer) as (peer, loader, model, optimizer):
        for _ in peer.epochs(2):
            looked_at, *_ = next(iter(loader))
            for at, (x, *_) in enumerate(loader):
                assert at or torch.equal(x, looked_at)
                step(model, optimizer, 0)
    assert dealer.used == [5] * (2 * STEPS)


LOCAL_STEPS = [{}, {"local_steps": 2, "outer": "mean"}]


@pytest.mark.parametrize("options", LOCAL_STEPS)
@pytest.mark.parametrize("stepped", [True, False])
def test_a_look_at_a_batch_within_a_pass_costs_no_step(
    stepped: bool, options: dict[str, Any]
) -> None:
    dealer = Dealer(2)
    with training(dealer, **options) as (peer, loader, model, optimizer):
        for _ in peer.epochs(2):
            for at, _ in enumerate(loader):
                if not stepped and at % 2 == 0:
                    next(iter(loader))
                step(model, optimizer, 0)
                if stepped and at % 2 == 0:
                    next(iter(loader))
    assert dealer.used == [5] * (2 * STEPS)


def test_two_iterators_may_take_turns_and_leave_a_batch_without_a_step() -> None:
    with training(Dealer(3)) as (_, loader, model, optimizer):
        first, second = iter(loader), iter(loader)
        for _ in range(2):
            next(first)
            step(model, optimizer, 0)
            next(second)


@pytest.mark.parametrize(
    "pair", [lambda a: zip(a, a, strict=True), lambda a: ((x, next(iter(a))) for x in a)]
)
@pytest.mark.parametrize("options", LOCAL_STEPS)
def test_iterators_that_read_the_same_batches_are_refused(
    pair: Any, options: dict[str, Any]
) -> None:
    with training(Dealer(1), **options) as (_, loader, model, optimizer):
        pairs = pair(loader)
        for _ in range(2):
            next(pairs)
            step(model, optimizer, 0)
        with pytest.raises(ConfigError, match="at the same time"):
            next(pairs)


def test_a_kept_scheduler_is_not_stepped_for_a_batch_that_all_peers_leave_out() -> None:
    model, optimizer = small_model()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    with FakeNodeSwarm(Dealer(3)) as swarm:
        peer = swarm.session
        loader = peer.shard(data())
        peer.prepare(model, optimizer)
        peer.keep(scheduler=scheduler)
        steps = 0
        for _ in peer.epochs(3):
            for at, _ in enumerate(loader):
                if at == 2:
                    continue
                step(model, optimizer, 0)
                scheduler.step()
                steps += 1
    assert scheduler.last_epoch == steps == 9
