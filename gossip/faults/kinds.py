"""Faults that both real runs and the simulator support: crash, restart, hang, slow, and attacks of
Byzantine peers on their updates.

A crash, a restart or a hang happens either in a round (``round``) or at a time (``at_s``, in
seconds since the run began). Exactly one of the two fields is set.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal, TypeAlias

from gossip.aggregators.attacks import ATTACKS as ATTACKS, AttackKind
from gossip.errors import BadFault

from .declare import KINDS, Fault, Kind, add, declared
from .units import (
    Duration,
    Function,
    Number,
    OnePeer,
    Peer,
    PeerNumbers,
    RoundNumber,
    Strength,
    Time,
)

STRENGTH_MAX = 1e12


@declared("{peer}@{round}", "3@50", real=True)
@dataclass(frozen=True, slots=True)
class Crash(Fault):
    """The peer's trainer and node receive SIGKILL at the beginning of the round.
    ``crash:server@50`` kills the server of the round after it has received the updates and before
    it sends a result."""

    peer: Annotated[
        int | Literal["server"], Peer(server=True, note=", or server in place of a peer")
    ]
    round: RoundNumber | None = None
    at_s: Duration | None = None


@declared("{peer}@{round}+{after_s}", "3@50+2s", real=True)
@dataclass(frozen=True, slots=True)
class Restart(Fault):
    """The peer receives SIGKILL, as with ``crash``. After the given time the launcher starts the
    peer's next incarnation."""

    peer: OnePeer
    round: RoundNumber | None
    after_s: Duration
    at_s: Duration | None = None


@declared("{peer}@{round}+{for_s}", "3@50+2s", real=True)
@dataclass(frozen=True, slots=True)
class Hang(Fault):
    """The peer's trainer and node receive SIGSTOP. After the given time the launcher sends
    SIGCONT."""

    peer: OnePeer
    round: RoundNumber | None
    for_s: Duration
    at_s: Duration | None = None


@dataclass(frozen=True, slots=True)
class Slow(Fault):
    """Each step of the peer takes this many times as long, for the whole run. ``slow:2*4@20s+30s``
    begins after 20 s and lasts 30 s."""

    peer: OnePeer
    factor: Annotated[float, Number("FACTOR", "a factor", least=1.0, beyond="would be faster")]
    at_s: Time | None = None
    for_s: Duration | None = None

    def is_on(self, run_s: float | None) -> bool:
        """Whether steps are slow now. ``run_s``: seconds since the run began; None if the run has
        not begun."""
        if self.at_s is None:
            return True
        return run_s is not None and self.at_s <= run_s < self.at_s + (self.for_s or inf)


def _check_slow(fault: Slow, where: str, usage: str) -> None:
    if fault.at_s is None and fault.for_s is not None:
        raise BadFault(f"{where}: for_s needs at_s, the time at which the fault begins", usage)


add(
    Kind(
        "slow",
        Slow,
        "{peer}*{factor}[@{at_s}][+{for_s}]",
        "2*4",
        True,
        note=" (without TIME: all through the run)",
        check=_check_slow,
    )
)


@dataclass(frozen=True, slots=True)
class ByzantineFault(Fault):
    """The peers send false vectors instead of their updates, for the whole run. The meaning of
    ``strength`` depends on the attack; None means the default of the attack."""

    attack: Annotated[str, Function()]
    peers: PeerNumbers
    strength: Annotated[float | None, Strength()]

    @property
    def kind(self) -> str:
        return "attack" if ":" in self.attack else self.attack

    @property
    def built_in(self) -> AttackKind | None:
        """The attack with the name ``attack``; None if it is not built in. Reading a plan does not
        load a user's file. The processes of the run load the file with ``kind_of``."""
        return ATTACKS.get(self.attack)

    @property
    def strength_to_make(self) -> float | None:
        """Strength for ``attacks.make``; None if the attack has no strength."""
        known = self.built_in
        return None if known is not None and not known.meaning else self.strength


Blow: TypeAlias = Crash | Restart | Hang
RealFault: TypeAlias = Crash | Restart | Hang | Slow | ByzantineFault


def _check_strength(fault: ByzantineFault, where: str, usage: str) -> None:
    attack, strength = fault.built_in, fault.strength
    if attack is None or strength is None or not attack.meaning:
        return
    if not 0 < strength <= STRENGTH_MAX:
        raise BadFault(
            f"{where}: strength {strength:g} is not above 0 and at most {STRENGTH_MAX:g}", usage
        )
    words, fine = attack.allowed
    if not fine(strength):
        raise BadFault(f"{where}: strength {strength:g} ({attack.meaning}) is not {words}", usage)


def attacker(
    attack: str, peers: tuple[int, ...], strength: float | None, where: str
) -> ByzantineFault:
    """Return a Byzantine fault. Raises: BadFault: The strength is invalid."""
    fault = ByzantineFault(attack, peers, strength)
    _check_strength(fault, where, KINDS[attack].usage)
    return fault


def _kind_of(attack: AttackKind) -> Kind:
    if not attack.meaning:
        fixed = {"attack": attack.name, "strength": 1.0}
        return Kind(attack.name, ByzantineFault, "{peers}", "5,6", True, fixed)
    return Kind(
        attack.name,
        ByzantineFault,
        "{peers}[*{strength}]",
        f"5,6*{1.5 if attack.strength is None else attack.strength:g}",
        True,
        {"attack": attack.name},
        {"strength": attack.strength},
        f" ({attack.meaning})",
        _check_strength,
    )


for _attack in ATTACKS.values():
    add(_kind_of(_attack))
add(
    Kind(
        "attack",
        ByzantineFault,
        "{attack}:{peers}[*{strength}]",
        "my_attacks.py:mine:5,6*2",
        True,
        otherwise={"strength": None},
        note=" (an attack of your own)",
    )
)
