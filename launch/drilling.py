"""Where a live run takes its drills: a unix socket in the run's folder, which only its owner can open.

One line of JSON in, one out: ``{"drill": "stop", "peers": [3], "for_s": 5}``, ``{"number": 1, "t": ..., "over": ...}`` or
``{"error": ..., "hint": ...}``. What a drill does to processes the supervisor does, by pid and start time; what lasts (cut links,
slow and lying peers) goes into the file that nodes and trainers look at (``gossip.drills``).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossip.aggregators.attacks import DATA_ATTACKS
from gossip.aggregators.attacks import KINDS as LIES
from gossip.drills import Drill, write
from gossip.errors import BadFault, ConfigError, GossipError
from gossip.fault_tables import Fault
from gossip.faults import ATTACKS, FaultPlan, Liar, Slow
from gossip.world_faults import Partition, kind_of

if TYPE_CHECKING:
    from .supervisor import Supervisor

SOCKET = "drill.sock"
KINDS = ("kill", "stop", "partition", "slow", "poison", "heal")
LINE_MAX = 64 * 1024
FOR_S_MAX = 86_400.0
_CREDENTIALS = struct.Struct("3i")


def open_socket(folder: Path, act: Callable[[socket.socket, str], None]) -> socket.socket:
    """A unix socket, with ``act`` (bind, connect) done to it. A path of a socket has 107 bytes at most and a run's folder may be
    deeper than that, so it is named by way of an open descriptor of the folder."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        act(end, f"/proc/self/fd/{fd}/{SOCKET}")
    except BaseException:
        end.close()
        raise
    finally:
        os.close(fd)
    return end


def _bind(end: socket.socket, path: str) -> None:
    before = os.umask(0o177)
    try:
        end.bind(path)
    finally:
        os.umask(before)


class DrillDesk:
    """Takes the drills of one run, for its supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._run, self._folder = supervisor, supervisor.folder
        self._lasting: dict[int, Drill] = {}
        self._ends: dict[int, asyncio.TimerHandle] = {}
        self._number = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        (self._folder / SOCKET).unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, sock=open_socket(self._folder, _bind), limit=LINE_MAX)

    def close(self) -> None:
        for handle in self._ends.values():
            handle.cancel()
        if self._server is not None:
            self._server.close()
            (self._folder / SOCKET).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            end = writer.get_extra_info("socket")
            _, user, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            answer = (
                self._answer(await reader.readline()) if user in (os.getuid(), 0) else {"error": "this run is another user's"}
            )
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):
            pass  # whoever asked has left, or has sent a line without end
        finally:
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            order = json.loads(line)
            if not isinstance(order, dict):
                raise ConfigError("a drill is a JSON object")
            return self._begin(order)
        except GossipError as error:
            return {"error": str(error), "hint": error.hint}
        except (ValueError, TypeError) as error:
            return {"error": f"not an order: {error}", "hint": None}

    def _begin(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Raises: ConfigError, BadFault: It cannot be done."""
        kind = order.get("drill")
        if kind not in KINDS:
            raise ConfigError(f"there is no drill {kind!r}", f"there are {', '.join(KINDS)}")
        if not self._run.is_training:
            raise ConfigError("this run does not train yet, or is about to end", "wait until its first round")
        now = time.monotonic()
        for_s = _seconds(order, "for_s", 0.0)
        fault = self._fault_of(str(kind), order, for_s)
        self._number += 1
        number = self._number
        until = now if kind in ("kill", "heal") else now + for_s
        what = {key: value for key, value in order.items() if key != "drill"}
        self._run.record("drill", None, number=number, drill=kind, **what)
        if kind == "heal":
            self.heal()
        elif kind == "kill":
            until += self._kill(order, number)
        elif kind == "stop":
            for peer in self._peers(order):
                self._run.stop_peer(peer, for_s, f"drill {number}: stop {peer}")
        else:
            assert fault is not None
            self._last(number, fault, now, until)
        return {"number": number, "t": now, "until": until}

    def _fault_of(self, kind: str, order: Mapping[str, Any], for_s: float) -> Fault | None:
        """What is to last beside processes; checks everything that a drill names, so that nothing is half done."""
        if kind == "heal":
            return None
        if kind == "partition":
            sides = order.get("sides")
            if not isinstance(sides, list) or len(sides) < 2:
                raise ConfigError("a partition has two sides at least", "for example: partition 0-4 5-7")
            named = tuple(tuple(self._known(peer) for peer in side) for side in sides)
            everyone = [peer for side in named for peer in side]
            if len(set(everyone)) != len(everyone) or not all(named):
                raise BadFault("each side of a partition has a peer at least, and no peer is on two")
            return Partition(named, 0.0, for_s, bool(order.get("one_way")))
        peers = self._peers(order)
        if kind == "slow":
            factor = order.get("factor")
            if not isinstance(factor, int | float) or not 1 < factor <= 1000:
                raise BadFault(f"factor = {factor!r}: how many times as long a step takes, above 1, at most 1000")
            if len(peers) > 1:
                raise ConfigError("one drill slows one peer down", "slow 3, then slow 4")
            return Slow(peers[0], float(factor))
        if kind == "poison":
            return self._lie(peers, order)
        gone = [peer for peer in peers if not self._run.is_here(peer)]
        if gone:
            raise ConfigError(f"peer {gone[0]} is not there", "who was killed for good, or has finished, cannot be drilled")
        return None

    def _lie(self, peers: tuple[int, ...], order: Mapping[str, Any]) -> Liar:
        attack = str(order.get("attack", "")).replace("-", "_")
        if attack not in ATTACKS:
            raise BadFault(f"there is no attack {attack!r}", f"attacks: {', '.join(ATTACKS)}")
        if attack in DATA_ATTACKS:
            raise BadFault(f"{attack} is about a peer's data, which it has read when a drill comes", "take sign_flip")
        strength = order.get("strength")
        lie = Liar(attack, peers, ATTACKS[attack].strength if strength is None else float(strength))
        if attack in LIES and LIES[attack].shape == "apart":
            raise BadFault(f"{attack} needs to be planned: it tells each neighbour something else", f"--fault {lie}")
        FaultPlan((lie,)).real()
        return lie

    def _peers(self, order: Mapping[str, Any]) -> tuple[int, ...]:
        peers = order.get("peers")
        if not isinstance(peers, list) or not peers:
            raise ConfigError("a drill names a peer", "for example: kill 3")
        return tuple(dict.fromkeys(self._known(peer) for peer in peers))

    def _known(self, peer: Any) -> int:
        count = self._run.config.peers
        if isinstance(peer, bool) or not isinstance(peer, int) or not 0 <= peer < count:
            raise BadFault(f"there is no peer {peer!r}", f"{count} peers are numbered 0 to {count - 1}")
        return peer

    def _kill(self, order: Mapping[str, Any], number: int) -> float:
        after_s = None if order.get("for_good") else _seconds(order, "restart_s", 2.0)
        for peer in self._peers(order):
            self._run.kill_peer(peer, after_s, f"drill {number}: kill {peer}")
        return after_s or 0.0

    def _last(self, number: int, fault: Fault, now: float, until: float) -> None:
        """Begins what lasts, and ends it when its time is over."""
        self._lasting[number] = Drill(number, fault, now, until)
        write(self._folder / "faults", self._lasting.values())
        word = _word(number, fault)
        extra = {"seconds": until - now}
        for peer in _named(fault)[:1]:  # one row for all, as when it is planned
            self._run.record("fault", peer, kind=_kind(fault), round=self._run.view.round, fault=word, **extra)
        loop = asyncio.get_running_loop()
        self._ends[number] = loop.call_later(until - now, self._end, number)

    def _end(self, number: int) -> None:
        drill = self._lasting.pop(number, None)
        handle = self._ends.pop(number, None)
        if drill is None or handle is None:
            return
        handle.cancel()
        write(self._folder / "faults", self._lasting.values())
        word = _word(number, drill.fault)
        kind, peer = _kind(drill.fault), _named(drill.fault)[0]
        self._run.record("fault_over", peer, kind=kind, round=self._run.view.round, fault=word)

    def heal(self) -> None:
        """Ends all that lasts, and wakes whoever was stopped."""
        for number in list(self._lasting):
            self._end(number)
        self._run.wake_all()


def _seconds(order: Mapping[str, Any], key: str, otherwise: float) -> float:
    value = order.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= FOR_S_MAX:
        raise ConfigError(f"{key} = {value!r} is no duration", f"seconds, at most {FOR_S_MAX:g}")
    return float(value)


def _kind(fault: Fault) -> str:
    if isinstance(fault, Liar):
        return fault.attack
    return "slow" if isinstance(fault, Slow) else kind_of(fault)  # type: ignore[arg-type]


def _named(fault: Fault) -> tuple[int, ...]:
    if isinstance(fault, Partition):
        return tuple(peer for side in fault.sides for peer in side)
    return fault.peers if isinstance(fault, Liar) else (fault.peer,)  # type: ignore[union-attr, return-value]


def _word(number: int, fault: Fault) -> str:
    return f"drill {number}: {str(fault).split('@')[0]}"


def ask(folder: Path, order: Mapping[str, Any], timeout_s: float = 10.0) -> dict[str, Any]:
    """Sends a drill to the run in ``folder``. Returns its answer.

    Raises: ConfigError: The run does not run, allows no drills, or says that this one cannot be.
    """
    try:
        end = open_socket(folder, socket.socket.connect)
    except FileNotFoundError:
        raise _no_desk(folder) from None
    except OSError as error:
        raise ConfigError(f"the run in {folder} does not answer: {error}", "it may have been killed") from error
    with end:
        end.settimeout(timeout_s)
        try:
            end.sendall(json.dumps(order).encode() + b"\n")
            line = end.makefile("rb").readline(LINE_MAX)
            answer = json.loads(line)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the run in {folder} does not answer: {error}", "it may just have ended") from error
    if "error" in answer:
        raise ConfigError(answer["error"], answer.get("hint"))
    return dict(answer)


def _no_desk(folder: Path) -> ConfigError:
    from gossip.config import RunConfig

    if not (folder / "config.json").is_file():
        return ConfigError(f"there is no run in {folder}", "give its folder, or its name under runs/")
    if not RunConfig.load(folder / "config.json").drills:
        return ConfigError(f"the run in {folder} allows no drills", "start it with: gossip run --drills ...")
    return ConfigError(f"the run in {folder} is over, or has not begun", "gossip drill is for a run that trains")
