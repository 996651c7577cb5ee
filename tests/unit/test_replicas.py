"""Digests of a replica: when they are made, what they cover, and what follows where they differ."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_each_step import ONES, Average
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    echo,
    pack_state,
    prepared_swarm,
    same_bits,
    small_model,
    step,
)

from gossip.core import events
from gossip.core.ledger.replicas import UNDECIDED, DivergenceWatch, compare
from gossip.core.messages import Commit, Contribution
from gossip.ipc import messages as control
from gossip.training import replicas
from gossip.training.replicas import ReplicaCheck, largest_difference

# --- what most have -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("digests", "n", "f", "found"),
    [
        ("", 3, 0, (b"", ())),
        ("0a", 1, 0, (UNDECIDED, ())),
        ("0a 1a", 2, 0, (b"a", ())),
        ("0b 1a 2a", 3, 0, (b"a", (0,))),
        ("0a 1a 2b 3a 4a", 5, 1, (b"a", (2,))),
        ("0a 1a 3b", 5, 0, (UNDECIDED, ())),  # no majority of five
        ("0a 1b", 3, 0, (UNDECIDED, ())),  # one that has not sent any decides
        ("2a 1b", 2, 0, (b"b", (2,))),  # of two nobody can tell
        ("0a 1b 2c", 3, 0, (b"a", (1, 2))),
        ("0a 1b 2c 3d", 4, 1, (b"a", (1, 2, 3))),  # honest ones differ
        ("0b 1a", 2, 1, (UNDECIDED, ())),  # one of them may lie
        ("0a 1a 2b", 3, 2, (UNDECIDED, ())),
    ],
)
def test_a_majority_decides_which_replica_is_right(
    digests: str, n: int, f: int, found: tuple[bytes, tuple[int, ...]]
) -> None:
    sent = {int(each[0]): each[1:].encode() for each in digests.split()}
    assert compare({**sent, 9: b""}, n, f) == found


def commit_of(
    round_id: int,
    server: int,
    peers: tuple[int, ...],
    diverged: tuple[int, ...],
    replica: bytes = b"r",
) -> Commit:
    return Commit(
        lineage=b"",
        round_id=round_id,
        shard=0,
        attempt=0,
        made_at=0,
        server=server,
        parent=b"",
        digest=b"d" if peers else b"",
        contributors=tuple([Contribution(peer, 1, 1.0, 1.0) for peer in peers]),
        rejected=(),
        roster=(0, 1, 2),
        loss=None,
        reason="",
        replica=replica,
        diverged=diverged,
    )


def watched(f: int, *rounds: tuple[int, str, str]) -> DivergenceWatch:
    """After rounds, each with its server, its contributors and those of them that differed."""
    watch = DivergenceWatch(f)
    for at, (server, contributors, diverged) in enumerate(rounds):
        peers = tuple(map(int, contributors))
        replica = UNDECIDED if diverged == "?" else b"r" if diverged else b""
        named = () if diverged == "?" else tuple(map(int, diverged))
        commit = commit_of(at, server, peers, named, replica)
        watch.observe(commit, peers, at + 1)
    return watch


@pytest.mark.parametrize(
    ("f", "rounds", "struck"),
    [
        (0, [(0, "012", "2")], set()),
        (0, [(0, "012", "2"), (1, "01", ""), (1, "012", ""), (1, "012", "2")], {2}),
        # it missed a round after it was replaced: that may be why
        (0, [(0, "012", "2"), (1, "012", ""), (1, "01", ""), (1, "012", "2")], set()),
        # lost rounds and collective operations are missed by nobody
        (0, [(0, "012", "2"), (1, "012", ""), (1, "", ""), (1, "012", "2")], {2}),
        # one server is not believed where one may lie
        (1, [(0, "012", "2"), (1, "012", ""), (0, "012", "2")], set()),
        (1, [(0, "012", "2"), (1, "012", ""), (1, "012", "2")], {2}),
        (0, [(0, "012", "12"), (1, "012", "12")], {1, 2}),
    ],
)
def test_a_peer_that_differs_again_without_a_missed_round_is_struck(
    f: int, rounds: list[tuple[int, str, str]], struck: set[int]
) -> None:
    assert watched(f, *rounds).struck == struck


def test_a_commit_that_is_applied_a_second_time_does_not_count_again() -> None:
    watch = watched(0, (0, "012", "2"))
    watch.observe(commit_of(0, 0, (0, 1, 2), (2,)), (0, 1, 2), 1)
    assert watch.struck == frozenset()


def test_replicas_are_compared_in_the_first_steps_and_when_a_peer_has_returned() -> None:
    steady = [(0, "012", "")] * 3
    assert watched(0, *steady).compares_next
    assert not watched(0, *steady, (0, "012", "")).compares_next
    assert not watched(0, *steady, (0, "01", "")).compares_next
    assert watched(0, *steady, (0, "01", ""), (0, "012", "")).compares_next
    assert watched(0, *steady, (0, "012", "?")).compares_next


# --- what the digests cover -----------------------------------------------------------------------


def check_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, kept: dict[str, Any] | None = None
) -> ReplicaCheck:
    extra, parts = (
        SimpleNamespace(kept=kept or {}),
        SimpleNamespace(model=model, optimizer=optimizer),
    )
    run: Any = SimpleNamespace(model=SimpleNamespace(trained=parts, extra=extra))
    return ReplicaCheck(run, lambda step: False)


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer, Average]:
    model, _ = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average = Average(model)
    for seed in range(2):
        step(model, optimizer, seed)
        average.update()
    return model, optimizer, average


def flip(tensor: torch.Tensor) -> None:
    tensor.reshape(-1).view(torch.uint8)[0] ^= 1


@pytest.mark.parametrize(
    "name",
    [
        "0.weight",
        "2.bias",
        "optimizer state of 0.weight.exp_avg",
        "optimizer state of 2.bias.step",
        "kept ema: 0.weight",
    ],
)
def test_one_flipped_bit_is_found_and_its_tensor_is_named(name: str) -> None:
    model, optimizer, average = trained()
    ema = copy.deepcopy(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    check = check_of(model, optimizer, {"ema": ema, "average": average, "schedule": schedule})
    mine = check.compare(4, wanted=True)
    assert mine == check.compare(4, wanted=True)
    tensors = check.tensors()
    flip(tensors[name])
    other = check.compare(4, wanted=True)
    assert other != mine
    assert check.explain(4, mine).names == (name,)
    schedule.step()
    average.update()
    assert check.compare(4, wanted=True) == other, "what is no module may be each peer's own"


@pytest.mark.parametrize("loaded", [False, True])
def test_a_state_that_was_loaded_between_two_steps_is_no_change_by_the_script(loaded: bool) -> None:
    model, optimizer, _ = trained()
    check = check_of(model, optimizer)
    check.compare(1, wanted=True)
    check.follow_step(2, is_own=True)
    flip(next(model.parameters()).data)
    if loaded:
        check.note_replaced()
    check.compare(2, wanted=True)
    assert check.outside == (() if loaded else ("0.weight",))


def test_the_digest_at_the_end_covers_kept_modules() -> None:
    model, optimizer, _ = trained()
    kept = copy.deepcopy(model)
    check = check_of(model, optimizer, {"target": kept})
    before = check.digest()
    with torch.no_grad():
        next(kept.parameters()).add_(1.0)
    assert check.digest() != before


def test_buffers_are_each_peers_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
    check = check_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = check.compare(1, wanted=True)
    model(torch.randn(3, 5))
    assert check.compare(1, wanted=True) == before


def test_tensors_beyond_those_with_a_digest_of_their_own_are_compared_together(monkeypatch) -> None:
    monkeypatch.setattr(replicas, "TENSORS_MAX", 2)
    model, _ = small_model()
    check = check_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = check.compare(1, wanted=True)
    flip(model[2].weight.data)
    check.compare(1, wanted=True)
    assert check.explain(1, before).names == ("2.bias", "2.weight")


def test_the_period_is_a_power_of_two_that_keeps_the_cost_small(monkeypatch) -> None:
    model, _ = small_model()
    check = check_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    now = [100.0]
    monkeypatch.setattr(replicas.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(replicas.time, "perf_counter", lambda: now[0])

    def digest(*_: Any) -> bytes:
        now[0] += 0.002 / 4  # of four tensors
        return b"d" * 16

    monkeypatch.setattr(replicas, "_digest_of", digest)
    sent, spent = [], 0.0
    for number in range(2000):
        now[0] += 0.01
        before = now[0]
        if check.compare(number, wanted=False):
            sent.append(number)
        spent += now[0] - before
    assert spent < 0.01 * (now[0] - 100.0)
    later = [each for each in sent if each > 100]
    assert len(later) > 5, "it goes on"
    assert all(each % check.period == 0 for each in later)
    assert check.period & (check.period - 1) == 0


@pytest.mark.parametrize(
    ("one", "other", "largest"), [(1.0, 1.5, 0.5), (1.0, float("nan"), float("inf"))]
)
def test_the_largest_difference_is_that_of_two_numbers(one, other, largest) -> None:
    before = {"a": torch.tensor([0.0, one]), "gone": torch.ones(2)}
    assert largest_difference(before, {"a": torch.tensor([0.0, other])}) == largest


@pytest.mark.parametrize("loop", ["epochs", "steps"])
def test_what_a_script_does_behind_its_training_is_no_difference_of_replicas(loop: str) -> None:
    """As to restore the best weights on one peer."""
    digests = []
    for restores in (False, True):
        model, optimizer = small_model()
        with FakeNodeSwarm(echo, peers=2) as swarm:
            peer = swarm.session
            peer.prepare(model, optimizer)
            for seed in getattr(peer, loop)(2):
                step(model, optimizer, seed)
            if restores:
                model.load_state_dict(small_model()[0].state_dict())
        (goodbye,) = [said for said in swarm.nodes[0].heard if isinstance(said, control.Close)]
        digests.append(goodbye.digest)
    assert digests[0] == digests[1] != b""


# --- in a session ---------------------------------------------------------------------------------


def reports(swarm: FakeNodeSwarm) -> list[control.DivergenceReport]:
    return [said for said in swarm.nodes[0].heard if isinstance(said, control.DivergenceReport)]


@pytest.mark.parametrize("changes", [True, False])
def test_weights_that_change_between_steps_are_named_before_anything_differs(changes: bool) -> None:
    with prepared_swarm(echo, peers=2) as (swarm, model, optimizer):
        clamp = lambda: [p.data.clamp_(-0.1, 0.1) for p in model[0].parameters()]  # noqa: E731
        if not changes:
            swarm.session.each_step(clamp)
        for seed in range(4):
            step(model, optimizer, seed)
            if changes:
                clamp()
    found = reports(swarm)
    assert [(each.peers_differ, each.tensors) for each in found] == (
        [(False, ("0.bias", "0.weight"))] if changes else []
    )


def diverging(n: FakeNode, state: bytes, missed: bool) -> None:
    """Most replicas have another digest before round 2, and a state of theirs follows."""
    n.prepared()
    for round_id in range(2):
        n.go(round_id)
        while not isinstance(n.next(), control.Contribute):
            pass
        n.apply(round_id, round_id, ONES)
    at = 2
    if missed:
        n.apply(2, 2, ONES)
        at = 3
    n.send(control.StartRoundCommand(at, 0, False, 0, (), False, 2, 2, compares=True))
    while not isinstance(said := n.next(), control.Contribute):
        pass
    assert said.replica
    other = bytearray(said.replica)
    other[0] ^= 1
    other[16] ^= 1  # of the first tensor, 0.bias
    n.put(3, ONES)
    n.send(control.ApplyCommand(at, 3, 0.0, replica=bytes(other)))
    n.restore(at + 1, state)
    n.go(at + 1)
    halt_after(n)


def test_kept_modules_of_a_state_that_has_just_come_are_compared() -> None:
    model, optimizer = small_model()
    best, theirs, sent = small_model(5)[0], small_model(3)[0], []

    def node(n: FakeNode) -> None:
        n.first_update()
        n.apply(0, 0, ONES)
        n.send(control.StartRoundCommand(1, 1, False, 0, (), False, 2, 2, compares=True))
        while not isinstance(said := n.next(), control.Contribute):
            pass
        sent.append(said.replica)
        n.send(control.ApplyCommand(1, -1, 0.0))
        n.go(2)
        halt_after(n)

    with FakeNodeSwarm(node, peers=2) as swarm:
        swarm.session.prepare(model, optimizer)
        swarm.session.keep(best=best)
        run, wait_go = swarm.session._run, swarm.session._run.exchange.wait_go

        def wait_and_load() -> control.StartRoundCommand:
            run.model.extra.load({"best": theirs.state_dict()})
            return wait_go()

        step(model, optimizer, 0)
        run.exchange.wait_go = wait_and_load
        step(model, optimizer, 1)
        assert same_bits(best, theirs)
        assert sent == [run.applied.replicas._digest()[1]]


def test_the_difference_of_kept_modules_is_unknown() -> None:
    with prepared_swarm(echo, peers=2) as (swarm, model, optimizer):
        swarm.session.keep(best=small_model(5)[0])
        step(model, optimizer, 0)
        check = swarm.session._run.applied.replicas
        check._sent = check._digest()
        agreed = bytearray(check._sent[1])
        agreed[16 + 2 * check._sent[0].index("kept best: 0.bias")] ^= 1
        check.note_difference(1, bytes(agreed))
        check.note_replaced()
        step(model, optimizer, 1)
    (found,) = reports(swarm)
    assert (found.tensors, found.largest) == (("kept best: 0.bias",), -1.0)


def halt_after(n: FakeNode) -> None:
    while not isinstance(said := n.next(), control.Close):
        assert isinstance(said, control.AppliedReply | events.Restored | control.DivergenceReport)
    n.send(events.Halt(said.reason, 0))


@pytest.mark.parametrize("missed", [True, False])
def test_a_replica_that_differs_is_replaced_and_the_cause_reported(missed: bool) -> None:
    model, optimizer = small_model()
    other, other_optimizer = small_model()
    step(other, other_optimizer, 0)
    state = pack_state(other, other_optimizer, {})
    with FakeNodeSwarm(lambda n: diverging(n, state, missed), peers=2) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(3):
            step(model, optimizer, seed)
            if missed and seed < 2:
                with torch.no_grad():
                    model[0].bias.mul_(0.5)
        assert torch.equal(model[0].bias, other[0].bias)
    found = [each for each in reports(swarm) if each.peers_differ]
    assert [(each.tensors, each.count, each.replaced) for each in found] == [(("0.bias",), 1, True)]
    assert found[0].largest > 0
    assert ("missed" in found[0].cause) == missed
