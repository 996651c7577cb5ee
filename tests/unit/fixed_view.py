"""A view of the peers without a membership: who is skipped and who is gone is said by hand."""

from __future__ import annotations

from collections.abc import Collection

from gossip.core.messages import PeerId


class FixedView:
    """Knows ``peers``: all are there but those whom a test puts into ``skipped`` or ``gone``."""

    def __init__(self, peers: tuple[PeerId, ...] = ()) -> None:
        self.peers = peers
        self.skipped: dict[PeerId, str] = {}
        self.gone: set[PeerId] = set()

    def skip_reason(self, peer: PeerId) -> str:
        return self.skipped.get(peer, "dead" if peer in self.gone else "")

    def reachable(self, peers: Collection[PeerId]) -> list[PeerId]:
        return [peer for peer in peers if not self.skip_reason(peer)]

    ended = frozenset[PeerId]()

    @property
    def version(self) -> int:
        return len(self.gone)

    def speaks_on(self, peer: PeerId, now: float) -> bool:
        return False

    def note_state(self, peer: PeerId, until: float) -> None:
        pass

    def note_load(self, now: float, for_s: float = 0.0) -> None:
        pass

    def forget_load(self) -> None:
        pass

    def has_ended(self, peer: PeerId) -> bool:
        return False

    def is_gone(self, peer: PeerId) -> bool:
        return peer in self.gone

    def met(self) -> tuple[PeerId, ...]:
        return self.peers
