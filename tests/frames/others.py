"""Readers of bytes beside those of messages and payloads: packed states, what peers give to
collective operations, what hosts say to their launcher, who knocks at a join server, and packets of
the unix lane with the descriptors that come with them."""

from __future__ import annotations

import array
import fcntl
import itertools
import json
import os
import select
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from drawing import STRANGE, Reading, changed, replaced

from gossip.config import RunConfig
from gossip.core.transfer.chunks import PieceManifest
from gossip.launch.local import Program, RunRecords
from gossip.launch.registry.join_proxy import FrameMeter, HeldBytes
from gossip.launch.ssh import frames, remote
from gossip.launch.ssh.agent_program import AgentProgram
from gossip.launch.ssh.collecting import Collector
from gossip.launch.ssh.hostlist import Host
from gossip.launch.ssh.remote import RemoteAgent
from gossip.launch.ssh.restarts import HostState
from gossip.launch.ssh.swarm import HostsLauncher
from gossip.training.collectives import means_of, pack_object, packed, plain_of
from gossip.training.state import load_document, plan_state, read_packed_state, split_state
from gossip.transport.assembly import Reception
from gossip.transport.chunks import FIRST, FIRST_MARK, LENT, LENT_MARK, MAP_MARK, NEXT, NEXT_MARK
from gossip.transport.unix import UnixInbox

DEEP = (200, 600, 900, 5000)
"""Lists in each other: some are more than Python's stack takes."""


# --- states and what is given to collective operations --------------------------------------------


class StateReader:
    """Of a donor: what a peer takes over instead of its own state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.model(torch.ones(4, 3)).sum().backward()
        self.optimizer.step()
        kept = self.optimizer.state[self.model[0].weight]
        kept |= {"history": [torch.ones(2), None, {"a": torch.ones(9, dtype=torch.float64)}]}
        self.optimizer.state["of all"] = {"mode": "train", "seen": (1, 2.5)}
        plan = plan_state(self.model, self.optimizer, {"epoch": 3, "seen": [0.5, None]})
        memory = bytearray(plan.nbytes)
        plan.write(memoryview(memory))
        self.sound = bytes(memory)
        self.parts = split_state(self.sound)

    def frame(self, random: Random) -> Reading:
        data = (
            changed(self.sound, random)
            if random.random() < 0.3
            else b"".join([self._part(part, random) for part in self.parts])
        )

        def read() -> object:
            load_document(read_packed_state(data), self.model, self.optimizer)
            assert all(parameter.shape for parameter in self.model.parameters())
            return data

        return read

    def _part(self, part: bytes, random: Random) -> bytes:
        """A part whose lengths fit, and of which something else does not."""
        (length,) = struct.unpack_from("<Q", part)
        header, tensors = json.loads(part[8 : 8 + length]), part[8 + length :]
        way = random.randrange(6)
        if way == 0:
            name = random.choice(list(header))
            header[name] = replaced_within(header[name], random)
        elif way == 1:
            document = json.loads(header["__metadata__"]["gossip"])
            said = json.dumps(replaced_within(document, random), default=str)
            header["__metadata__"]["gossip"] = said
        elif way == 2 and random.random() < 0.1:
            depth = random.choice(DEEP)
            deep = "[" * depth + "]" * depth
            header["__metadata__"]["gossip"] = f'{{"format": 2, "model": {deep}}}'
        elif way == 3:
            tensors = changed(tensors, random)
        text = json.dumps(header, default=str).encode()
        text += b" " * (-len(text) % 8)
        whole = struct.pack("<Q", len(text)) + text + tensors
        return whole + bytes(-len(whole) % 8)


def replaced_within(document: Any, random: Random) -> Any:
    """As ``replaced``, of dicts, too."""
    if isinstance(document, dict) and document and random.random() < 0.9:
        key = random.choice(list(document))
        if random.random() < 0.1:
            return {name: value for name, value in document.items() if name != key}
        return {**document, key: replaced_within(document[key], random)}
    if isinstance(document, list) and document and random.random() < 0.5:
        at = random.randrange(len(document))
        return [*document[:at], replaced_within(document[at], random), *document[at + 1 :]]
    return replaced(document, random)


class CollectiveReader:
    """Of another peer: what it gives to ``mean`` and ``gather``."""

    def __init__(self) -> None:
        self.sound = pack_object({"loss": 0.5, "hits": 3, "of": [1, None, {"a": b"x" * 40}]})

    def frame(self, random: Random) -> Reading:
        strange = {"loss": random.choice(STRANGE[:14]), "hits": random.choice((0.5, 3, "x"))}
        try:
            numbers = pack_object(strange)
        except Exception:  # noqa: BLE001 - what has no bytes cannot be sent
            numbers = self.sound
        data = random.choice((numbers, changed(numbers, random), changed(self.sound, random)))
        given = {0: pack_object({"loss": 1.0, "hits": 1}), 1: data}

        def read() -> object:
            packed((0, 0, "mean"), data, 2**20)
            assert set(means_of(given, ("loss", "hits"), 0)) == {"loss", "hits"}
            return plain_of(data)

        return read


def manifests(random: Random) -> Reading:
    """Of the pieces of a large state."""
    pieces = random.choice((2, 3, 40))
    sound = PieceManifest(pieces * 1000 - 7, 1000, tuple([b"d" * 16] * pieces)).packed()
    data = changed(sound, random) if random.random() < 0.9 else sound

    def read() -> object:
        found = PieceManifest.read(data)
        if found is not None:
            bounds = [found.bounds(at + 1) for at in range(len(found.digests))]
            assert bounds[0][0] == 0
            assert bounds[-1][1] == found.nbytes
            assert all(end == start for (_, end), (start, _) in itertools.pairwise(bounds))
        return found

    return read


# --- hosts and visitors ---------------------------------------------------------------------------


class HostReader:
    """Of an agent on another host: what its launcher makes of its words."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.launcher = LauncherOfNothing(Path(self.folder.name))

    def frame(self, random: Random) -> Reading:
        sound = random.choice(
            (
                {"kind": "row", "row": {"event": "exited", "peer": 3, "t": 1.5, "code": 1}},
                {
                    "kind": "row",
                    "row": {"event": "halted", "peer": 3, "traffic": {"sent_bytes": 1}},
                },
                {"kind": "row", "row": {"event": "round", "peer": 3, "round": 7, "loss": 0.5}},
                {"kind": "output", "peer": 3, "text": "loss 0.5", "err": False},
                {"kind": "say", "text": "! peer 3 is slow"},
                {"kind": "ended", "dismissed": [3], "stopped": ""},
                {"kind": "failed", "message": "no disk", "hint": "buy one"},
                {"kind": "file", "path": "peer-3/metrics.jsonl", "data": "aGFsbG8="},
                {"kind": "pong", "n": 1, "mono": 1.0, "wall": 2.0},
            )
        )
        said = replaced_within(sound, random) if random.random() < 0.8 else sound
        try:
            line = frames.MARK + json.dumps(said).encode() + b"\n"
        except TypeError:  # bytes have no JSON
            line = frames.MARK + b"{}\n"
        if random.random() < 0.1:
            depth = random.choice(DEEP)
            row = b"[" * depth + b"]" * depth
            line = frames.MARK + b'{"kind":"row","row":{"peer":3,"a":' + row + b"}}\n"
        data = line if random.random() < 0.7 else changed(line, random)

        def read() -> object:
            try:
                return self.launcher.remote.hear(data)
            except remote.NONSENSE:  # it ends the agent, as one that cannot be understood
                return None

        return read


class AgentOfNothing(RemoteAgent):
    """The launcher's end of an agent that was not started: its frames come from here."""

    def __init__(self, launcher: HostsLauncher) -> None:
        super().__init__(Host("nodeb"), (), Nobody(), launcher._on_frame, lambda it: None)
        self._pings[1] = 0.5

    def hear(self, data: bytes) -> list[frames.Frame]:
        self._pings[1], self.stumbled = 0.5, False
        said = frames.Decoder().feed(data)
        for frame in said:
            self._receive_frame(frame)
        return said

    def send(self, kind: str, **fields: Any) -> None:
        frames.encode({"kind": kind, **fields})


class LauncherOfNothing(HostsLauncher):
    """The launcher of one host, of which nothing was started."""

    def __init__(self, folder: Path) -> None:
        self.remote = AgentOfNothing(self)
        found = HostState(Host("nodeb"), range(2, 5), self.remote)
        found.collector = Collector(folder, "nodeb", range(2, 5))
        self.places, self._explained_by, self._folder = {"nodeb": found}, None, folder
        self.config = RunConfig(name="here", peers=5)
        self.records = RunRecords(self.config, Nobody(), range(5))
        self.records.open(folder)
        self.program = AgentProgram((found.host,), Program("train.py"))


class Nobody:
    """Reads what is said on the screen and in the logbook, and keeps nothing."""

    def print_line(self, text: str) -> None:
        assert isinstance(text, str)

    note = print_line

    def output(self, peer: int, text: str, err: bool) -> None:
        assert isinstance(peer, int)


def visitors(random: Random) -> Reading:
    """Of a stranger at the proxy before a join server: how much ZMTP it may send."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
    parts = [greeting[:64]]
    for _ in range(random.randrange(6)):
        size = random.choice((0, 5, 40, 200, 2**20, 2**63))
        head = bytes([2]) + size.to_bytes(8, "big") if size > 100 else bytes([0, size])
        parts.append(head + bytes(min(size, 300)))
    data = b"".join(parts)
    data = changed(data, random) if random.random() < 0.6 else data
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(3))

    def read() -> object:
        held = HeldBytes()
        meter = FrameMeter(held)
        for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
            meter.count_bytes(data[start:end])
        meter.release_bytes()
        assert held.bytes == 0
        return meter

    return read


# --- unix sockets ---------------------------------------------------------------------------------


class UnixReader:
    """Of a process of the same user: packets on the unix lane, with whatever descriptors."""

    def __init__(self, reception: Reception, sound: Callable[[Random], bytes]) -> None:
        self.inbox, self.sound = UnixInbox(reception), sound
        self.end: socket.socket | None = None
        self.nbytes = 3 * 4096
        lent = os.memfd_create("lent", os.MFD_ALLOW_SEALING)
        os.ftruncate(lent, self.nbytes)
        fcntl.fcntl(lent, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        unsealed, empty = os.memfd_create("unsealed"), os.memfd_create("empty")
        os.ftruncate(unsealed, self.nbytes)
        folder, (pipe, _) = os.open(tempfile.gettempdir(), os.O_RDONLY), os.pipe()
        self.fds = [lent, lent, lent, unsealed, empty, folder, pipe]

    def frame(self, random: Random) -> Reading:
        said, transfer, fds = self.sound(random), random.randrange(4), list[int]()
        length = random.choice((4096, 4096, 0, 2**63))
        region, way = int(random.random() < 0.2), random.randrange(4)
        if way == 0:
            header = NEXT.pack(MAP_MARK, region, 0)
            fds = [random.choice(self.fds)] * random.choice((0, 1, 1, 1, 1, 2))
        elif way in (1, 2):
            offset = random.choice((0, 4096, self.nbytes - 8, 2**63))
            header = LENT.pack(LENT_MARK, transfer, region, offset, length) + said
        else:
            header = random.choice(
                (
                    said,
                    FIRST.pack(FIRST_MARK, transfer, length) + said,
                    NEXT.pack(NEXT_MARK, transfer, random.randrange(4)),
                )
            )
        told = len(header) + random.choice((0,) * 12 + (-1, 1, 2**31))
        packet = struct.pack("<I", max(0, told)) + header
        packet += bytes(random.choice((0, 0, 0, 0, 0, 0, 512, 1024, 4096)))
        if random.random() < 0.25:
            packet = changed(packet, random)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        closes = random.random() < 0.03

        def read() -> object:
            if self.end is None:
                self.end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.end.connect("\0" + self.inbox.address.partition("@")[2])
            self.end.sendmsg([packet or b"x"], rights, socket.MSG_DONTWAIT)
            arrivals: list[Any] = []
            for _ in range(3):
                self.inbox.read(arrivals, 0.0)
                self.inbox.return_released()
            while select.select([self.end], [], [], 0.0)[0] and self.end.recv(100):
                pass
            if closes:
                self.end.close()
                self.end = None
                self.inbox.read(arrivals, 0.0)
            return arrivals or None

        return read
