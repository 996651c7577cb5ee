"""Interface through which the rounds read the membership: the peers for which a round waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from gossip.topologies import Plan, Roster

from .membership import Member
from .messages import PeerId


class RollingTopology(Protocol):
    def __call__(self, roster: Roster, round_id: int, seed: int, *, shards: int) -> Plan: ...


class MembersView(Protocol):
    """Membership restricted to the peers that share rounds: all peers, or the peers of one stage in
    a pipeline."""

    local: PeerId

    def skip_reason(self, peer: PeerId) -> str:
        """Return the reason not to wait for a peer now, or "" if there is none."""

    def reachable(self, peers: Collection[PeerId]) -> Collection[PeerId]:
        """Return the peers among ``peers`` that are not skipped. The local peer is never
        skipped."""

    @property
    def ended(self) -> set[PeerId]:
        """Peers that will not return, as reported by the launcher."""

    @property
    def version(self) -> int:
        """Counter that rises whenever a result of ``is_gone`` or ``met`` may change."""

    def is_gone(self, peer: PeerId) -> bool:
        """Whether a peer is dead or has left."""

    def has_ended(self, peer: PeerId) -> bool:
        """Whether the launcher has reported that a peer will not return."""

    def speaks_on(self, peer: PeerId, now: float) -> bool:
        """Whether a peer that was reported as left still sends messages."""

    def note_load(self, now: float, for_s: float = 0.0) -> None:
        """Record that large payloads are in transfer to this peer or another peer. For at least
        ``for_s`` seconds, replies may be queued behind these payloads."""

    def note_state(self, peer: PeerId, until: float) -> None:
        """Record that ``peer``, which may be the local peer, is receiving a state, or the commits
        since that state, until the given time at the latest."""

    def forget_load(self) -> None:
        """Record that no large payloads are in transfer any longer."""

    def met(self) -> tuple[PeerId, ...]:
        """Return all peers that are or were members."""

    @property
    def members(self) -> Mapping[PeerId, Member]:
        """Known members, by peer."""

    def alive(self) -> tuple[PeerId, ...]: ...

    def within_reach(self) -> tuple[PeerId, ...]: ...

    def newcomers(self, roster: Collection[PeerId]) -> set[PeerId]: ...
