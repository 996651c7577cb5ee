"""The flight recorder: every event that a node delivers to its core, with its time, so that the run
of the node can be replayed bit for bit.

A recording is a sequence of msgpack frames. The first has the core's constructor arguments; then
follow, for each call of the core,

    [now, event]        before the call, so that an event that ends the core is recorded
    [count, digest]     after it: the number of effects, and blake2b-8 over them

A dataclass is a map of one entry, its name and the list of its fields. A payload is recorded by its
metadata, without the vector, which the core does not read.
``gossip_lab.simulation.campaign.replayer`` reads recordings.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgpack

import gossip.core
from gossip.core import (
    Admission,
    CoreSettings,
    Effect,
    Event,
    Message,
    Payload,
    PeerId,
    events,
    messages,
    settings,
)
from gossip.errors import ConfigError

FORMAT = 3
BYTES_MAX = 2**31
"""Maximum bytes of one recording: about an hour of eight peers at full speed. Later events are not
recorded."""
DIGEST_BYTES = 8


@cache
def code_digest(file: str) -> bytes:
    """Return a digest of the source that a recording depends on: of the core, the topologies, and
    the package of ``file``, which has the class of the core."""
    state = blake2b(digest_size=DIGEST_BYTES)
    core = Path(gossip.core.__file__).parent
    for folder in dict.fromkeys((core, core.parent / "topologies", Path(file).parent)):
        for path in sorted(folder.rglob("*.py")):
            state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.digest()


@dataclass(frozen=True, slots=True)
class Header:
    """Constructor arguments of the core. ``topology`` is its name, as for
    ``gossip.topologies.load``."""

    peer: PeerId
    incarnation: int
    settings: CoreSettings
    topology: str
    control: str
    bulk: str
    seeds: tuple[tuple[PeerId, str, str], ...]
    code: bytes
    """``code_digest`` of the recorded core: another core may return other effects."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the core. ``effects`` (count, digest) is None if the node was killed during the
    call."""

    now: float
    event: Event
    effects: tuple[int, bytes] | None


# --- plain values ---------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value as numbers, text, bytes, lists and maps for msgpack: an event to record it, or
    an effect to compute its digest."""
    kind = type(value)
    if kind in (int, float, str, bytes, bool) or value is None:
        return value
    if kind is Payload:
        return {"Payload": [value.nbytes, value.finite, value.digest]}
    if kind in (tuple, list):
        return [plain(each) for each in value]
    if kind is dict:
        return {key: plain(each) for key, each in value.items()}
    fields_of = _FIELDS.get(kind)
    if fields_of is None:
        fields_of = _FIELDS[kind] = _make_fields_of(kind)
    return {kind.__name__: [plain(each) for each in fields_of(value)]}


_FIELDS: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


def _make_fields_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(
            f"a recording has no form for {kind!r}: the core takes and asks for plain data only"
        )
    names = [field.name for field in dataclasses.fields(kind)]
    if not names:
        return lambda value: ()
    if len(names) == 1:
        only = operator.attrgetter(names[0])
        return lambda value: (only(value),)
    return operator.attrgetter(*names)


def _kinds() -> dict[str, type]:
    """Return every dataclass that a header or an event may have, by its name."""
    found = [
        value
        for module in (events, messages, settings)
        for value in vars(module).values()
        if isinstance(value, type)
    ]
    return {kind.__name__: kind for kind in (*filter(dataclasses.is_dataclass, found), Header)}


_KINDS = _kinds()


def restored(value: Any) -> Any:
    """Return the value that ``plain`` has converted. Raises ConfigError if this version cannot have
    made it."""
    if isinstance(value, tuple | list):
        return tuple(restored(each) for each in value)
    if not isinstance(value, dict):
        return value
    name, fields = next(iter(value.items()), ("", ()))
    if name == "Payload" and len(fields) == 3:
        return Payload(None, *fields)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None or len(fields) != len(dataclasses.fields(kind)):
        raise ConfigError(
            f"the recording has {name!r} in a form that this version of gossip does not know",
            "replay it with the version that made it",
        )
    return kind(*(restored(each) for each in fields))


def digest_of(effects: list[Effect]) -> tuple[int, bytes]:
    """Return the number of effects, and a digest of all that the core decides about them."""
    packed = msgpack.packb([plain(effect) for effect in effects])
    return len(effects), blake2b(packed, digest_size=DIGEST_BYTES).digest()


# --- writing --------------------------------------------------------------------------------------


class NodeCore(Protocol):
    """Part of ``gossip.core.Peer`` that a node needs. Decorators have it, too."""

    def handle(self, event: Event, now: float) -> Iterable[Effect]: ...

    def admit(self, sender: PeerId, message: Message) -> Admission: ...

    @property
    def incarnation(self) -> int: ...


class RecordingCore:
    """A core that records each event before the wrapped core handles it.

    Every call is written at once, so the recording of a killed node ends with its last call. On a
    full disk the recording ends, with an ``error`` report, and the training continues.
    """

    def __init__(
        self, core: NodeCore, header: Header, path: Path, bytes_max: int = BYTES_MAX
    ) -> None:
        self.core = core
        self.path, self.bytes_max = path, bytes_max
        self.bytes_written = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = path.open("wb", buffering=0)
        # report of a failed write, until a call returns it
        self._lost = self._write(msgpack.packb([FORMAT, plain(header)]))

    @property
    def incarnation(self) -> int:
        return self.core.incarnation

    def admit(self, sender: PeerId, message: Message) -> Admission:
        return self.core.admit(sender, message)

    def handle(self, event: Event, now: float) -> list[Effect]:
        reports, self._lost = self._lost, []
        if self._file is None:
            return [*reports, *self.core.handle(event, now)]
        # Before the call, which may end the process.
        reports += self._write(msgpack.packb([now, plain(event)]))
        try:
            effects = list(self.core.handle(event, now))
        except BaseException:
            self._close()
            raise
        if self._file is not None:
            reports += self._write(msgpack.packb(digest_of(effects)))
        if any(isinstance(effect, events.Halt) for effect in effects):
            self._close()
        return reports + effects  # reports first: effects after a ``Halt`` are not carried out

    def _write(self, frames: bytes) -> list[Effect]:
        """Write frames to the file. If that fails, close the recording and return its report."""
        assert self._file is not None
        wrong = ""
        try:
            waiting = memoryview(frames)
            while waiting:
                waiting = waiting[self._file.write(waiting) :]
        except OSError as error:
            wrong = str(error)
        self.bytes_written += len(frames)
        if not wrong and self.bytes_written > self.bytes_max:
            wrong = f"it has reached {self.bytes_written} bytes, {self.bytes_max} are the most"
        if not wrong:
            return []
        self._close()
        return [
            events.Report(
                "error", {"message": f"the recording {self.path.name} ends here: {wrong}"}
            )
        ]

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def rows_of(seeds: Mapping[PeerId, tuple[str, str]]) -> tuple[tuple[PeerId, str, str], ...]:
    """Return peers' addresses in the form of a header."""
    return tuple((peer, *seeds[peer]) for peer in sorted(seeds))


def path_of(run_dir: Path, peer: PeerId, incarnation: int) -> Path:
    """Return the path of the recording of a node: a file for each life."""
    return run_dir / f"peer-{peer}" / f"recording-{incarnation}.msgpack"


# --- reading --------------------------------------------------------------------------------------


def read(path: Path) -> tuple[Header, Iterator[Step]]:
    """Return the header, and an iterator over the steps. A truncated recording ends before the
    truncated frame.

    Raises: ConfigError: The file cannot be read, or is no recording of this version; also during
        iteration.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the recording {path}: {error.strerror or error}") from error
    frames = _frames(data, path)
    first = next(frames, None)
    if not isinstance(first, list) or len(first) != 2 or first[0] != FORMAT:
        raise ConfigError(
            f"{path} is no recording of format {FORMAT}", "`gossip run --record` makes one"
        )
    header = restored(first[1])
    if not isinstance(header, Header):
        raise ConfigError(
            f"{path} does not begin with a header", "`gossip run --record` makes recordings"
        )
    return header, _steps(frames, path)


def _frames(data: bytes, path: Path) -> Iterator[Any]:
    unpacker = msgpack.Unpacker(max_buffer_size=len(data) or 1, strict_map_key=False)
    unpacker.feed(data)
    try:
        yield from unpacker
    except (ValueError, msgpack.UnpackException) as error:
        raise ConfigError(
            f"the recording {path} is damaged after {unpacker.tell()} bytes: {error}"
        ) from error


def _steps(frames: Iterable[Any], path: Path) -> Iterator[Step]:
    waiting: tuple[float, Event] | None = None
    for number, frame in enumerate(frames):
        match frame:
            case [float(now), dict(event)] if waiting is None:
                waiting = now, restored(event)
            case [int(count), bytes(digest)] if waiting is not None:
                yield Step(*waiting, (count, digest))
                waiting = None
            case _:
                raise ConfigError(
                    f"the recording {path} is damaged: frame {number} is {frame!r}"[:300]
                )
    if waiting is not None:
        yield Step(*waiting, None)
