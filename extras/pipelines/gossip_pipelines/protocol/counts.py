"""Reports of the members of a stage about the micro-batches in their sums."""

from __future__ import annotations

from collections.abc import Iterable

from gossip.core import Counted, MemberTable, PeerId


class StageCounts:
    """The latest report of each other member in this round."""

    def __init__(self, members: MemberTable) -> None:
        self.members = members
        # Incarnation and report of each peer.
        self._reports: dict[PeerId, tuple[int, Counted]] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._reports)

    def next_number(self) -> int:
        """Return the number of this peer's next report."""
        self._number += 1
        return self._number

    def clear(self) -> None:
        self._reports.clear()

    def record(self, sender: PeerId, incarnation: int, report: Counted) -> tuple[bool, bool]:
        """Store a report. Return whether it is newer than the sender's previous report, and whether
        a micro-batch of the previous report is missing in it."""
        life, before = self._reports.get(sender, (-1, None))
        if before is not None and (life, before.number) >= (incarnation, report.number):
            return False, False
        self._reports[sender] = incarnation, report
        return True, before is not None and not {*before.micro_batches} <= {*report.micro_batches}

    def counted_by(self, peer: PeerId) -> tuple[int, ...]:
        """Return the micro-batches in a member's sum. A report from an earlier incarnation does not
        count."""
        life, report = self._reports.get(peer, (-1, None))
        if report is None or life < self.members.incarnation_of(peer):
            return ()
        return report.micro_batches

    def counted_by_any(self, peers: Iterable[PeerId]) -> set[int]:
        return {micro_batch for peer in peers for micro_batch in self.counted_by(peer)}

    def trace_by(self, peer: PeerId, micro_batch: int) -> bytes | None:
        """Return a member's trace of a micro-batch; None if the micro-batch is not in the member's
        sum."""
        _, report = self._reports.get(peer, (-1, None))
        if report is None or micro_batch not in report.micro_batches:
            return None
        return report.traces[report.micro_batches.index(micro_batch)]
