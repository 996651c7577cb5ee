"""The trainer's channel to its node. It sends and receives packets, and restarts a node that has
died."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from typing import Any

from gossip.errors import NodeLost
from gossip.ipc import Channel, ChannelClosed, messages as control

from .node_start import NodeHandle, PeerPlace, StartNode, connect

logger = logging.getLogger(__name__)

LOG_LINES_MAX = 16
LOG_WAIT_S = 0.1
RESTARTS_MAX = 3
RESTARTS_WITHIN_S = 60.0


class NodeLink:
    """Channel to the node, the node's process, and the messages that are not sent yet.

    Attributes:
        put_off: Received packets that are not processed yet, with their file descriptors.
        restarts: Number of restarts of the node.
    """

    def __init__(
        self, start: StartNode, connection: tuple[Channel, NodeHandle], place: PeerPlace
    ) -> None:
        """
        Args:
            start: Function that starts another node, with the next incarnation, if the node of
                ``connection`` dies.
        """
        self._start, (self._channel, self._node) = start, connection
        self._peer, self._incarnation = place.peer, place.incarnation
        self.put_off: deque[tuple[list[Any], list[int]]] = deque()
        self.restarts = 0
        self._deaths: list[float] = []
        self._messages: list[control.FromTrainer] = []
        self._fds: list[int] = []
        self._last_send = 0.0

    def queue(self, message: control.FromTrainer, fd: int | None = None) -> None:
        """Put ``message`` and the file descriptor ``fd`` into the next packet. The link owns ``fd``
        from now on."""
        self._messages.append(message)
        if fd is not None:
            self._fds.append(fd)

    def send(self, message: control.FromTrainer) -> None:
        """Send ``message`` together with all queued messages."""
        self.queue(message)
        self.flush()

    @property
    def log_is_due(self) -> bool:
        """Whether queued log lines should be sent now, because they are many or the last packet was
        sent long ago."""
        return (
            len(self._messages) >= LOG_LINES_MAX or time.monotonic() - self._last_send > LOG_WAIT_S
        )

    def may_wait(self, receipts_max: int) -> bool:
        """Whether only log lines and at most ``receipts_max`` receipts of rounds are queued."""
        for message in self._messages:
            if isinstance(message, control.AppliedReply):
                receipts_max -= 1
                if receipts_max < 0:
                    return False
            elif not isinstance(message, control.Log):
                return False
        return True

    def flush(self) -> None:
        """Send all queued messages as one packet. If the node is dead, this raises no error: the
        next ``receive`` detects it, after the node's last packets."""
        if not self._messages:
            return
        messages, fds = self._messages, tuple(self._fds)
        self._messages, self._fds = [], []
        self._last_send = time.monotonic()
        try:
            self._channel.send(*messages, fds=fds)
        except ChannelClosed:
            logger.debug("could not send %d messages: the node is gone", len(messages))
        finally:
            for fd in fds:
                os.close(fd)

    def send_close(self, reason: str) -> None:
        """Send a ``Close`` message at once. Any thread may call this."""
        self._channel.send(control.Close(reason))

    def receive(self, timeout_s: float) -> tuple[list[Any], list[int]]:
        """Return the next packet and its file descriptors. Deferred packets come first.

        Raises: ChannelClosed.
        """
        return self.put_off.popleft() if self.put_off else self._channel.receive(timeout_s)

    def poll(self) -> tuple[list[Any], list[int]]:
        """Return a new packet if there is one. If the node is dead, only the next ``receive``
        raises an error."""
        try:
            return self._channel.receive(0)
        except ChannelClosed:
            return [], []

    def revive(self, round_id: int) -> None:
        """Start another node after the last one has died.

        Raises: NodeLost: The node has died too often.
        """
        self._channel.close()
        # The channel ends shortly before the process.
        ended = self._node.ended(0.5)
        words = self._node.last_words()
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < RESTARTS_WITHIN_S]
        if len(self._deaths) >= RESTARTS_MAX:
            raise NodeLost(self._peer, len(self._deaths), words)
        self._deaths.append(now)
        self.restarts += 1
        logger.warning(
            "peer=%d the node died (%s), starting another, round=%d", self._peer, words, round_id
        )
        if not ended:
            self._node.kill()
        self._incarnation += 1
        self._drop_queued()
        self._drop_put_off()
        self._channel, self._node = connect(self._start, self._incarnation)

    def close(self, end_within_s: float) -> None:
        """Close the channel, and kill the node if it does not end in time."""
        self._channel.close()
        self._drop_put_off()
        if not self._node.ended(end_within_s):
            logger.warning("peer=%d the node did not end in time, killing it", self._peer)
            self._node.kill()
        self._drop_queued()

    def node_ended(self, within_s: float) -> bool:
        return self._node.ended(within_s)

    def drop_after_fork(self) -> None:
        """Close the channel in a forked child of the trainer. Otherwise the node would detect the
        end of the trainer only after all children of the trainer have ended."""
        self._channel.close()

    def _drop_queued(self) -> None:
        """Drop all queued messages except log lines, because they were meant for a node that has
        ended."""
        self._messages = [message for message in self._messages if isinstance(message, control.Log)]
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _drop_put_off(self) -> None:
        for _, fds in self.put_off:
            for fd in fds:
                os.close(fd)
        self.put_off.clear()
