"""Changes of the roster, as the script is shown them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from trainer_fakes import FakeNode, FakeNodeSwarm, backward, prepared_swarm, small_model, step

import gossip
from gossip import MembershipChange
from gossip.core import events
from gossip.ipc import messages as control

ALL = (0, 1, 2, 3)
ZEROS = np.zeros(66, np.float32)
Rounds = Sequence[tuple[int, ...]]


def go(n: FakeNode, round_id: int, rounds: Rounds, left: tuple[int, ...], ranges: Any = ()) -> None:
    about = round_id, round_id % 4, bool(ranges), 0, tuple(ranges), False
    n.send(control.StartRoundCommand(*about, 4, 4, roster=rounds[round_id], left=left))


def node(
    rounds: Rounds, left: tuple[int, ...] = (), *, sharded: bool = False
) -> Callable[[FakeNode], None]:
    """A node of peer 0 with these rosters, one a round."""

    def play(n: FakeNode) -> None:
        n.prepared()
        slices = [[(5 * r, 5 * r + 5)] if sharded else [] for r in range(len(rounds))]
        if sharded:
            go(n, 0, rounds, left)  # before it knows of the data
            n.expect(events.DataConfigured)
        go(n, 0, rounds, left, slices[0])
        for round_id in range(len(rounds)):
            n.expect(control.Contribute)
            n.applied(round_id, round_id % 4, ZEROS)
            if round_id + 1 < len(rounds):
                go(n, round_id + 1, rounds, left, slices[round_id + 1])
            else:
                about = round_id + 1, 0, sharded, 1, (), False, 4, 4
                n.send(control.StartRoundCommand(*about, roster=rounds[round_id]))
        n.halt()

    return play


class Diary:
    """What the script has lived through, in order."""

    def __init__(self, session: gossip.Session) -> None:
        self.session, self.lines = session, list[Any]()
        assert session.on_membership_change(self.note) == self.note

    def note(self, change: MembershipChange) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert change.round_id == self.session.round
        assert self.session.roster_peers == len(self.session.roster)
        self.lines.append(change)


def test_changes_come_in_order_before_the_step_and_the_first_roster_is_none() -> None:
    rounds = [ALL, ALL, (0, 1), (0, 1), (0, 1, 2, 4)]
    model, optimizer = small_model()
    with FakeNodeSwarm(node(rounds, left=(3,))) as swarm:
        diary = Diary(swarm.session)
        assert swarm.session.roster == (0,), "it is alone until it is prepared"
        swarm.session.prepare(model, optimizer)
        assert swarm.session.roster == ALL
        for at in swarm.session.steps(5):
            diary.lines.append(f"step {at}")
            step(model, optimizer, at)
            diary.lines.append(f"end {at}")
    assert diary.lines == [
        *("step 0", "end 0", "step 1", "end 1"),
        MembershipChange(2, died=(2,), left=(3,)),
        *("step 2", "end 2", "step 3", "end 3"),
        MembershipChange(4, joined=(2, 4)),
        *("step 4", "end 4"),
    ]


def test_a_loop_without_ours_is_shown_changes_at_the_end_of_a_step() -> None:
    with prepared_swarm(node([ALL, (0, 1, 2), ALL])) as (swarm, model, optimizer):
        diary = Diary(swarm.session)
        for at in range(3):
            backward(model, at)
            diary.lines.append("computed")
            optimizer.step()
    died, returned = MembershipChange(1, died=(3,)), MembershipChange(2, joined=(3,))
    assert diary.lines == ["computed", died, "computed", returned, "computed"]


def test_the_loader_shows_changes_with_the_next_batch_and_not_within_a_step() -> None:
    data = TensorDataset(torch.randn(15, 5), torch.zeros(15))
    with prepared_swarm(node([ALL, (0, 1, 2), (0, 2)], sharded=True)) as (swarm, model, optimizer):
        diary = Diary(swarm.session)
        for x, _ in swarm.session.shard(data, batch_size=5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            diary.lines.append("end")
    died = [MembershipChange(1, died=(3,)), MembershipChange(2, died=(1,))]
    assert diary.lines == ["end", died[0], "end", died[1], "end"]


def test_an_exception_ends_the_step_and_its_change_does_not_come_again() -> None:
    with prepared_swarm(node([ALL, (0, 1, 2), (0, 1)])) as (swarm, model, optimizer):
        diary = Diary(swarm.session)

        def fail(change: MembershipChange) -> None:
            if change.died == (3,):
                raise ValueError("too few")

        swarm.session.on_membership_change(fail)
        with pytest.raises(ValueError, match="too few"):
            step(model, optimizer, 0)
        step(model, optimizer, 1)
        step(model, optimizer, 2)
    assert diary.lines == [MembershipChange(1, died=(3,)), MembershipChange(2, died=(2,))]


def test_rounds_that_were_missed_are_one_change_and_a_new_node_is_none() -> None:
    rounds = [ALL, (0, 1, 3), (0, 1, 2, 3), (0, 1, 2)]

    def late(n: FakeNode) -> None:
        n.prepared()
        go(n, 0, rounds, ())
        n.expect(control.Contribute)
        for round_id in range(3):
            n.applied(round_id, round_id % 4, ZEROS)
        go(n, 3, rounds, ())
        n.expect(control.Contribute)

    def following(n: FakeNode) -> None:
        n.prepared()
        go(n, 3, rounds, ())
        n.expect(control.Contribute)
        n.applied(3, 3, ZEROS)
        go(n, 4, [*rounds, rounds[3]], ())
        n.halt()

    with prepared_swarm(late, following) as (swarm, model, optimizer):
        diary = Diary(swarm.session)
        step(model, optimizer, 0)
        step(model, optimizer, 1)
    assert diary.lines == [MembershipChange(3, died=(3,))]


def test_a_peer_that_returns_in_the_middle_of_a_run_is_shown_no_change_first() -> None:
    """The rounds that it has missed are applied with its first wait."""
    rounds = [(), (), (0, 2), (0, 1, 2), (0, 1, 2)]

    def returning(n: FakeNode) -> None:
        n.prepared()
        for round_id in range(2):
            n.apply(round_id, round_id, ZEROS)
        go(n, 2, rounds, ())
        for _ in range(2):
            n.expect(control.AppliedReply)
        for round_id in (2, 3):
            n.expect(control.Contribute)
            n.applied(round_id, round_id, ZEROS)
            go(n, round_id + 1, rounds, ())
        n.halt()

    model, optimizer = small_model()
    with FakeNodeSwarm(returning) as swarm:
        diary = Diary(swarm.session)
        swarm.session.prepare(model, optimizer)
        for at in swarm.session.steps(4):
            step(model, optimizer, at)
    assert diary.lines == [MembershipChange(3, joined=(1,))]
