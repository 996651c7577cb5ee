"""Audits of micro-batches: members of a stage recompute some micro-batches of other members, and
report wrong results in their commits.

No peer can prove to another peer which messages it has received. So an auditor sends requests to
the two neighbours of the audited member, for the tensors that they have exchanged with this member.
The member itself reports digests of the tensors that it has received and sent for each micro-batch
(``Counted.traces``). If this report agrees with the neighbours, but the sent tensor is not the
output of the layers, then either the member or the accuser is Byzantine. The votes of more than f
members of its stage decide, because at least one of these voters is honest.

If the report contradicts a neighbour, the member or the neighbour is Byzantine, and nothing shows
which of them. A Byzantine member contradicts the next stage repeatedly. An honest member
contradicts only Byzantine peers of the next stage. So a member is convicted once it contradicts
more members of the next stage than may be Byzantine there. Contradictions with the previous stage
are ignored: a Byzantine peer there may have sent data in place of an honest peer, which then denies
that it has sent the data.

The table is a pure function of the commits, like the trust table.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

from gossip.core.messages import AuditVote, Commit, PeerId
from gossip.core.settings import AUDIT_ROWS_MAX, AUDIT_VOTES_KEPT, HISTORY_ROUNDS

from .unpacking import COUNT, optional, row, rows, unpacked

Vote: TypeAlias = tuple[int, PeerId, int, PeerId]
"""Result to which a vote refers, and its voter, as (round, peer, micro-batch, voter)."""
Sides: TypeAlias = tuple[PeerId | None, PeerId | None]
"""Neighbours with a report that contradicts the report of the peer: a member of the previous stage,
and a member of the next stage."""
ADMITTED: Sides = (None, None)
_SIDE = optional(COUNT)
_VOTES = rows(row(COUNT, COUNT, COUNT, COUNT, _SIDE, _SIDE), most=AUDIT_ROWS_MAX)
_PACKED = row(_VOTES, rows(row(COUNT, COUNT), most=AUDIT_ROWS_MAX))


class AuditTable:
    """Votes of the members of a stage about the results of other members.

    Args:
        needed: Number of equal votes that convict a member (``CoreSettings.audit_votes``).
    """

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self._votes: dict[Vote, Sides] = {}
        # Round of the last conviction of each convicted peer.
        self._found: dict[PeerId, int] = {}

    def wants(self, by: PeerId, vote: AuditVote) -> bool:
        """Whether a vote of the member ``by`` is new evidence: the vote is not stored, and its
        round is after the last conviction of the peer."""
        is_new = (vote.round_id, vote.peer, vote.micro_batch, by) not in self._votes
        return is_new and vote.peer != by and vote.round_id > self._found.get(vote.peer, -1)

    def observe_round(self, commits: Sequence[Commit]) -> list[PeerId]:
        """Count the votes in the commits of one round. Return the peers that are convicted in this
        round, ascending."""
        votes_cast = [(commit.server, vote) for commit in commits for vote in commit.audits]
        for by, vote in votes_cast:
            if self.wants(by, vote):
                key = vote.round_id, vote.peer, vote.micro_batch, by
                self._votes[key] = vote.before, vote.behind
                known = sorted([key for key in self._votes if key[3] == by])
                if len(known) > AUDIT_VOTES_KEPT:
                    del self._votes[known[0]]
        round_id = commits[0].round_id
        found = sorted({vote.peer for _, vote in votes_cast if self._is_found(vote.peer)})
        for peer in found:
            self._found[peer] = round_id
        oldest = round_id - HISTORY_ROUNDS
        self._votes = {
            key: sides
            for key, sides in self._votes.items()
            if key[0] >= oldest and key[0] > self._found.get(key[1], -1)
        }
        return found

    def _is_found(self, peer: PeerId) -> bool:
        results: defaultdict[tuple[int, int], list[Sides]] = defaultdict(list)
        for (round_id, subject, micro_batch, _), sides in self._votes.items():
            if subject == peer:
                results[round_id, micro_batch].append(sides)
        contradicted: set[PeerId] = set()
        for votes in results.values():
            if votes.count(ADMITTED) >= self.needed:
                return True
            if len(votes) >= self.needed:
                contradicted |= _contradicted(votes)
        return len(contradicted) >= self.needed

    # --- as data ----------------------------------------------------------------------------------

    def pack(self) -> tuple[Any, ...]:
        """Return the table as plain tuples."""
        votes = sorted(
            [
                (by, peer, round_id, micro_batch, *sides)
                for (round_id, peer, micro_batch, by), sides in self._votes.items()
            ]
        )
        return tuple(votes), tuple(sorted(self._found.items()))

    def unpack(self, packed: Any) -> None:
        """Load the result of another peer's ``pack``. Raises ``ValueError``, and changes nothing,
        if the data is invalid."""
        votes, found = unpacked("audits", _PACKED, packed)
        if max(Counter([row[0] for row in votes]).values(), default=0) > AUDIT_VOTES_KEPT:
            raise ValueError("audits: too many votes by one peer")
        self._votes = {
            (round_id, peer, micro_batch, by): (before, behind)
            for by, peer, round_id, micro_batch, before, behind in votes
        }
        self._found = dict(found)


def _contradicted(sides: Sequence[Sides]) -> set[PeerId]:
    """Return the member of the next stage that contradicts the result according to all votes, as a
    set. Return an empty set if the votes name different members, or if any vote names a member of
    the previous stage."""
    before = {each[0] for each in sides} - {None}
    behind = {each[1] for each in sides if each[1] is not None}
    return behind if not before and len(behind) == 1 else set()
