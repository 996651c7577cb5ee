"""Collective operations among peers that may fail or be Byzantine. Each peer contributes data, and
all peers compute the result from the same commit.

Each call has a place: the position of the script, the number of earlier calls at this position, and
the operation. Calls of different peers with equal places are one operation. Every peer stores the
data that recent commits have collected (the answers), so a late peer finds the answer that the
others received.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgpack
import numpy as np
from torch import Tensor

from gossip.core import COLLECTED_BYTES_MAX
from gossip.errors import ConfigError
from gossip.run import checkpoints, shown
from gossip.transport import PARSER_ERRORS

ANSWERS = "gossip.collectives"  # key in the state of ``ExtraState``
ANSWERS_KEPT = 32
BEGINNING = -1
"""Position of a script before its first step. A returning peer makes the calls at this position
again, later than the other peers."""
FIRST_KEPT = 8
"""Answers of this number of first calls at ``BEGINNING`` are dropped last, for returning peers."""
PASSED_MAX = 3
"""A peer that waits in a call stops waiting after this number of rounds in which the other peers
trained."""
ANSWERS_BYTES_MAX = 2 * COLLECTED_BYTES_MAX
OVERHEAD_BYTES = 64  # upper bound for the bytes of a packed place
DEPTH_MAX = 16
_PARSER_LIMITS = {
    "raw": False,
    "strict_map_key": False,
    "max_str_len": COLLECTED_BYTES_MAX,
    "max_bin_len": COLLECTED_BYTES_MAX,
    "max_array_len": COLLECTED_BYTES_MAX,
    "max_map_len": COLLECTED_BYTES_MAX,
    "max_ext_len": 0,
}

Place: TypeAlias = tuple[int, int, str]
"""Place of a call: position of the script, number of earlier calls at this position, and the
operation."""


class Means(dict[str, float]):
    """Means by name.

    Attributes:
        peers: Peers that contributed to the means, ascending.
    """

    def __init__(self, means: Mapping[str, float], peers: tuple[int, ...]) -> None:
        super().__init__(means)
        self.peers = peers


class CollectiveAnswers:
    """Collective calls of this peer's script, and the answers: the data that commits have collected
    for each place.

    Args:
        f: Number of Byzantine peers to tolerate. A Byzantine peer can send any data for any place,
            including places of future calls.
    """

    def __init__(self, f: int = 0) -> None:
        self._f = f
        self._at, self._calls = BEGINNING, 0
        self._answers: OrderedDict[Place, dict[int, bytes]] = OrderedDict()

    def reached(self, at: int) -> None:
        """Record the position of the script, which is part of the place of later calls."""
        if at != self._at:
            self._at, self._calls = at, 0

    def next_place(self, operation: str) -> Place:
        """Return the place of the current call, and count the call."""
        place = self._at, self._calls, operation
        self._calls += 1
        return place

    def find(self, place: Place) -> dict[int, bytes] | None:
        """Return the collected data for the place; the key is the peer. Return None if no commit
        has collected data for the place yet."""
        return self._answers.get(place)

    def collected(self, given: Sequence[tuple[int, bytes]]) -> None:
        """Store the data that the commit of a collective operation contains.

        For each place, the first commit with enough data is used: data for the place from more than
        ``f`` peers, or from all peers in the commit. Data that arrive later are ignored.
        """
        found: dict[Place, dict[int, bytes]] = {}
        for peer, packed in given:
            if (read := _unpack(packed)) is not None and read[0] not in self._answers:
                found.setdefault(read[0], {})[peer] = read[1]
        fresh = {
            place: of_peers
            for place, of_peers in found.items()
            if len(of_peers) > self._f or len(of_peers) == len(given)
        }
        self._answers.update(fresh)
        older = [place for place in self._answers if place not in fresh]
        older.sort(key=lambda place: place[0] == BEGINNING and place[1] < FIRST_KEPT)
        for place in older:
            if len(self._answers) <= ANSWERS_KEPT and self._nbytes <= ANSWERS_BYTES_MAX:
                break
            del self._answers[place]

    @property
    def _nbytes(self) -> int:
        return sum([len(data) for given in self._answers.values() for data in given.values()])

    def state(self) -> list[Any]:
        """Return the answers as JSON types. They are part of the state that a returning peer
        receives."""
        return [
            [*place, [[peer, data.hex()] for peer, data in given.items()]]
            for place, given in self._answers.items()
        ]

    def adopt(self, state: Any) -> None:
        """Replace the answers by those of another peer, which ``state`` has returned there. Raises
        ValueError, as ``read_answers`` does."""
        self._answers = read_answers(state)


def read_answers(state: Any) -> OrderedDict[Place, dict[int, bytes]]:
    """Return the answers that ``CollectiveAnswers.state`` has packed. Raises ValueError: ``state``
    has another form."""
    try:
        return OrderedDict(
            (
                (int(at), int(calls), str(operation)),
                {int(p): bytes.fromhex(d) for p, d in given},
            )
            for at, calls, operation, given in state
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"not a valid answer of a collective operation: {error}") from error


def before_epoch(epoch: int) -> int:
    """Return the position of a script before an epoch. This position does not depend on the step,
    so the calls of a late peer before the epoch get the same places as those of the other peers.
    """
    return BEGINNING - 1 - 2 * epoch


def after_epoch(epoch: int) -> int:
    """Return the position of a script after an epoch. This position does not depend on the step."""
    return BEGINNING - 2 - 2 * epoch


def packed(place: Place, data: bytes, most: int) -> bytes:
    """Pack the data of one peer for a place. Raises ConfigError: ``data`` has more than ``most``
    bytes."""
    if len(data) > most:
        raise ConfigError(
            f"{place[2]} got {len(data):,} bytes, but a peer can pass at most {most:,}",
            "save larger values with peer.save(path, object), and read the file",
        )
    whole: bytes = msgpack.packb([*place, data])
    return whole


def bytes_max(peers: int) -> int:
    """Return the maximum number of bytes per peer, so that one commit holds the values of all
    ``peers``."""
    return COLLECTED_BYTES_MAX // max(1, peers) - OVERHEAD_BYTES


def _unpack(data: bytes) -> tuple[Place, bytes] | None:
    """Return the place and the data that ``packed`` has packed; None if the bytes are malformed."""
    plain = plain_of(data)
    match plain:
        case [int(at), int(calls), str(operation), bytes(given)]:
            return (at, calls, operation), given
    return None


class Collectives:
    """Collective operations, all based on ``collect``: it contributes this peer's bytes and returns
    the bytes of every peer.

    Args:
        run: ``PeerRun`` of this peer, with the ``CollectiveAnswers``.
        contribute: Function that contributes packed data to the next round, waits for the end of
            the round, and returns whether the other peers trained in this round. It raises RunOver
            if there is no further round.
    """

    def __init__(self, run: Any, contribute: Callable[[bytes], bool]) -> None:
        self._run, self._peer, self.f = run, run.peer, run.config.f or 0
        self._contribute = contribute
        self.answers: CollectiveAnswers = run.answers
        self._most = bytes_max(run.config.peers_max)
        self.answered: tuple[int, ...] = ()
        self._has_warned = False

    def collect(
        self, operation: str, data: bytes | Callable[[], bytes], most: int | None = None
    ) -> dict[int, bytes]:
        """Return the data of each peer; the key is the peer. The result is the same on all peers.
        There are two exceptions: a peer gets only its own data if the run has ended, or if all
        others train and do not make this call.

        Args:
            data: Data of this peer, or a function that returns them. A late peer does not call the
                function, because it already has the answer.
            most: Maximum number of bytes from one peer.
        """
        place = self.answers.next_place(operation)
        found = self.answers.find(place)
        if found is None:
            found = self._collected(place, data() if callable(data) else data, most)
        self.answered = tuple(sorted(found))
        return found

    def _collected(self, place: Place, data: bytes, most: int | None) -> dict[int, bytes]:
        whole, passed = packed(place, data, self._most if most is None else most), 0
        try:
            while (found := self.answers.find(place)) is None and passed < PASSED_MAX:
                passed += self._contribute(whole)
            found = {self._peer: data} if found is None else found
            if found.keys() == {self._peer}:
                self._warn_of_lone_call(place[2])
        except RunOver:
            found = {self._peer: data}
        return found

    def _warn_of_lone_call(self, operation: str) -> None:
        """Warn that no other peer has called the operation at this place. Warn only once per
        process."""
        if self._run.view.alive < 2 or self._has_warned:
            return
        self._has_warned = True
        name = {"once": "save", "done": "save"}.get(operation, operation)
        self._run.notify(
            f"{name} has the answer of this peer alone: no other peer has called it at this place, "
            "or only long ago. All peers must call the same operations in the same order, not only "
            "the main peer"
        )

    def objects(
        self, operation: str, data: bytes | Callable[[], bytes], most: int | None = None
    ) -> dict[int, Any]:
        """Return the object of each peer; the key is the peer, in ascending order. Arguments are
        those of ``collect``, and ``data`` is a packed object."""
        given = self.collect(operation, data, most)
        return {peer: plain_of(each) for peer, each in sorted(given.items())}

    def once(self, work: Callable[[], None]) -> str:
        """Do ``work`` on one peer. If that peer fails or does not reply, do it on the next peer.

        Returns: "" if a peer has done the work, else the reason why the last peer failed.
        """
        left, why = set(self.collect("once", b"")), "no peer replied"
        while left:
            chosen = min(left)
            left.discard(chosen)
            outcome = _tried(work) if chosen == self._peer else ""
            said = self.objects("done", pack_object(outcome))
            if chosen not in said:
                continue
            why = shown(str(said[chosen]))
            if not why:
                return ""
        return why


class RunOver(Exception):
    """Raised when the run has no further rounds."""


def _tried(work: Callable[[], None]) -> str:
    try:
        work()
    except OSError as error:
        return str(error) or type(error).__name__
    return ""


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file durably and atomically. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoints.store(path, iter((memoryview(content),)))


# --- contributions --------------------------------------------------------------------------------


def pack_object(value: object) -> bytes:
    """Pack plain data into bytes. A tensor or an array with one element becomes a number.

    Raises: ConfigError: The value contains other objects.
    """
    try:
        whole: bytes = msgpack.packb(_plain(value, 0), use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"peers can exchange only plain data: {error}",
            "None, bool, int, float, str, bytes, and lists and dicts of them",
        ) from error
    return whole


def plain_of(data: bytes) -> Any:
    """Return the object that ``pack_object`` has packed, with tuples as lists. Return None
    if ``data`` is not a packed object; a Byzantine peer may send such data."""
    try:
        return msgpack.unpackb(data, **_PARSER_LIMITS)
    except PARSER_ERRORS:
        return None


def numbers_of(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return the values as floats. Raises ConfigError: A value is not a number."""
    found = {}
    for name, value in numbers.items():
        value = _scalar(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"mean({name}=...) received a {type(value).__name__}",
                "pass numbers, or tensors with one element",
            )
        found[name] = float(value)
    return found


def _scalar(value: Any) -> Any:
    has_shape = isinstance(value, Tensor | np.ndarray | np.generic)
    return value.item() if has_shape and math.prod(value.shape) == 1 else value


def _plain(value: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    value = _scalar(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str | int) for key in value):
            raise TypeError("a dict has keys that are neither str nor int")
        return {key: _plain(each, depth + 1) for key, each in value.items()}
    raise TypeError(f"it contains a {type(value).__name__}")


# --- results --------------------------------------------------------------------------------------


def means_of(given: Mapping[int, bytes], names: Iterable[str], f: int) -> Means:
    """Return the mean of each name over the peers that have passed exactly ``names``.

    If f > 0, this is the trimmed mean, without the f largest and the f smallest values (Yin et al.,
    2018). With too few values, the result is the median. So f Byzantine peers cannot move the
    result out of the range of the honest peers' values.
    """
    wanted = sorted(names)
    rows: dict[int, dict[str, float]] = {}
    for peer, data in sorted(given.items()):
        row = plain_of(data)
        if (
            isinstance(row, dict)
            and row.keys() == set(wanted)
            and all(type(value) in (int, float) for value in row.values())
        ):
            rows[peer] = row
    means = {
        name: _trimmed([float(row[name]) for row in rows.values()], f) if rows else math.nan
        for name in wanted
    }
    return Means(means, tuple(rows))


def _trimmed(values: list[float], f: int) -> float:
    out = min(f, (len(values) - 1) // 2)
    # NaN is sorted last, so trimming removes up to f NaNs.
    ordered = sorted(values, key=lambda value: (math.isnan(value), value))
    kept = ordered[out : len(ordered) - out]
    return math.fsum(kept) / len(kept) if all(map(math.isfinite, kept)) else sum(kept) / len(kept)
