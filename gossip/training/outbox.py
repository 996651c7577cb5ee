"""Messages of the trainer to its node that are not sent yet: some may wait for the next packet,
some may not."""

from __future__ import annotations

import logging
import os
import time

from gossip.ipc import Channel, ChannelClosed, messages as control

logger = logging.getLogger(__name__)

LOG_LINES_MAX = 16
LOG_WAIT_S = 0.1


class PacketQueue:
    """Messages, and descriptors that go with them, for one packet. Owns the descriptors."""

    def __init__(self) -> None:
        self._messages: list[control.FromTrainer] = []
        self._fds: list[int] = []
        self._last_send = 0.0

    def put(self, message: control.FromTrainer, fd: int | None = None) -> None:
        self._messages.append(message)
        if fd is not None:
            self._fds.append(fd)

    @property
    def log_is_due(self) -> bool:
        """Whether log lines have waited long enough, or are many."""
        return (
            len(self._messages) >= LOG_LINES_MAX or time.monotonic() - self._last_send > LOG_WAIT_S
        )

    def may_wait(self, receipts_max: int) -> bool:
        """Whether there is nothing in it but log lines and at most ``receipts_max``
        receipts of rounds."""
        for message in self._messages:
            if isinstance(message, control.AppliedReply):
                receipts_max -= 1
                if receipts_max < 0:
                    return False
            elif not isinstance(message, control.Log):
                return False
        return True

    def flush(self, channel: Channel) -> None:
        """Sends everything, as one packet. A node that is gone is no error: who reads next notices,
        after its last words."""
        if not self._messages:
            return
        said, fds = self._messages, tuple(self._fds)
        self._messages, self._fds = [], []
        self._last_send = time.monotonic()
        try:
            channel.send(*said, fds=fds)
        except ChannelClosed:
            logger.debug("could not send %d messages: the node is gone", len(said))
        finally:
            for fd in fds:
                os.close(fd)

    def drop(self) -> None:
        """Keeps nothing but the log lines: the rest was for a node that is gone."""
        self._messages = [message for message in self._messages if isinstance(message, control.Log)]
        for fd in self._fds:
            os.close(fd)
        self._fds = []
