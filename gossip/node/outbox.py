"""Queue of messages from the node to its trainer."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gossip.core import Payload, events
from gossip.errors import LocalError
from gossip.ipc import Channel, allocate, map_bytes, messages as control
from gossip.vectors import bytes_for

from .worker import Worker

PACKET_MESSAGES = 16
LONG_BYTES = 1024
"""Length in bytes above which a message is the last of its packet, because the size of a packet is
limited."""
BACKLOG_ROUNDS = 4096
BACKLOG_BYTES = 2**29


@dataclass(slots=True)
class QueuedMessage:
    """A message to the trainer. Later messages wait until this message is ``ready``, because the
    trainer depends on the order."""

    what: events.Apply | events.StartRound | events.CollectUpdate | control.FromNode
    fd: int | None = None
    """Descriptor that is sent with the message and closed afterwards."""
    ready: bool = True
    # Command for an ``Apply`` that has a slot. The result is in the slot, or is being copied there.
    placed: control.ApplyCommand | None = None


class TrainerOutbox:
    """Queue of messages to the trainer, in order. It includes committed rounds that wait for a
    slot.

    Args:
        place: Returns the message to send, with its slot; None while no slot is available for it.
    """

    def __init__(
        self,
        channel: Channel,
        worker: Worker,
        place: Callable[[QueuedMessage], control.FromNode | None],
    ) -> None:
        self._channel, self._worker, self._place = channel, worker, place
        self._queue: deque[QueuedMessage] = deque()
        self._backlog_rounds = self._backlog_bytes = 0

    def add(self, what: events.StartRound | events.CollectUpdate | control.FromNode) -> None:
        self._queue.append(QueuedMessage(what))

    def add_round(self, effect: events.Apply) -> None:
        """Queue a committed round. Raises: LocalError: The trainer is so far behind that the memory
        for committed rounds is full."""
        nbytes = apply_bytes(effect)
        if self._backlog_rounds >= BACKLOG_ROUNDS or (
            self._backlog_rounds > 1 and self._backlog_bytes + nbytes > BACKLOG_BYTES
        ):
            raise LocalError(
                f"the trainer has not read {self._backlog_rounds} committed rounds "
                f"({self._backlog_bytes >> 20} MiB): the node stores no more of them, so the "
                "trainer must fetch the state when it runs again"
            )
        self._backlog_rounds += 1
        self._backlog_bytes += nbytes
        self._queue.append(QueuedMessage(effect))

    def end_backlog(self, effect: events.Apply) -> None:
        """Record that a round has its slot. It then no longer counts towards the limits of the
        backlog."""
        self._backlog_rounds -= 1
        self._backlog_bytes -= apply_bytes(effect)

    def add_payload(self, message: control.FromNode, payload: Payload) -> None:
        """Copy a payload to new shared memory, and queue a message with the descriptor of this
        memory."""
        data = payload.data
        state = data if isinstance(data, tuple) else (data,)
        outgoing = QueuedMessage(message, ready=False)
        self._queue.append(outgoing)

        def copied(fd: int) -> None:
            outgoing.fd, outgoing.ready = fd, True

        self._worker.run(lambda: _filled(state), copied, payload.nbytes)

    def flush(self) -> bool:
        """Send the messages before the first one that is not ready. A packet may have several
        messages. Return whether any message was sent. Raises: ChannelClosed."""
        any_sent = False
        while packet := self._next_packet():
            any_sent = True
            fds = tuple([outgoing.fd for outgoing, _ in packet if outgoing.fd is not None])
            self._channel.send(*[message for _, message in packet], fds=fds)
            for fd in fds:
                os.close(fd)
        return any_sent

    def _next_packet(self) -> list[tuple[QueuedMessage, control.FromNode]]:
        packet: list[tuple[QueuedMessage, control.FromNode]] = []
        while self._queue and len(packet) < PACKET_MESSAGES:
            outgoing = self._queue[0]
            message = self._place(outgoing)
            if message is None:
                if isinstance(outgoing.what, events.StartRound) and self._yield_turn(outgoing):
                    continue
                break
            self._queue.popleft()
            packet.append((outgoing, message))
            if outgoing.fd is not None or _is_long(message):
                break  # one descriptor at most, so the receiver knows its message
        return packet

    def _yield_turn(self, outgoing: QueuedMessage) -> bool:
        """Move the start of a round, for which no slot is free, behind the other messages.
        Otherwise the message would block the others if a trainer that has left its loop uses all
        slots. If a later message supersedes the round, drop its start. Return whether other
        messages are queued."""
        if len(self._queue) == 1:
            return False
        self._queue.popleft()
        supersedes = (
            events.Apply | events.StartRound | control.RestoreCommand | control.RebuildCommand
        )
        if not any(isinstance(each.what, supersedes) for each in self._queue):
            self._queue.append(outgoing)
        return True

    def clear(self) -> None:
        """Drop all messages."""
        for outgoing in self._queue:
            if outgoing.fd is not None:
                os.close(outgoing.fd)
        self._queue.clear()


def apply_bytes(effect: events.Apply) -> int:
    """Return the size of the vectors of an ``Apply`` in memory, in bytes."""
    mix = () if effect.mix is None else (effect.mix,)
    return sum([bytes_for(len(payload.data)) for payload in (*effect.payloads, *mix)])


def _is_long(message: control.FromNode) -> bool:
    if isinstance(message, events.LedgerReply):
        return True
    collected = message.collected if isinstance(message, control.ApplyCommand) else ()
    return sum([len(data) for _, data in collected]) > LONG_BYTES


def _filled(state: Sequence[np.ndarray]) -> int:
    """Return a descriptor of new shared memory. It has copies of all arrays, one after another."""
    fd = allocate(nbytes := sum([piece.nbytes for piece in state]))
    room, at = np.frombuffer(map_bytes(fd, nbytes), np.uint8), 0
    for piece in state:
        np.copyto(room[at : at + piece.nbytes], piece.view(np.uint8))
        at += piece.nbytes
    return fd
