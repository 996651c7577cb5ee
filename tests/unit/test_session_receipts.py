"""When the receipt of a round travels: with the next update if that comes soon,
at once in every other case."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trainer_fakes import FakeNode, prepared_swarm, step

from gossip.config import RunConfig
from gossip.core import events
from gossip.ipc import messages as control
from gossip.ipc.channel import Channel
from gossip.training import exchange as exchange_module, node_link
from gossip.training.node_link import NodeLink
from gossip.training.node_start import PeerPlace

ELEMENTS = 66
SOON, LATE = 1e9, 0.0
PLACE = PeerPlace(RunConfig())


def packet(n: FakeNode) -> list:
    """What the trainer sends in one packet."""
    messages, fds = n.channel.receive(20)
    assert not fds
    return [type(message) for message in messages]


def apply_and_go(n: FakeNode, *rounds: int) -> None:
    for round_id in rounds:
        n.put(round_id % 4, np.zeros(ELEMENTS, np.float32))
    n.send(
        *[control.ApplyCommand(round_id, round_id % 4, 0.0) for round_id in rounds],
        control.StartRoundCommand(rounds[-1] + 1, (rounds[-1] + 1) % 4, False, 0, (), False, 1, 1),
    )


class DeadNode:
    def ended(self, within_s: float) -> bool:
        return True

    def last_words(self) -> str:
        return "killed by SIGKILL"


def link_over(channel: Channel) -> NodeLink:
    return NodeLink(lambda incarnation, theirs: DeadNode(), (channel, DeadNode()), PLACE)


def train(script, steps: int) -> None:
    with prepared_swarm(script) as (_, model, optimizer):
        for seed in range(steps):
            step(model, optimizer, seed)


def test_a_receipt_travels_with_the_next_update_when_that_may_be_computed(monkeypatch):
    monkeypatch.setattr(exchange_module, "BRIEF_S", SOON)

    def node(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        assert packet(n) == [control.Contribute]
        apply_and_go(n, 0)
        assert packet(n) == [control.AppliedReply, control.Contribute]
        apply_and_go(n, 1)
        assert packet(n) == [control.AppliedReply, control.Close]
        n.send(events.Halt("finished", 0))

    train(node, 2)


def test_a_receipt_is_sent_at_once_when_steps_are_long(monkeypatch):
    monkeypatch.setattr(exchange_module, "BRIEF_S", LATE)

    def node(n: FakeNode) -> None:
        n.prepared()
        n.go(0)
        assert packet(n) == [control.Contribute]
        apply_and_go(n, 0)
        assert packet(n) == [control.AppliedReply]
        n.halt()

    train(node, 1)


def test_a_receipt_is_sent_at_once_when_the_next_round_is_not_ours_yet(monkeypatch):
    monkeypatch.setattr(exchange_module, "BRIEF_S", SOON)

    def node(n: FakeNode) -> None:
        n.first_update()
        n.apply(0, 0, np.zeros(ELEMENTS, np.float32))
        assert packet(n) == [control.AppliedReply]
        n.end(1)

    train(node, 1)


def test_several_receipts_are_sent_at_once(monkeypatch):
    """They hold result slots, which the node may be waiting for."""
    monkeypatch.setattr(exchange_module, "BRIEF_S", SOON)

    def node(n: FakeNode) -> None:
        n.first_update()
        apply_and_go(n, 0, 1)
        assert packet(n) == [control.AppliedReply, control.AppliedReply]
        n.halt()

    train(node, 1)


def test_a_go_without_samples_does_not_keep_a_receipt_back(monkeypatch):
    """The trainer is going to wait for the one with samples."""
    monkeypatch.setattr(exchange_module, "BRIEF_S", SOON)
    data = TensorDataset(torch.randn(8, 5))

    def node(n: FakeNode) -> None:
        n.sharded()
        n.offered(0, ranges=((0, 4),))
        apply_and_go(n, 0)
        assert packet(n) == [control.AppliedReply]
        n.end(1, ranges=(), epoch=1)

    with prepared_swarm(node) as (swarm, model, optimizer):
        for (x,) in swarm.session.shard(DataLoader(data, batch_size=4, shuffle=True)):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("messages", "receipts_max", "may_wait"),
    [
        ([], 0, True),
        ([control.Log("{}")], 0, True),
        ([control.AppliedReply(0, 0)], 0, False),
        ([control.AppliedReply(0, 0), control.Log("{}")], 1, True),
        ([control.AppliedReply(0, 0), control.AppliedReply(1, 1)], 1, False),
        ([events.Restored(0, "")], 1, False),
        ([control.JudgeReply(0, (), (), "")], 1, False),
    ],
)
def test_nothing_waits_but_log_lines_and_receipts(messages, receipts_max, may_wait):
    one, other = map(Channel, Channel.pair())
    link = link_over(one)
    for message in messages:
        link.queue(message)
    assert link.may_wait(receipts_max) is may_wait
    one.close()
    other.close()


def test_a_link_sends_one_packet_and_closes_its_descriptors():
    one, other = map(Channel, Channel.pair())
    link, fd = link_over(one), os.memfd_create("test")
    link.queue(control.Log("{}"))
    link.queue(control.Snapshot(0, 1, ""), fd)
    link.flush()
    link.flush()
    messages, fds = other.receive(20)
    assert messages == [control.Log("{}"), control.Snapshot(0, 1, "")]
    assert len(fds) == 1
    os.close(fds[0])
    assert other.receive(0) == ([], [])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    one.close()
    other.close()


def test_what_was_for_a_node_that_is_gone_is_dropped_but_for_the_log(monkeypatch):
    one, other = map(Channel, Channel.pair())
    after, node = map(Channel, Channel.pair())
    monkeypatch.setattr(node_link, "connect", lambda start, incarnation: (after, DeadNode()))
    link, fd = link_over(one), os.memfd_create("test")
    link.queue(control.Log("{}"))
    link.queue(control.Snapshot(0, 1, ""), fd)
    link.revive(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    link.flush()
    assert node.receive(20) == ([control.Log("{}")], [])
    assert link.restarts == 1
    for channel in (other, after, node):
        channel.close()
