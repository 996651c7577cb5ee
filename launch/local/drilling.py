"""Server of drills in a live run. It listens on a unix socket in the run's folder, which only the
owner of the run can open.

A request is a line of JSON, such as ``{"drill": "stop", "peers": [3], "for_s": 5}``. The reply is a
line ``{"number": 1}`` or ``{"error": ..., "hint": ...}``. Faults of processes are applied by
signals; a process is identified by pid and start time. Lasting faults (cut links, slow and
Byzantine peers) are written to the file that nodes and trainers read (``gossip.faults.drills``).
``desks`` sends the requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from gossip.aggregators.attacks import DATA_ATTACKS
from gossip.errors import BadFault, ConfigError, GossipError, UnknownName
from gossip.faults import (
    ATTACKS,
    ByzantineFault,
    Drill,
    Fault,
    FaultPlan,
    Partition,
    Slow,
    attacker,
    check_effect,
    peers_word,
    write,
)
from gossip.observe import events
from gossip.run import peers_in, read_seed

from .desks import name_of, open_socket
from .processes import PeerProcesses
from .running import OngoingRun

KINDS = ("kill", "stop", "leave", "partition", "slow", "poison", "heal")
LINE_MAX = 64 * 1024
FOR_S_MAX = 86_400.0
_CREDENTIALS = struct.Struct("3i")


def _bind(end: socket.socket, path: str) -> None:
    before = os.umask(0o177)
    try:
        end.bind(path)
    finally:
        os.umask(before)


_DrillAct: TypeAlias = Callable[[int], Mapping[str, Any] | None]
"""Function that carries out an order that has passed all checks. It receives the number of the
drill, and its result is part of the reply."""


class DrillServer:
    """Applies drills: faults of processes to the peers of one launcher, and lasting faults to all
    peers.

    Args:
        run: Run to which the peers belong.
        first_peer: First peer that the launcher started; None if the launcher began the run.
    """

    def __init__(
        self, run: OngoingRun, processes: PeerProcesses, first_peer: int | None = None
    ) -> None:
        self._run, self._folder, self._name = run, run.folder, name_of(first_peer)
        self._processes = processes
        self._lasting: dict[int, Drill] = {}
        self._ends: dict[int, asyncio.TimerHandle] = {}
        self._number = 0
        self._server: asyncio.Server | None = None

    @property
    def path(self) -> Path:
        return self._folder / self._name

    async def open(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=open_socket(self._folder, self._name, _bind), limit=LINE_MAX
        )

    def close(self) -> None:
        for handle in self._ends.values():
            handle.cancel()
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            end = writer.get_extra_info("socket")
            _, user, _ = _CREDENTIALS.unpack(
                end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            answer = (
                self._answer(await reader.readline())
                if user in (os.getuid(), 0)
                else {"error": "this run is another user's"}
            )
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):
            pass  # The client has disconnected, or has sent a line without end.
        finally:
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            order = json.loads(line)
            if not isinstance(order, dict):
                raise ConfigError("a drill must be a JSON object")
            if order.get("drill") == "who":
                here = [peer for peer in self._run.peers if self._processes.is_here(peer)]
                return {"peers": here}
            return self._begin(order)
        except GossipError as error:
            return {"error": str(error), "hint": error.hint, "over": self._run.is_over}
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            return {"error": f"not an order: {error}", "hint": None}

    def _begin(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Perform an order. Raises: ConfigError, BadFault: The order is not possible, and nothing
        has changed."""
        kind = order.get("drill")
        if kind not in KINDS:
            raise UnknownName("drill", str(kind), KINDS)
        if self._run.is_over:
            raise ConfigError("this run is about to end")
        if not self._run.is_training:
            raise ConfigError("this run does not train yet", "wait until its first round")
        act = self._check(str(kind), order)
        if order.get("only_check"):
            return {}
        self._number += 1
        what = {key: value for key, value in order.items() if key != "drill"}
        self._run.record(events.Drill(number=self._number, drill=kind, **what))
        return {"number": self._number, **(act(self._number) or {})}

    def _check(self, kind: str, order: Mapping[str, Any]) -> _DrillAct:
        """Check an order completely. Return a function that carries it out."""
        if kind == "heal":
            return lambda _: self._heal()
        if kind == "partition":
            sides, for_s = self._sides(order.get("sides")), _seconds(order, "for_s")
            fault = Partition(sides, 0.0, for_s, bool(order.get("one_way")))
            return partial(self._last, fault, for_s)
        peers = self._peers(order)
        act: Callable[[int, str], None]
        match kind:
            case "slow":
                return partial(self._last, self._slow(peers, order), _seconds(order, "for_s"))
            case "poison":
                return partial(self._last, self._lie(peers, order), _seconds(order, "for_s"))
            case "stop":
                act = partial(self._processes.stop_peer, _seconds(order, "for_s"))
            case "kill":
                after_s = (
                    None
                    if order.get("for_good")
                    else _seconds(order, "restart_s", 2.0, at_once=True)
                )
                act = partial(self._processes.kill_peer, after_s)
            case _:
                act = self._processes.ask_peer_to_leave
        gone = tuple(peer for peer in peers if not self._processes.is_here(peer))
        if gone:
            plural = "peers" if len(gone) > 1 else "peer"
            hint = (
                "a drill needs a running peer: wait if the peer is being restarted; peers that "
                "were killed for good, have left or have finished do not return"
            )
            raise ConfigError(
                f"{plural} {peers_word(gone)} {'are' if len(gone) > 1 else 'is'} not running", hint
            )

        def hit(number: int) -> None:
            for peer in peers:
                act(peer, f"drill {number}: {kind} {peer}")

        return hit

    def _sides(self, sides: Any) -> tuple[tuple[int, ...], ...]:
        if (
            not isinstance(sides, list)
            or len(sides) < 2
            or not all(isinstance(side, list) and side for side in sides)
        ):
            raise ConfigError(
                "a partition needs at least two sides, each with a peer",
                "for example: partition 0-4 5-7",
            )
        named = tuple(tuple(self._known(peer) for peer in side) for side in sides)
        everyone = sorted(peer for side in named for peer in side)
        twice = [peer for peer, following in pairwise(everyone) if peer == following]
        if twice:
            raise BadFault(f"peer {twice[0]} is listed twice in the partition")
        return named

    def _slow(self, peers: tuple[int, ...], order: Mapping[str, Any]) -> Slow:
        factor = order.get("factor")
        if not isinstance(factor, int | float) or not 1 < factor <= 1000:
            raise BadFault(
                f"factor = {factor!r}: a step must be longer by a factor above 1, at most 1000"
            )
        if len(peers) > 1:
            raise ConfigError("a drill slows one peer", "slow 3, then slow 4")
        return Slow(peers[0], float(factor))

    def _lie(self, peers: tuple[int, ...], order: Mapping[str, Any]) -> ByzantineFault:
        attack, strength = str(order.get("attack", "")).replace("-", "_"), order.get("strength")
        if attack not in ATTACKS:
            raise UnknownName("attack", attack, ATTACKS)
        if attack in DATA_ATTACKS:
            raise BadFault(
                f"{attack} changes a peer's data, which a running peer has already read",
                "use sign_flip",
            )
        if strength is not None and not ATTACKS[attack].meaning:
            raise BadFault(f"{attack} has no strength", "leave out --strength")
        if strength is not None and (
            isinstance(strength, bool) or not isinstance(strength, int | float)
        ):
            raise BadFault(f"strength = {strength!r} is not a number: {ATTACKS[attack].meaning}")
        lie = attacker(
            attack,
            peers,
            ATTACKS[attack].strength if strength is None else float(strength),
            f"poison with {attack}",
        )
        if ATTACKS[attack].shape == "apart":
            raise BadFault(
                f"{attack} has to be planned: it sends each neighbour a different update",
                f"--fault {lie}",
            )
        FaultPlan((lie,)).real()
        check_effect(lie, self._run.config.peers - len(peers))
        return lie

    def _peers(self, order: Mapping[str, Any]) -> tuple[int, ...]:
        peers = order.get("peers")
        if not isinstance(peers, list) or not peers:
            raise ConfigError("a drill needs a peer", "for example: kill 3")
        named = tuple(dict.fromkeys(self._known(peer) for peer in peers))
        ended = [
            peer
            for peer in named
            if (seed := read_seed(self._folder / "seeds", peer)) is not None and seed.ended
        ]
        if ended:
            raise ConfigError(f"peer {ended[0]} has ended, and is not restarted")
        return named

    def _known(self, peer: Any) -> int:
        """Return ``peer`` if it is an initial peer of the run or a newcomer. Raises: BadFault: It
        is neither."""
        known = {*range(self._run.config.peers), *peers_in(self._folder / "seeds")}
        if isinstance(peer, bool) or not isinstance(peer, int) or peer not in known:
            raise BadFault(
                f"there is no peer {peer!r}", f"there are {peers_word(tuple(sorted(known)))}"
            )
        return peer

    # --- faults with a duration -------------------------------------------------------------------

    def _last(self, fault: Fault, for_s: float, number: int) -> None:
        """Start a lasting fault, and schedule its end."""
        now = time.monotonic()
        self._lasting[number] = Drill(number, fault, now, now + for_s)
        write(self._folder / "faults", self._lasting.values())
        word = _word(number, fault)
        for peer in fault.victims[:1]:  # one event for all peers, as for a planned fault
            at = self._run.view.progress.round
            self._run.record(
                events.Fault(peer=peer, kind=fault.kind, round=at, fault=word, seconds=for_s)
            )
        self._ends[number] = asyncio.get_running_loop().call_later(for_s, self._end, number)

    def _end(self, number: int) -> None:
        drill = self._lasting.pop(number, None)
        handle = self._ends.pop(number, None)
        if drill is None or handle is None:
            return
        handle.cancel()
        write(self._folder / "faults", self._lasting.values())
        word, at = _word(number, drill.fault), self._run.view.progress.round
        kind, peer = drill.fault.kind, drill.fault.victims[0]
        self._run.record(events.FaultOver(peer=peer, kind=kind, round=at, fault=word))

    def _heal(self) -> dict[str, Any]:
        """End all lasting faults, and wake all stopped peers. Return the ended faults and the woken
        peers."""
        ended = [_word(number, drill.fault) for number, drill in self._lasting.items()]
        for number in list(self._lasting):
            self._end(number)
        if not ended:
            # A killed launcher may have left faults in the file. Remove them, too.
            write(self._folder / "faults", ())
        return {"ended": ended, "woken": self._processes.wake_all()}


def _seconds(
    order: Mapping[str, Any], key: str, otherwise: float = 0.0, at_once: bool = False
) -> float:
    value = order.get(key, otherwise)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= FOR_S_MAX
        or not (value or at_once)
    ):
        least = "0 or more" if at_once else "above 0"
        raise ConfigError(
            f"{key} = {value!r} is not a duration", f"seconds, {least}, at most {FOR_S_MAX:g}"
        )
    return float(value)


def _word(number: int, fault: Fault) -> str:
    return f"drill {number}: {str(fault).split('@')[0]}"
