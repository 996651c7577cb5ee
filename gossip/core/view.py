"""The membership as the rounds see it: the peers to wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from gossip.topologies import Plan, Roster

from .membership import Member
from .messages import PeerId


class RollingTopology(Protocol):
    def __call__(self, roster: Roster, round_id: int, seed: int, *, shards: int) -> Plan: ...


class View(Protocol):
    def skip_reason(self, peer: PeerId) -> str:
        """Return the reason not to wait for a peer now; "" if it is usable."""

    def reachable(self, peers: Collection[PeerId]) -> Collection[PeerId]:
        """Return the peers among ``peers`` without a reason to skip them, and the local peer."""

    @property
    def ended(self) -> set[PeerId]:
        """Peers that will not return, by the launcher."""

    @property
    def version(self) -> int:
        """Number that changes if a result of ``is_gone`` or ``met`` may change."""

    def is_gone(self, peer: PeerId) -> bool:
        """Whether a peer is dead or has left."""

    def has_ended(self, peer: PeerId) -> bool:
        """Whether the launcher has reported that a peer will not return."""

    def speaks_on(self, peer: PeerId, now: float) -> bool:
        """Whether a peer is present, although it was reported as left."""

    def note_load(self, now: float, for_s: float = 0.0) -> None:
        """Record that large payloads move, here or elsewhere. Replies may wait behind them for at
        least ``for_s``."""

    def note_state(self, peer: PeerId, until: float) -> None:
        """Record that a state, or the rounds since, are being sent to ``peer`` until the given time
        at the latest. For the local peer: from others."""

    def forget_load(self) -> None:
        """Record that large payloads no longer move."""

    def met(self) -> Iterable[PeerId]:
        """Return all peers that are or were present."""


class MembersView(View, Protocol):
    """Members of the rounds: all peers, or in a pipeline those of one stage."""

    local: PeerId

    @property
    def members(self) -> Mapping[PeerId, Member]:
        """Members by peer, as far as they are known."""

    def met(self) -> tuple[PeerId, ...]: ...

    def alive(self) -> tuple[PeerId, ...]: ...

    def within_reach(self) -> tuple[PeerId, ...]: ...

    def newcomers(self, roster: Collection[PeerId]) -> set[PeerId]: ...
