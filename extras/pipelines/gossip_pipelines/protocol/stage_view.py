"""The view of the membership for the rounds of one stage."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gossip.core import Member, MemberTable, PeerId


class StageView:
    """A ``MemberTable`` that contains only the peers of one stage.

    Args:
        table: Table of all members.
        stage: Peers that may be in the stage, including the local peer.
    """

    def __init__(self, table: MemberTable, stage: Collection[PeerId]) -> None:
        self._table = table
        self._stage = frozenset(stage)
        self.local = table.local
        self.skip_reason, self.is_gone = table.skip_reason, table.is_gone
        self.has_ended, self.speaks_on = table.has_ended, table.speaks_on
        self.note_state, self.note_load = table.note_state, table.note_load
        self.forget_load = table.forget_load
        self.reachable, self.ended = table.reachable, table.ended

    @property
    def version(self) -> int:
        """Version number. It changes whenever a result of ``is_gone`` or ``met`` may change."""
        return self._table.version

    @property
    def members(self) -> Mapping[PeerId, Member]:
        """Known members of the stage."""
        return {p: member for p, member in self._table.members.items() if p in self._stage}

    def met(self) -> tuple[PeerId, ...]:
        """Return ``MemberTable.met`` without peers of other stages. The methods below do the same
        for other methods of ``MemberTable``."""
        return self._of_stage(self._table.met())

    def alive(self) -> tuple[PeerId, ...]:
        return self._of_stage(self._table.alive())

    def within_reach(self) -> tuple[PeerId, ...]:
        return self._of_stage(self._table.within_reach())

    def newcomers(self, roster: Collection[PeerId]) -> set[PeerId]:
        return self._table.newcomers(roster) & self._stage

    def _of_stage(self, peers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        return tuple([peer for peer in peers if peer in self._stage])
