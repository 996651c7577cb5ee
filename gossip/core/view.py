"""View of the rounds on the membership: the peers that something is expected of, and whether other
stages may go on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from gossip.topologies import Plan, Roster

from .events import Effect
from .membership import Member
from .messages import PeerId


class RollingTopology(Protocol):
    def __call__(self, roster: Roster, round_id: int, seed: int, *, shards: int) -> Plan: ...


class StageGate(Protocol):
    """When the rounds of one stage of a pipeline may go on."""

    def on_round_committed(
        self, round_id: int, roster: tuple[PeerId, ...], pass_us: tuple[int, ...], now: float
    ) -> list[Effect]:
        """The own stage has committed the round. ``roster``: of the next one; ``pass_us``: what
        counts as the time of each of it for a micro-batch."""

    def is_open(self, round_id: int) -> bool:
        """Whether every stage has."""


class View(Protocol):
    def skip_reason(self, peer: PeerId) -> str:
        """Why nothing is expected of a peer now; "" when it is."""

    @property
    def version(self) -> int:
        """Changes whenever ``is_gone`` or ``met`` may say something else of anybody."""

    def is_gone(self, peer: PeerId) -> bool:
        """Whether it is dead or has left."""

    def has_ended(self, peer: PeerId) -> bool:
        """Whether it is known not to come back, by the word of whoever starts the peers."""

    def speaks_on(self, peer: PeerId, now: float) -> bool:
        """Whether a peer that is said to have left is there all the same."""

    def note_load(self, now: float, for_s: float = 0.0) -> None:
        """Large payloads move, here or elsewhere: answers may wait behind them, for so long at
        least."""

    def note_state(self, peer: PeerId, until: float) -> None:
        """A state, or the rounds since, are on their way to this peer, until then at the latest:
        from us; to us where it is the local one."""

    def forget_load(self) -> None:
        """Payloads were expected to take time, and do not."""

    def met(self) -> Iterable[PeerId]:
        """Whoever is known to be there, or to have been."""


class MembersView(View, Protocol):
    """Members of the rounds: all peers, or in a pipeline those of one stage."""

    local: PeerId

    @property
    def members(self) -> Mapping[PeerId, Member]:
        """Each that is known of."""

    def met(self) -> tuple[PeerId, ...]: ...

    def alive(self) -> tuple[PeerId, ...]: ...

    def within_reach(self) -> tuple[PeerId, ...]: ...

    def newcomers(self, roster: Collection[PeerId]) -> set[PeerId]: ...
