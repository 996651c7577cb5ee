from __future__ import annotations

import os
import signal
import threading
from typing import get_args

import pytest

from gossip.core import events
from gossip.errors import LocalError
from gossip.ipc import channel as channel_module, messages as control
from gossip.ipc.channel import METRICS_MAX, Channel, ChannelClosed, clip


@pytest.fixture
def ends():
    one, other = map(Channel, Channel.pair())
    yield one, other
    one.close()
    other.close()


EXAMPLES = [
    control.Prepare(17226, b"l" * 16, b"s" * 16, 70000, 12),
    events.DataConfigured(1000, 32),
    control.Contribute(3, 1, 32, 0.5, False),
    control.Contribute(3, 1, 32, None, False),
    control.Contribute(3, 1, 32, 0.5, False, micro_batches=(0, 2)),
    control.PassReply(3, 2, 5, True, 64, 4, 0.5),
    control.PassReply(3, 2, 5, False, 0),
    control.AppliedReply(3, -1),
    control.JudgeReply(9, (0.5, 0.5), (1.0, 3.25), ""),
    control.Snapshot(4, 100, ""),
    events.Restored(5, "no"),
    events.StateRebuilt(5, "neighbours", 5, b"s" * 16, 1, ((0, 5), (2, 5))),
    control.Log("{}"),
    control.ScriptPlan(400, "/ckpt", 100),
    control.ScriptPlan(None),
    control.DivergenceReport(7, True, True, ("0.weight",), 3, 0.25, "a cause", "a remedy"),
    events.ConfirmState(400),
    events.LedgerRequest(),
    control.Close("finished"),
    control.StartRoundCommand(6, 2, True, 1, ((0, 32), (64, 70)), False, 8, 7),
    control.PassCommand(6, 2, 5, True, 64),
    events.DropForward(6, 2),
    events.ResetSum(6),
    control.CollectCommand(6, 1, (0, 2)),
    control.ApplyCommand(6, -1, 0.0),
    control.JudgeCommand(9, 3, 8, 10, 2, -1, False),
    events.TakeSnapshot(),
    control.RestoreCommand(7, 100),
    control.BesideCommand(2, 100),
    control.RebuildCommand(5, True),
    events.StateConfirmed(400, True),
    events.LedgerReply(400, b"ledger"),
    events.Halt("too few peers", 5),
]


def test_every_message_arrives_as_it_was(ends):
    trainer, node = ends
    assert {type(message) for message in EXAMPLES} == {
        *get_args(control.FromTrainer),
        *get_args(control.FromNode),
    }
    for message in EXAMPLES:
        trainer.send(message)
        assert node.receive(5) == ([message], [])


def test_several_messages_share_a_packet_in_order(ends):
    trainer, node = ends
    trainer.send(*EXAMPLES)
    trainer.send(control.Close("x"))
    assert node.receive(5)[0] == EXAMPLES
    assert node.receive(5)[0] == [control.Close("x")]


def test_a_descriptor_travels_beside_its_message(ends):
    trainer, node = ends
    fd = os.memfd_create("test")
    os.write(fd, b"hello")
    trainer.send(control.RestoreCommand(1, 5), fds=(fd,))
    os.close(fd)
    messages, fds = node.receive(5)
    assert messages == [control.RestoreCommand(1, 5)]
    assert os.pread(fds[0], 5, 0) == b"hello"
    assert not os.get_inheritable(fds[0])
    os.close(fds[0])


def test_receiving_nothing_gives_nothing_at_once(ends):
    _, node = ends
    assert node.receive(0) == ([], [])
    assert node.receive(0.001) == ([], [])


def test_what_was_sent_is_read_before_the_end_of_file(ends):
    trainer, node = ends
    trainer.send(control.Close("finished"))
    trainer.close()
    assert node.receive(5)[0] == [control.Close("finished")]
    with pytest.raises(ChannelClosed):
        node.receive(5)


@pytest.mark.parametrize("timeout_s", [0, 5, None])
def test_what_was_sent_is_read_though_the_other_side_closed_without_reading(ends, timeout_s):
    """A node that ends with an error may leave a log line of its trainer unread."""
    trainer, node = ends
    trainer.send(control.Log("{}"))
    node.send(events.Halt("diverged", 9))
    node.close()
    assert trainer.receive(timeout_s) == ([events.Halt("diverged", 9)], [])
    with pytest.raises(ChannelClosed):
        trainer.receive(timeout_s)


def test_sending_to_nobody_is_an_error_and_not_a_signal(ends):
    trainer, node = ends
    node.close()
    signals = []
    before = signal.signal(signal.SIGPIPE, lambda *_: signals.append(1))
    try:
        with pytest.raises(ChannelClosed):
            trainer.send(control.Close("finished"))
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert not signals


def test_a_waiting_receiver_wakes_when_the_other_side_dies(ends):
    trainer, node = ends
    seen = []

    def wait():
        try:
            node.receive(None)
        except ChannelClosed as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    trainer.close()
    thread.join(10)
    assert len(seen) == 1


def test_each_wait_is_as_long_as_it_is_told(ends):
    trainer, node = ends
    assert node.receive(0.001) == ([], [])
    assert node.receive(1e-9) == ([], [])  # and not for ever, which a kernel would take 0 for
    trainer.send(events.TakeSnapshot())
    assert node.receive(None) == ([events.TakeSnapshot()], [])
    assert node.receive(0) == ([], [])
    assert node.receive(0.001) == ([], [])
    trainer.send(events.TakeSnapshot())
    assert node.receive(30.0) == ([events.TakeSnapshot()], [])


def test_a_reader_that_does_not_read_cannot_hold_the_sender_for_ever(ends, monkeypatch):
    trainer, _ = ends
    monkeypatch.setattr(channel_module, "SEND_PATIENCE_S", 0.01)

    def broadcast():
        for _ in range(100_000):
            trainer.send(control.Log("x" * METRICS_MAX))

    with pytest.raises(LocalError, match="not read"):
        broadcast()


def test_the_longest_log_line_and_reason_fit(ends):
    trainer, node = ends
    line = control.Log("ü" * METRICS_MAX)
    trainer.send(line)
    assert node.receive(5)[0] == [line]
    assert len(clip("x" * 1000)) == channel_module.TEXT_MAX
    trainer.send(events.Restored(1, clip("ü" * 1000)))
    assert node.receive(5)[0][0].error.startswith("üüü")


def test_another_language_is_refused_and_told(ends):
    trainer, node = ends
    trainer._socket.send(b"\x93\x01\x02\x03")
    with pytest.raises(LocalError, match="another version of gossip"):
        node.receive(5)
