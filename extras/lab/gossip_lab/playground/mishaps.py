"""Faults of a world. The playground supports some faults of fault plans, and lets a fault name many
peers.

The faults of a world are written like those of a run (``crash:3@50``, ``restart:3@50+2s``,
``hang:3@50+2s``, ``slow:2*4``, ``sign_flip:5,6*10``, ``label_flip:5``), and crash, restart, hang
and slow may name a range of peers, as in ``crash:0-49@50``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gossip.errors import BadFault
from gossip.faults import Blow, ByzantineFault, Crash, Fault, Hang, Restart, Slow, parse, peers_of

_RANGE = re.compile(r"(?P<kind>crash|restart|hang|slow):(?P<peers>\d[\d,-]*)(?P<rest>.*)")


@dataclass(frozen=True, slots=True)
class Mishaps:
    """Faults of a world.

    Attributes:
        blows: Crashes, then restarts, then hangs; each has a single peer.
        slow: Slow peers; each fault has a single peer.
        attacks: Attacks on updates and on data; each has one or more peers.
        byzantine: All peers of ``attacks``.
    """

    blows: tuple[Blow, ...] = ()
    slow: tuple[Slow, ...] = ()
    attacks: tuple[ByzantineFault, ...] = ()
    byzantine: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        peers = frozenset(peer for attack in self.attacks for peer in attack.peers)
        object.__setattr__(self, "byzantine", peers)


def read_mishaps(words: Iterable[str], peers: int) -> Mishaps:
    """Read the faults of a world with this number of peers.

    Raises: BadFault: A text is not a fault, the playground does not support the fault, or there is
        no such peer.
    """
    faults = [fault for word in words for each in _one_by_one(word) for fault in parse(each)]
    by_kind: dict[type[Fault], list[Any]] = {
        kind: [] for kind in (Crash, Restart, Hang, Slow, ByzantineFault)
    }
    attacked: set[int] = set()
    for fault in faults:
        if type(fault) not in by_kind:
            raise BadFault(
                f"{fault}: the playground does not support it",
                "it plays crash, restart, hang, slow and attacks; gossip simulate plays all faults",
            )
        victims = fault.peers if isinstance(fault, ByzantineFault) else (fault.peer,)  # type: ignore[attr-defined]
        if outside := [peer for peer in victims if peer == "server" or peer >= peers]:
            raise BadFault(
                f"{fault}: there is no peer {outside[0]}",
                f"the peers of this world are 0 to {peers - 1}",
            )
        if isinstance(fault, ByzantineFault):
            if twice := attacked.intersection(victims):
                raise BadFault(f"{fault}: peer {min(twice)} has another attack already")
            attacked.update(victims)
        by_kind[type(fault)].append(fault)
    *blows, slow, attacks = map(tuple, by_kind.values())
    return Mishaps(tuple(chain(*blows)), slow, attacks)


def _one_by_one(word: str) -> list[str]:
    """Split a fault that names several peers into one text for each peer. Return other texts
    unchanged."""
    match = _RANGE.fullmatch(word.strip())
    if match is None or not {",", "-"}.intersection(match["peers"]):
        return [word]
    return [f"{match['kind']}:{peer}{match['rest']}" for peer in peers_of(match["peers"])]
