"""Frames that no honest peer sends, given to everything that reads bytes of others.

    python tests/frames/hostile.py --count 2000000

Each frame is drawn from its number, so a finding names what to run again. Nothing may raise but
what its reader declares, take ``FRAME_CPU_S`` of processor time, or grow.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
from drawing import Reading, changed, flat, of_type, replaced
from others import CollectiveReader, HostReader, StateReader, UnixReader, manifests, visitors

from gossip.core import Envelope, Message, Update
from gossip.core.ledger.packing import squeeze, stretch, unpack_json
from gossip.core.settings import LISTS_MAX, UNPACKED_BYTES_MAX, VALUES_MAX
from gossip.errors import Malformed
from gossip.launch.registry import join_messages
from gossip.launch.registry.join_proxy import LimitExceeded
from gossip.launch.ssh import frames as agent_frames
from gossip.training.state import StateMismatch
from gossip.transport.assembly import HeaderFilter, IncomingPayload, Reception
from gossip.transport.base import Traffic
from gossip.transport.chunks import CHUNK_BYTES, FIRST, FIRST_MARK, LENT, LENT_MARK, NEXT, NEXT_MARK
from gossip.transport.codec import MESSAGES, PROTOCOL_VERSION, decode, encode, seal
from gossip.transport.lending import BufferPool
from gossip.transport.sealed import SealedStream
from gossip.transport.sessions import (
    CHUNK,
    HEADER,
    MESSAGE,
    OPEN,
    OVERHEAD,
    OpeningSession,
    RecordOpener,
    RecordSealer,
    SessionOffer,
    make_welcome,
    session_of,
)
from gossip.vectors import PayloadKind, WireFormat, load_encoding

sys.path.insert(0, str(Path(__file__).parents[1] / "simulation"))

FRAME_CPU_S = 0.010
TRIES = 3
"""Of a frame that took longer: what else the machine does counts, too."""
GROWTH_MAX_MB = 48.0
RUN, PEER, LOCAL = b"run", 3, 1
LIMIT_BYTES = 4096
"""Of a payload that is expected."""
ENCODINGS = (
    *("float32", "bf16", "fp16", "int8", "int8:8", "int4", "int4:24", "topk:0.1", "topk:0.4"),
    *("powersgd:1", "powersgd:3"),
)


@dataclass(frozen=True, slots=True)
class Reader:
    """What reads frames.

    Attributes:
        frame: Draws the next one.
        raises: What the reader may raise.
        share: Of how many frames, beside those of the others.
    """

    name: str
    frame: Callable[[Random], Reading]
    raises: tuple[type[Exception], ...]
    share: int = 1


@dataclass(slots=True)
class FrameReport:
    """What came of frames. ``findings``: number, reader and why."""

    frames: int = 0
    findings: list[tuple[int, str, str]] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    grown_mb: float = 0.0


# --- messages -------------------------------------------------------------------------------------


def envelope(random: Random) -> Envelope:
    message = of_type(random.choice(get_args(Message)), random)
    return Envelope(RUN, random.choice((PEER, LOCAL, 0)), random.choice((0, 5)), message)


def message_bytes(random: Random) -> bytes:
    """Of a message: sound, with other bytes, or with other values, under a checksum that fits."""
    said = envelope(random)
    if random.random() < 0.1:
        return encode(said)
    if random.random() < 0.5:
        return seal(changed(encode(said)[:-4], random))
    tag, values = MESSAGES.to_plain(said.message)
    plain = [PROTOCOL_VERSION, said.run, said.sender, said.incarnation, tag, values]
    return seal(packed(replaced(plain, random)))


def packed(plain: Any) -> bytes:
    try:
        return MESSAGES.pack(plain)
    except (OverflowError, ValueError):  # what msgpack has no bytes for
        return b"\xc1"


def messages(random: Random) -> Reading:
    data = message_bytes(random)
    return lambda: decode(data)


def join_calls(random: Random) -> Reading:
    said = of_type(random.choice(get_args(join_messages.Said)), random)
    try:
        data = join_messages.encode(said)
    except ValueError:  # it was drawn too large
        data = join_messages.VERSION
    data = changed(data, random)
    return lambda: join_messages.decode(data)


def agents(random: Random) -> Reading:
    frame = {"kind": "line", "peer": 3, "text": "loss 0.5", "of": [1, None, {"a": 2.5}]}
    data = b"motd\n" + agent_frames.encode(frame) + changed(agent_frames.encode(frame), random)
    decoder = agent_frames.Decoder()

    def read() -> object:
        return decoder.feed(data), decoder.feed(b"\n")

    return read


# --- payloads -------------------------------------------------------------------------------------


class Lane:
    """One inbound lane, which lives as long as the campaign: what it keeps has a bound."""

    def __init__(self) -> None:
        gate = HeaderFilter(RUN, LOCAL, lambda sender, message: LIMIT_BYTES, Traffic())
        self.reception = Reception(gate, 1024)
        self.memory = np.zeros(3 * LIMIT_BYTES, np.uint8)

    def part(self, offset: int, nbytes: int) -> Any:
        if nbytes > len(self.memory) or offset > len(self.memory) - nbytes:
            return None
        return self.memory[offset : offset + nbytes]

    def headers(self, random: Random) -> Reading:
        """Of a chunk: which payload is begun or goes on, and how much of it comes."""
        connection = random.randrange(4)
        transfer, index = random.randrange(3), random.randrange(6)
        nbytes = random.choice((LIMIT_BYTES, LIMIT_BYTES, 0, 4, 2**40, 2**63))
        header = random.choice(
            (
                FIRST.pack(FIRST_MARK, transfer, nbytes) + message_bytes(random),
                FIRST.pack(FIRST_MARK, transfer, LIMIT_BYTES) + encode(update(random)),
                NEXT.pack(NEXT_MARK, transfer, index),
            )
        )
        if random.random() < 0.5:
            header = changed(header, random)
        whole, closes = random.random() < 0.8, random.random() < 0.05

        def read() -> object:
            incoming = self.reception.chunk(connection, header, 0.0)
            if incoming is not None:
                room = incoming.room()
                assert len(room) <= LIMIT_BYTES
                self.reception.filled(connection, incoming, whole)
            if closes:
                self.reception.closed(connection)
            assert len(self.reception.assembly) <= 6
            return incoming

        return read

    def lent(self, random: Random) -> Reading:
        """Of a payload that lies in mapped memory."""
        connection, transfer = (1, random.randrange(4)), random.randrange(3)
        offset = random.choice((0, 8, len(self.memory), 2**40, 2**64 - 8))
        nbytes = random.choice((LIMIT_BYTES, LIMIT_BYTES, 0, 2**63, 2**64 - 1))
        said = encode(update(random)) if random.random() < 0.5 else message_bytes(random)
        header = LENT.pack(LENT_MARK, transfer, random.randrange(2), offset, nbytes) + said
        if random.random() < 0.5:
            header = changed(header, random)

        def read() -> object:
            # the lane has looked at the length of the head by then
            if len(header) <= LENT.size:
                return None
            _, loan = self.reception.lent(connection, memoryview(header), (1, self), 0.0)  # type: ignore[arg-type]
            return None if loan is None else finished(loan.incoming, loan.source)

        return read


def finished(incoming: IncomingPayload, source: Any) -> object:
    while not incoming.copy_from(source):
        pass
    return incoming.finish()


def update(random: Random) -> Envelope:
    return Envelope(
        RUN, PEER, 0, Update(b"lineage1", random.randrange(9), 0, 0, b"d" * 16, 1, None)
    )


def update_bytes(random: Random) -> bytes:
    """Of a message that announces a payload; now and then of any."""
    return encode(update(random)) if random.random() < 0.7 else message_bytes(random)


def records(random: Random) -> Reading:
    """Of a sealed connection: of a Byzantine peer that has the key, or of whoever has none."""
    sealer, said = RecordSealer(b"k" * 32), bytearray()
    for _ in range(random.choice((1, 2, 4))):
        header = FIRST.pack(FIRST_MARK, 1, LIMIT_BYTES) + encode(update(random))
        kind, data = random.choice(
            (
                (MESSAGE, message_bytes(random)),
                (HEADER, header),
                (HEADER, changed(header, random)),
                (CHUNK, random.randbytes(random.choice((0, 1, 1024, 1025)))),
                (random.randrange(256), random.randbytes(40)),
            )
        )
        room = bytearray(len(data) + OVERHEAD)
        sealer.seal_into(kind, data, memoryview(room))
        said += room
    came = bytes(said) if random.random() < 0.5 else changed(bytes(said), random)
    gate = HeaderFilter(RUN, LOCAL, lambda sender, message: LIMIT_BYTES, Traffic())
    stream = SealedStream(RecordOpener(b"k" * 32), Reception(gate, 1024), 1, PEER, BufferPool())

    def read() -> object:
        rest, heard = memoryview(came), []
        while rest:
            room = stream.room()
            assert 0 < len(room) <= CHUNK_BYTES + OVERHEAD  # of a chunk that nobody wants
            part = rest[: len(room)]
            room[: len(part)] = part
            rest = rest[len(part) :]
            heard += stream.grow(len(part), 0.0)
        return heard

    return read


def sessions(random: Random) -> Reading:
    """What begins a sealed connection: the offer, the opening, the welcome and the proof."""
    opening = OpeningSession("sender", "receiver", 3)
    offered = opening.offer.encode()
    welcome, opener = make_welcome(opening.offer, "sender", "receiver", 5)
    data = changed(random.choice((offered, opening.opening, welcome)), random)
    kind = random.randrange(4)

    def read() -> object:
        if kind == 0:
            return SessionOffer.decode(data)
        if kind == 1:  # of what comes first just so many bytes are read
            return session_of(data[: OPEN.size].ljust(OPEN.size, b"\0"))
        if kind == 2:
            return opening.welcomed(data)
        return opener.open_proof(memoryview(data))

    return read


# --- tables and vectors ---------------------------------------------------------------------------


class Snapshots:
    """What a donor sends of its tables, and what a peer that takes it over makes of that."""

    def __init__(self) -> None:
        from checked_swarm import checked_swarm

        swarm = checked_swarm(n=4, seed=5, f=1)
        swarm.run_until(lambda: swarm.hosts[0].core.rounds.round_id >= 12, limit_s=60.0)
        rounds = swarm.hosts[0].core.rounds
        kept = rounds.snapshot(rounds.round_id)
        assert kept is not None
        self.chain, self.document = kept[0], flat(kept[1])
        self.check = rounds.check
        self.check(self.chain, tuple(self.document))

    def tables(self, random: Random) -> Reading:
        text = json.dumps(self.document).encode()
        match random.randrange(40):
            case 0:
                data = bomb(random)
            case way if way < 14:
                data = changed(squeeze(text), random)
            case way if way < 27:
                data = squeeze(changed(text, random))
            case _:
                data = squeeze(json.dumps(replaced(self.document, random), default=str).encode())

        def read() -> object:
            assert len(stretch(data)) <= UNPACKED_BYTES_MAX
            return unpack_json(data)

        return read

    def snapshots(self, random: Random) -> Reading:
        document = replaced(self.document, random)
        while random.random() < 0.3:
            document = replaced(document, random)
        if not isinstance(document, list):
            document = [document]
        return lambda: self.check(self.chain, tuple(document))


@cache
def bombs() -> tuple[bytes, ...]:
    """Little that becomes much, or that takes long to read."""
    size = UNPACKED_BYTES_MAX
    return tuple(
        [
            squeeze(text)
            for text in (
                bytes(40 * 2**20),
                b"[" + b"[]," * (size // 3 - 2) + b"0]",
                b"[" + b"{}," * (size // 3 - 2) + b"0]",
                b"[" + b"0," * (size // 2 - 2) + b"0]",
                b"[" + b"1.5," * (size // 4 - 2) + b"0]",
                b"[" + b"[]," * (LISTS_MAX - 1) + b"1.234," * (VALUES_MAX - LISTS_MAX) + b"0]",
                b'["' + b"\\u1234" * (size // 6 - 2) + b'"]',
                b"[" + b"9" * (size - 2) + b"]",
                b"[" * (size - 2),
            )
        ]
    )


def bomb(random: Random) -> bytes:
    return random.choice(bombs())


def encoded(spec: str) -> Callable[[Random], Reading]:
    wires = [
        WireFormat(load_encoding(spec), 7, (96, elements - 96), elements - 3, 4, shapes)
        for elements, shapes in ((171, ((12, 9), (20, 3))), (803, ((7, 8, 2, 5), (240,))))
    ]
    sound = [
        sound_payload(wire, Random(f"{spec}/{number}")) for wire in wires for number in range(40)
    ]

    def frame(random: Random) -> Reading:
        payload = random.choice(sound)
        nbytes, length = len(payload.raw), payload.wire.sizes[payload.shard]
        raw = changed(payload.raw if random.random() < 0.95 else random.randbytes(nbytes), random)
        if random.random() < 0.9:  # another length is refused at once
            raw = raw[:nbytes].ljust(nbytes, b"\0")
        came = np.frombuffer(bytearray(raw), np.uint8)  # as from a socket: it may be written to

        def read() -> object:
            found = payload.wire.decode(came, payload.kind, payload.round_id, payload.shard)
            assert found.shape == (length,)
            assert np.isfinite(found).all()
            return found

        return read

    return frame


@dataclass(frozen=True, slots=True)
class SoundPayload:
    """As an honest peer writes it."""

    wire: WireFormat
    kind: PayloadKind
    round_id: int
    shard: int
    raw: bytes


def sound_payload(wire: WireFormat, random: Random) -> SoundPayload:
    kind, round_id, shard = random.choice(KINDS), random.randrange(5), random.randrange(2)
    vector = np.array([random.gauss(0.0, 1.0) for _ in range(wire.sizes[shard])], np.float32)
    raw = wire.encode(vector, kind, round_id, shard).tobytes()
    return SoundPayload(wire, kind, round_id, shard, raw)


KINDS: tuple[PayloadKind, ...] = ("update", "result")


# --- the campaign ---------------------------------------------------------------------------------


@cache
def readers() -> tuple[Reader, ...]:
    lane, tables = Lane(), Snapshots()
    return (
        Reader("messages", messages, (Malformed,), 5),
        Reader("join calls", join_calls, (Malformed,), 2),
        Reader("agents", agents, (Malformed,), 1),
        Reader("headers", lane.headers, (), 4),
        Reader("lent", lane.lent, (), 3),
        Reader("records", records, (Malformed,), 3),
        Reader("sessions", sessions, (Malformed,), 1),
        Reader("tables", tables.tables, (ValueError,), 2),
        Reader("snapshots", tables.snapshots, (ValueError, OverflowError), 3),
        Reader("states", StateReader().frame, (StateMismatch,), 2),
        Reader("manifests", manifests, (), 1),
        Reader("collectives", CollectiveReader().frame, (), 1),
        Reader("visitors", visitors, (LimitExceeded,), 1),
        Reader("hosts", HostReader().frame, (), 2),
        Reader("unix", UnixReader(Lane().reception, update_bytes).frame, (), 3),
        *[Reader(spec, encoded(spec), (Malformed,), 1) for spec in ENCODINGS],
    )


def turns() -> list[Reader]:
    return [reader for reader in readers() for _ in range(reader.share)]


def campaign(
    numbers: range,
    chosen: str = "",
    say: Callable[[str], None] = lambda line: None,
    most_s: float = FRAME_CPU_S,
) -> FrameReport:
    """Reads the frames of these numbers. ``chosen``: of this reader only. ``most_s``: of processor
    time for each."""
    order = [reader for reader in turns() if chosen in ("", reader.name)]
    report = FrameReport()
    for reader in {each.name: each for each in order}.values():  # what is made once is made by then
        for number in range(20):
            with_end(reader, reader.frame(Random(f"warm/{number}")))
    gc.collect()
    before_mb, told = memory_mb(), time.monotonic()
    for number in numbers:
        read_one(number, order[number % len(order)], report, most_s)
        if time.monotonic() - told > 10.0:
            told = time.monotonic()
            say(f"{report.frames} of {len(numbers)}, {len(report.findings)} findings")
    gc.collect()
    report.grown_mb = memory_mb() - before_mb
    return report


def read_one(number: int, reader: Reader, report: FrameReport, most_s: float) -> None:
    took_s = math.inf
    for _ in range(TRIES):
        reading = reader.frame(Random(f"{reader.name}/{number}"))
        began = time.thread_time()
        end = with_end(reader, reading)
        took_s = min(took_s, time.thread_time() - began)
        if took_s < most_s:
            break
    report.frames += 1
    report.ends[f"{reader.name}: {end}"] += 1
    report.slowest[reader.name] = max(report.slowest.get(reader.name, 0.0), took_s)
    if end.startswith("raised"):
        report.findings.append((number, reader.name, end))
    if took_s >= most_s:
        report.findings.append((number, reader.name, f"took {1e3 * took_s:.1f} ms"))


def with_end(reader: Reader, reading: Reading) -> str:
    """How it ended."""
    try:
        return "nothing" if reading() is None else "taken"
    except reader.raises:
        return "refused"
    except Exception as error:  # noqa: BLE001 - whatever else it is, is a finding
        return f"raised {type(error).__name__}: {error}"


def memory_mb() -> float:
    """Of this process, as it is now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def lines_of(report: FrameReport) -> Iterator[str]:
    for name, slowest_s in report.slowest.items():
        ends = {
            end.removeprefix(f"{name}: "): count
            for end, count in report.ends.items()
            if end.startswith(f"{name}: ")
        }
        told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()) if count)
        yield f"{name:14} slowest {1e3 * slowest_s:5.2f} ms   {told}"
    yield f"{report.frames} frames, {report.grown_mb:+.1f} MB, {len(report.findings)} findings"
    for number, name, why in report.findings[:40]:
        yield f"--first {number} --count 1 --reader '{name}': {why}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2_000_000, help="frames; 2,000,000 by default")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--reader", default="", help="of one reader only")
    given = parser.parse_args()
    began = time.process_time()
    numbers = range(given.first, given.first + given.count)
    report = campaign(numbers, given.reader, lambda line: print(line, flush=True))
    print("\n".join(lines_of(report)))
    print(f"{time.process_time() - began:.0f} s of processor time")
    return 1 if report.findings or report.grown_mb > GROWTH_MAX_MB else 0


if __name__ == "__main__":
    sys.exit(main())
