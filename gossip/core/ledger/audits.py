"""Wrong results for micro-batches: members of a stage compute some micro-batches again, and report
differences in commits.

No peer can prove to another what it was sent. So an auditor requests from both neighbours of the
audited member what they sent to it and received from it. The member reports for each counted
micro-batch what it received and sent (``Counted.traces``). If its report agrees with its neighbours
but not with what the layers compute, either the member or its accusers are Byzantine. More than f
members of its stage, of which one is honest, decide.

If the report contradicts a neighbour, one of the two is Byzantine, and nothing shows which. A
Byzantine member contradicts the next stage again and again. An honest member contradicts only the
Byzantine peers of the next stage. So contradictions of the next stage count once they concern more
members than may be Byzantine there. Contradictions of the stage before do not count: a Byzantine
peer there may have sent something in the place of another peer, and the honest peer that took over
its work then denies it.

The table is a pure function of the commits, as trust is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from gossip.core.messages import AuditVote, Commit, PeerId

WINDOW = 1024
"""Rounds, after which a vote is forgotten."""
VOTES_MAX = 16
"""Most votes stored of one member, the latest ones. No member can displace the votes of another."""
MOST_ROWS = 2**12

Answer: TypeAlias = tuple[PeerId, int, int]
"""Answer of a peer, in a round, for a micro-batch."""
Sides: TypeAlias = tuple[PeerId | None, PeerId | None]
"""The neighbours whom it contradicts, before and behind it."""
ADMITTED: Sides = (None, None)


class AuditTable:
    """Args: ``needed``: so many members have to say the same (``CoreSettings.audit_votes``)."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self._votes: dict[PeerId, dict[Answer, Sides]] = {}  # by who says so
        self._found: dict[PeerId, int] = {}  # liars, and the round by which they were found last

    def wants(self, by: PeerId, vote: AuditVote) -> bool:
        """Whether it is of use that this member says that: not known yet, and of a round after that
        by which the peer was found last."""
        known = self._votes.get(by, {})
        is_new = (vote.peer, vote.round_id, vote.micro_batch) not in known
        return is_new and vote.peer != by and vote.round_id > self._found.get(vote.peer, -1)

    def observe_round(self, commits: Sequence[Commit]) -> list[PeerId]:
        """Learns from the commits of one round. Returns who is found to lie by it, ascending."""
        said = [(commit.server, vote) for commit in commits for vote in commit.audits]
        for by, vote in said:
            if self.wants(by, vote):
                known = self._votes.setdefault(by, {})
                answer = vote.peer, vote.round_id, vote.micro_batch
                known[answer] = vote.before, vote.behind
                while len(known) > VOTES_MAX:
                    del known[min(known, key=lambda answer: (answer[1], answer))]
        round_id = commits[0].round_id
        found = sorted({vote.peer for _, vote in said if self._is_found(vote.peer)})
        for peer in found:
            self._found[peer] = round_id
        if self._votes:
            self._forget(round_id - WINDOW)
        return found

    def _forget(self, oldest: int) -> None:
        for by, known in list(self._votes.items()):
            for answer in list(known):
                if answer[1] < oldest or answer[1] <= self._found.get(answer[0], -1):
                    del known[answer]
            if not known:
                del self._votes[by]

    def _is_found(self, peer: PeerId) -> bool:
        contradicted: set[PeerId] = set()
        for sides in self._collect_votes(peer).values():
            if sides.count(ADMITTED) >= self.needed:
                return True
            if len(sides) >= self.needed:
                contradicted |= _contradicted(sides)
        return len(contradicted) >= self.needed

    def _collect_votes(self, peer: PeerId) -> dict[Answer, list[Sides]]:
        """By its answers, what each member says, in the order of the members."""
        found: dict[Answer, list[Sides]] = {}
        for _, known in sorted(self._votes.items()):
            for answer, sides in sorted(known.items(), key=lambda item: item[0]):
                if answer[0] == peer:
                    found.setdefault(answer, []).append(sides)
        return found

    # --- as data ----------------------------------------------------------------------------------

    def pack(self) -> tuple[Any, ...]:
        """Plain data."""
        votes = [
            (by, *answer, *sides)
            for by, known in sorted(self._votes.items())
            for answer, sides in sorted(known.items(), key=lambda item: item[0])
        ]
        return tuple(votes), tuple(sorted(self._found.items()))

    def unpack(self, packed: Any) -> None:
        """Takes over what ``pack`` gave elsewhere. Raises ``ValueError``, and changes nothing,
        when it is not that."""
        if not isinstance(packed, tuple | list) or len(packed) != 2:
            raise ValueError("audits: not two tables")
        if not _are_rows(packed[0], 6) or not _are_rows(packed[1], 2):
            raise ValueError("audits: not votes, and those who were found")
        votes: dict[PeerId, dict[Answer, Sides]] = {}
        for by, peer, round_id, micro_batch, *sides in packed[0]:
            neighbours = [side for side in sides if side is not None]
            if not _are_counts((by, peer, round_id, micro_batch, *neighbours)):
                raise ValueError("audits: no vote")
            known = votes.setdefault(by, {})
            known[peer, round_id, micro_batch] = (sides[0], sides[1])
            if len(known) > VOTES_MAX:
                raise ValueError("audits: one peer votes too often")
        for found in packed[1]:
            if not _are_counts(found):
                raise ValueError("audits: who was found is a peer, in a round")
        self._votes, self._found = votes, dict(packed[1])


def _contradicted(sides: Sequence[Sides]) -> set[PeerId]:
    """The member of the next stage whom, as all say, an answer contradicts, and nobody before it;
    empty where they do not agree."""
    before = {each[0] for each in sides} - {None}
    behind = {each[1] for each in sides if each[1] is not None}
    return behind if not before and len(behind) == 1 else set()


def _are_rows(value: Any, length: int) -> bool:
    if not isinstance(value, tuple | list) or len(value) > MOST_ROWS:
        return False
    return all(isinstance(row, tuple | list) and len(row) == length for row in value)


def _are_counts(values: Iterable[Any]) -> bool:
    return all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )
