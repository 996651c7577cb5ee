"""Local socket between a trainer and its node, for messages and file descriptors. The death of one
side is an end of file at the other side."""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time
from collections.abc import Iterable
from typing import Any, get_args

from gossip.core import COLLECTED_BYTES_MAX, CORE_BYTES_MAX, events
from gossip.errors import LocalError, Malformed
from gossip.transport import HEADER_BYTES_MAX, Codec, Limits

from . import messages as control

PACKET_BYTES_MAX = HEADER_BYTES_MAX
TEXT_MAX = 256
METRICS_MAX = 16 * 1024
PATH_MAX = 4096
REASON_MAX = 2048
SHAPES_BYTES_MAX = 24 * 1024
"""Maximum size of packed shapes, in bytes. It suffices for 3,072 tensors with 8 bytes each."""
DESCRIPTORS_MAX = 8
SEND_PATIENCE_S = 5.0
_ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
# The flags are converted to int, because ``|`` and ``&`` take 2 us each on enums.
_SEND = int(socket.MSG_DONTWAIT)
_WAIT = int(socket.MSG_CMSG_CLOEXEC)
_LOOK = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_TIMEVAL = struct.Struct("@ll")
_TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_CODEC: Codec[control.FromTrainer | control.FromNode] = Codec(
    (*get_args(control.FromTrainer), *get_args(control.FromNode)),
    Limits(
        int_min=-1,
        str_max=TEXT_MAX,
        larger={
            (control.Log, "metrics"): METRICS_MAX,
            (control.ScriptPlan, "folder"): PATH_MAX,
            (events.Halt, "reason"): REASON_MAX,
            (control.Contribute, "collective"): COLLECTED_BYTES_MAX,
            (events.LedgerReply, "ledger"): CORE_BYTES_MAX,
            (control.Prepare, "ledger"): CORE_BYTES_MAX,
            (control.Prepare, "shapes"): SHAPES_BYTES_MAX,
        },
    ),
    trusting=True,
)


def clip(text: str, most: int = TEXT_MAX) -> str:
    """Return the text, shortened to ``most`` characters, the limit of a message field."""
    return text if len(text) <= most else text[: most - 3] + "..."


class ChannelClosed(LocalError):
    """The other side has closed its end of the channel, or its process has ended."""


class Channel:
    """One end of the socket, for the messages of ``gossip.ipc.messages``. Each ``send`` sends one
    packet, and each ``receive`` returns the messages of one packet.

    Any thread may call ``send``, but only one thread may call ``receive``. The channel owns the
    socket ``end``, which comes from ``Channel.pair()``.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._socket = end
        self._buffer = bytearray(PACKET_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._patience_s: float | None = None

    @staticmethod
    def pair() -> tuple[socket.socket, socket.socket]:
        """Return two connected sockets. Both are close-on-exec, so a child process must inherit its
        socket explicitly."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def fileno(self) -> int:
        """Return the socket's descriptor, to poll for packets."""
        return self._socket.fileno()

    def send(self, *messages: Any, fds: tuple[int, ...] = ()) -> None:
        """Send all ``messages`` as one packet. The kernel duplicates ``fds`` into the other
        process.

        If the socket's buffer is full, wait for at most ``SEND_PATIENCE_S``. The buffer is full
        only if the other side has stopped reading.

        Raises:
            ChannelClosed: The other side has closed the channel. LocalError: The other side does
                not read.
            ValueError: The packet is larger than ``PACKET_BYTES_MAX``, which is a bug.
        """
        packet = _CODEC.encode_many(messages)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        give_up = 0.0
        while True:
            try:
                self._socket.sendmsg([packet], ancillary, _SEND)
                return
            except BlockingIOError:
                give_up = give_up or time.monotonic() + SEND_PATIENCE_S
                if time.monotonic() > give_up:
                    raise LocalError(
                        f"the other side has not read its channel for {SEND_PATIENCE_S:g} s"
                    ) from None
                writable = select.poll()
                writable.register(self._socket.fileno(), select.POLLOUT)
                writable.poll(100)
            except OSError as error:
                raise ChannelClosed(f"cannot send: {error}") from error

    def receive(self, timeout_s: float | None = None) -> tuple[list[Any], list[int]]:
        """Return the messages and the descriptors of the next packet. The caller must close the
        descriptors.

        Args:
            timeout_s: Seconds to wait for a packet; 0 means no wait, None means no limit.
        Returns: Two empty lists if no packet arrived in time.
        Raises:
            ChannelClosed: The other side has closed its end, and all its packets were received.
        """
        try:
            if timeout_s not in (0, self._patience_s):
                self._wait_for(timeout_s)
            try:
                size, ancillary, flags, _ = self._read_packet(timeout_s)
            except ConnectionResetError:
                # The other side closed its end before it read all packets. Linux reports this once,
                # before the last packets of the other side, which may contain the reason.
                size, ancillary, flags, _ = self._read_packet(timeout_s)
        except BlockingIOError:
            return [], []
        except OSError as error:
            raise ChannelClosed(f"cannot receive: {error}") from error
        fds = _descriptors(ancillary)
        if size == 0:
            raise ChannelClosed("the other side has closed the channel")
        if flags & _TRUNCATED:
            for fd in fds:
                os.close(fd)
            raise LocalError(
                f"received a packet with more than {PACKET_BYTES_MAX} bytes or {DESCRIPTORS_MAX} "
                "descriptors"
            )
        try:
            return _CODEC.decode_many(self._view[:size]), list(fds)
        except Malformed as error:
            # Both ends trust each other and run the same code, unless their versions of gossip
            # differ.
            raise LocalError(
                f"the other end of the channel has another version of gossip: {error}"
            ) from error

    def _read_packet(self, timeout_s: float | None) -> tuple[int, list[Any], int, Any]:
        how = _LOOK if timeout_s == 0 else _WAIT
        return self._socket.recvmsg_into([self._buffer], _ANCILLARY_BYTES, how)

    def _wait_for(self, timeout_s: float | None) -> None:
        """Set the kernel's timeout for reads of the socket. A poll before each read would need a
        second wake-up."""
        # The kernel takes 0 as no timeout.
        microseconds = 0 if timeout_s is None else max(1, round(timeout_s * 1e6))
        self._socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(*divmod(microseconds, 1_000_000))
        )
        self._patience_s = timeout_s

    def close(self) -> None:
        """Close this end. The other side receives the packets that were sent, and then the end of
        file. A second call has no effect."""
        self._socket.close()


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> array.array[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds
