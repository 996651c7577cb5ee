"""Trust: a score for each peer, computed from named evidence. The score determines which peers are
suspected, in quarantine or on parole, and for which reasons.

The table is a pure function of the commits, so peers with the same commits have the same table.
Only messages that a peer has sent are evidence; crashes and lateness are not. A peer that has
rejected a result of a server reports this in its own commits (``Accusation``). If more than f peers
have accused the server for the same round, at least one of them is honest. The phases of a peer:

    normal --score < quarantine_below--> quarantined
    quarantined --trusted again by its updates--> on parole
    quarantined --quarantine_rounds--> on parole
    quarantined --another is more suspicious, or too few peers are left--> on parole
    on parole --score < quarantine_below--> quarantined
    on parole --parole_rounds--> normal

Suspicion is no proof, because an honest peer with different data is an outlier like a Byzantine
peer. So the rule does not use the updates of peers in quarantine, but still tolerates f Byzantine
peers, which may be among the other peers. Only proof lowers f (``proven``). There are two kinds of
proof. One is two results of the same attempt, each reported by more than f peers. The other is a
wrong result for a micro-batch of a pipeline, found by more than f peers (``audits.py``). It leads
to quarantine at once, even if f is 0. Suspicion alone leads to quarantine of at most f peers, the
most suspicious first. No peer is quarantined if the rule would have too few updates left.

The updates of a peer in quarantine are still measured. In every second round the rule runs once
more with these updates included, and only the outlyingness of these updates is used. So the score
of a peer in quarantine still changes. After at most ten consecutive updates that are no outliers
(``TrustSettings.updates_to_return``), the peer is trusted again. Good updates do not outweigh
evidence against the results of a peer as a server.

Quarantine and parole last for a number of observed rounds, whatever the round numbers are. So a
jump to a distant round, which a Byzantine peer may cause, ends no quarantine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gossip.core.events import Report
from gossip.core.messages import ROUND_MAX, Commit, Contribution, PeerId, Rejection
from gossip.core.settings import (
    TRUST_ROUNDS,
    TrustSettings,
    accusation_rounds,
)

from .accused_rounds import accuse, is_news
from .outliers import stands_out, upper_median, usual_spread
from .spread import SpreadMonitor
from .standing import PACKED_FIELDS, WORDS, PeerStanding, unpack_standing
from .unpacking import count, row, rows, unpacked

NOBODY: frozenset[PeerId] = frozenset()
_ROUNDS = count(ROUND_MAX)
_PACKED = row(rows(unpack_standing), _ROUNDS, _ROUNDS, _ROUNDS)

Change: TypeAlias = Literal["suspected", "trusted", "quarantined", "parole", "cleared"]


@dataclass(frozen=True, slots=True)
class TrustTransition:
    """Change of the phase or of the suspicion of a peer, caused by the commits of ``round_id``."""

    peer: PeerId
    change: Change
    round_id: int
    trust: float
    reasons: tuple[str, ...]

    def report(self) -> Report:
        fields = {"trust": round(self.trust, 3), "reasons": list(self.reasons)}
        return Report(self.change, {"subject": self.peer, **fields, "round": self.round_id})


_UNKNOWN = PeerStanding()  # standing of a peer without evidence; never changed


class TrustTable:
    """Scores of all peers, in [0, 1]. Each score is 1 at first.

    Args:
        settings: Thresholds and numbers of rounds.
        f: Byzantine peers to tolerate, and maximum number of peers in quarantine. If f is 0, the
            table scores and suspects peers but quarantines none: without a bound on Byzantine
            peers, noise could lead to the quarantine of a majority.
        updates_for: Numbers of updates that the rule needs to tolerate 0, 1, ... f.
        judged: Whether the rule judges updates by a gradient. For such a rule, different data of
            the peers is no reason to reject an update.
    """

    def __init__(
        self,
        settings: TrustSettings,
        f: int,
        updates_for: Sequence[int] = (1,),
        *,
        judged: bool = False,
    ) -> None:
        self.settings, self.f, self._updates_for = settings, f, tuple(updates_for)
        self._judged = judged
        self.spread = SpreadMonitor(f)
        self._standings: dict[PeerId, PeerStanding] = {}
        self._window = accusation_rounds(f)
        # whether any peer was ever in quarantine; if not, no search is needed
        self._locked_ever = False
        self._parole_score = (settings.suspect_below + settings.quarantine_below) / 2

    # --- queries ----------------------------------------------------------------------------------

    def score(self, peer: PeerId) -> float:
        return self._standings.get(peer, _UNKNOWN).trust

    def scores(self) -> dict[PeerId, float]:
        """Return the scores of all peers with evidence, by peer."""
        return {peer: min(s.score, s.served) for peer, s in sorted(self._standings.items())}

    def suspected(self) -> tuple[PeerId, ...]:
        return tuple(
            sorted(peer for peer, standing in self._standings.items() if standing.suspected)
        )

    def quarantined(self) -> frozenset[PeerId]:
        """Return the peers in quarantine. The next round does not aggregate their updates."""
        if not self._locked_ever:
            return NOBODY
        return frozenset(
            [peer for peer, standing in self._standings.items() if standing.phase == "quarantined"]
        )

    def proven(self) -> frozenset[PeerId]:
        """Return the peers in quarantine that are proven Byzantine. Each of these peers lowers the
        f of the rule by one."""
        return frozenset([peer for peer in self.quarantined() if self._standings[peer].is_proven])

    def may_serve(self, peer: PeerId) -> bool:
        """Whether a peer may serve in the next round: it is neither in quarantine nor on parole."""
        return self._standings.get(peer, _UNKNOWN).phase == "normal"

    def servers(self, peers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        """Return the peers among ``peers`` that may serve."""
        return tuple(filter(self.may_serve, peers)) if self._locked_ever else peers

    def reasons(self, peer: PeerId) -> tuple[str, ...]:
        """Return the reasons for the score, the most frequent first; empty without evidence against
        the peer."""
        return tuple(self._standings.get(peer, _UNKNOWN).reasons(self.f))

    def lacks(self, accuser: PeerId, peer: PeerId, of_round: int, round_id: int) -> bool:
        """Whether the accusation by ``accuser`` is new evidence: it is not stored, it is not too
        old in ``round_id``, and ``peer`` is not in quarantine."""
        standing = self._standings.get(peer, _UNKNOWN)
        new = is_news(standing.accused, accuser, of_round)
        return new and of_round >= round_id - self._window and standing.phase != "quarantined"

    # --- evidence ---------------------------------------------------------------------------------

    def observe_round(
        self,
        commits: Sequence[Commit],
        proven: Sequence[PeerId] = (),
        audited: Sequence[PeerId] = (),
    ) -> list[TrustTransition]:
        """Record the commits of one round, one for each shard. An update that is an outlier in any
        shard counts as an outlier. ``proven``: peers that this round proves to have sent different
        results in one attempt. ``audited``: peers that audits convict in this round."""
        assert commits, "a round has at least one shard"
        contributors: dict[PeerId, Contribution] = {}
        rejected: dict[PeerId, Rejection] = {}
        for commit in commits:
            for contribution in commit.contributors:
                known = contributors.get(contribution.peer)
                if known is None or contribution.outlyingness > known.outlyingness:
                    contributors[contribution.peer] = contribution
            for rejection in commit.rejected:
                rejected[rejection.peer] = _worse(rejected.get(rejection.peer), rejection)
        accused = *self._serve(commits), *proven, *audited
        for peer in audited:
            standing = self._standings.setdefault(peer, PeerStanding())
            standing.served, standing.audited = 0.0, min(standing.audited + 1, TRUST_ROUNDS)
        for peer in proven:
            standing = self._standings.setdefault(peer, PeerStanding())
            standing.served *= self.settings.twice_memory
            standing.twice = min(standing.twice + 1, TRUST_ROUNDS)
        return self.observe_commit(
            commits[0].round_id,
            contributors.values(),
            rejected.values(),
            roster=commits[0].roster or None,
            accused=accused,
        )

    def _serve(self, commits: Sequence[Commit]) -> tuple[PeerId, ...]:
        """Record accepted and rejected results. Return the servers for which the trust may have
        changed."""
        changed: list[PeerId] = []
        for commit in commits:
            server = self._standings.get(commit.server, _UNKNOWN)
            if server.served < 1.0 and commit.digest and server.phase == "normal":
                server.served += self.settings.served_recovery * (1.0 - server.served)
                changed.append(commit.server)
        for commit in commits:
            for accusation in commit.accusations:
                accused = (
                    not (accusation.silent or accusation.turn) and accusation.peer != commit.server
                )
                if accused and self.lacks(
                    commit.server, accusation.peer, accusation.round_id, commit.round_id
                ):
                    self._record_accusation(
                        self._standings.setdefault(accusation.peer, PeerStanding()),
                        commit,
                        accusation.round_id,
                    )
                    changed.append(accusation.peer)
        return tuple(changed)

    def _record_accusation(self, standing: PeerStanding, commit: Commit, of_round: int) -> None:
        """Record that the server of ``commit`` has rejected a result of another server. The
        rejection takes effect after more than f peers have reported it."""
        oldest = commit.round_id - self._window
        standing.accused, enough = accuse(standing.accused, commit.server, of_round, oldest, self.f)
        if enough:
            standing.served *= self.settings.served_memory
            standing.refused = min(standing.refused + 1, TRUST_ROUNDS)

    def observe_commit(
        self,
        round_id: int,
        contributors: Iterable[Contribution],
        rejected: Iterable[Rejection],
        *,
        roster: Sequence[PeerId] | None = None,
        accused: Sequence[PeerId] = (),
    ) -> list[TrustTransition]:
        """Record the evidence of one round.

        Args:
            roster: Peers of which a majority must stay out of quarantine; None means all peers with
                evidence.
            accused: Other peers for which the trust may have changed.
        Returns: Transitions in the order of the peers.
        """
        judged: dict[PeerId, tuple[str, float]] = {}
        contributors, rejected, bound = list(contributors), list(rejected), None
        measures: list[Contribution | Rejection] = [*contributors]
        if self._locked_ever:
            measures = [*self._measures_of_locked(rejected), *measures]
        for measure in measures:
            far = measure.outlyingness
            out = far > self.settings.outlying
            if out:
                bound = self._bound(contributors) if bound is None else bound
                recent = (*self._past(measure.peer), far)
                out = far > bound and stands_out(recent, bound, self.settings.outlying)
            judged[measure.peer] = ("outlying" if out else "", far)
        # If the model has diverged, most updates are non-finite, and no sender is to blame.
        broken = sum(each.reason == "non_finite" for each in rejected)
        diverged = broken > max(self.f, (len(contributors) + len(rejected)) // 2)
        for rejection in rejected:
            if rejection.reason in WORDS and not (diverged and rejection.reason == "non_finite"):
                judged[rejection.peer] = (rejection.reason, 0.0)
        memory = self.settings.memory
        for peer, (name, far) in judged.items():
            standing = self._standings.get(peer)
            if standing is None:
                standing = self._standings[peer] = PeerStanding()
            standing.score = memory * standing.score + (1.0 - memory) * (0.0 if name else 1.0)
            # Store two decimals only, because the tables of a thousand peers must fit in a message.
            far = round(far, 2)
            standing.recent = (*standing.recent[1 - TRUST_ROUNDS :], (name, far) if name else far)
        if self.spread.is_due() and not self._judged:
            # sorted, so that the order is the same as after a state transfer
            standings = [standing for _, standing in sorted(self._standings.items())]
            self.spread.measure([s.distances for s in standings if s.phase != "quarantined"])
        affected = dict.fromkeys([*judged, *accused])
        changes = [
            *(self._release(round_id) if self._locked_ever else []),
            *self._suspect(round_id, affected),
            *self._quarantine(round_id, roster),
        ]
        return sorted(changes, key=lambda change: change.peer)

    def _measures_of_locked(self, rejected: Sequence[Rejection]) -> list[Rejection]:
        """Return the measurements of peers in quarantine, which the rule does not use."""
        locked = self.quarantined()
        return [each for each in rejected if each.reason == "quarantined" and each.peer in locked]

    def _bound(self, contributors: Sequence[Contribution]) -> float:
        """Return the outlyingness above which an update may be an outlier.

        The more the data of the peers differ, the harder it is to separate Byzantine from honest
        peers by distance. In a run of ten peers with labels sorted by peer, two honest peers had an
        outlyingness of 7.6, and the other peers had at most 2.5. So the bound grows with the square
        of the usual spread. If the data count as different, the bound is multiplied by
        ``outlying``: after a model has converged, the data still differ, although the spread of the
        updates no longer shows the difference.
        """
        outlying = self.settings.outlying
        if self._judged:
            return outlying
        usual = [upper_median([*self._past(c.peer), c.outlyingness]) for c in contributors]
        unit = usual_spread(usual, self.f)
        return outlying * unit * unit * (outlying if self.spread.is_unequal else 1.0)

    def _past(self, peer: PeerId) -> list[float]:
        """Return the outlyingness of the recent updates of a peer, without the oldest update, which
        the next update replaces."""
        return self._standings.get(peer, _UNKNOWN).distances[1 - TRUST_ROUNDS :]

    def _release(self, round_id: int) -> list[TrustTransition]:
        """Count down the rounds of quarantine and parole. After the last round, a peer moves from
        quarantine to parole, or from parole to normal. A peer that is trusted again because of its
        updates moves to parole at once."""
        changes: list[TrustTransition] = []
        for peer, standing in sorted(
            [(peer, s) for peer, s in self._standings.items() if s.phase != "normal"]
        ):
            standing.rounds_left -= 1
            if standing.rounds_left > 0 and not self._is_trusted_again(standing):
                continue
            if standing.phase == "quarantined":
                changes.append(self._set_free(peer, round_id))
            else:
                standing.phase, standing.score = "normal", self.settings.suspect_below
                standing.served = max(standing.served, self.settings.suspect_below)
                changes.append(self._transition(peer, "cleared", round_id))
        return changes

    def _is_trusted_again(self, standing: PeerStanding) -> bool:
        """Whether good updates end a quarantine early. They do not if the evidence against the
        results of the peer would lead to quarantine by itself."""
        settings = self.settings
        return (
            standing.phase == "quarantined"
            and standing.score > settings.trusted_above
            and standing.served >= settings.quarantine_below
        )

    def _suspect(self, round_id: int, judged: Iterable[PeerId]) -> list[TrustTransition]:
        changes = []
        for peer in judged:
            standing = self._standings.get(peer, _UNKNOWN)
            if standing.phase == "quarantined":
                continue
            trust = min(standing.score, standing.served)
            if not standing.suspected and trust < self.settings.suspect_below:
                standing.suspected = True
                changes.append(self._transition(peer, "suspected", round_id))
            elif standing.suspected and trust > self.settings.trusted_above:
                standing.suspected = False
                changes.append(self._transition(peer, "trusted", round_id))
        return changes

    def _quarantine(self, round_id: int, roster: Sequence[PeerId] | None) -> list[TrustTransition]:
        """Quarantine the peers with a low enough trust. If there is no room for such a peer,
        release a less suspicious peer."""
        below = self.settings.quarantine_below
        low = [p for p, s in self._standings.items() if s.score < below or s.served < below]
        if not low and not self._locked_ever:
            return []
        members = set(self._standings if roster is None else roster)
        changes = self._review(round_id, members)
        low = [p for p in low if p in members and self._standings[p].phase != "quarantined"]
        for peer in sorted(low, key=self._most_suspicious):
            if not self._has_room(members, peer):
                least = self._least_suspicious(members)
                if least is None or not self._is_worse(peer, least):
                    continue
                changes.append(self._set_free(least, round_id))
                if not self._has_room(members, peer):
                    continue
            standing = self._standings[peer]
            standing.phase, self._locked_ever = "quarantined", True
            standing.rounds_left = self.settings.quarantine_rounds
            changes.append(self._transition(peer, "quarantined", round_id))
        return changes

    def _review(self, round_id: int, members: Collection[PeerId]) -> list[TrustTransition]:
        """Release the least suspicious peer, as long as the rule has too few updates to tolerate
        f."""
        changes: list[TrustTransition] = []
        while self._lacks_updates(members, self.quarantined()):
            least = self._least_suspicious(members)
            if least is None:
                break
            changes.append(self._set_free(least, round_id))
        return changes

    def _has_room(self, members: Collection[PeerId], peer: PeerId) -> bool:
        """Whether ``peer`` can be quarantined as well. A majority of the n members, n // 2 + 1,
        must stay out of quarantine. The rule must also have enough updates left."""
        locked = self.quarantined()
        inside = len(locked.intersection(members))
        return (
            len(locked) < max(self.f, bool(self._standings[peer].audited))
            and inside < (len(members) - 1) // 2
            and not self._lacks_updates(members, locked | {peer})
        )

    def _lacks_updates(self, members: Collection[PeerId], locked: frozenset[PeerId]) -> bool:
        """Whether fewer members are out of quarantine than the rule needs updates, and some peer in
        quarantine can be released."""
        inside = locked.intersection(members)
        proven = sum([1 for peer in inside if self._standings[peer].is_proven])
        left = max(0, min(self.f, len(self._updates_for) - 1) - proven)
        return len(inside) > proven and len(members) - len(inside) < self._updates_for[left]

    def _most_suspicious(self, peer: PeerId) -> tuple[bool, float, float, PeerId]:
        standing = self._standings[peer]
        return not standing.is_proven, standing.trust, -standing.typical, peer

    def _least_suspicious(self, members: Collection[PeerId]) -> PeerId | None:
        """Return the peer in quarantine that is released next: the least outlying peer without
        proof against it. Peers that are in quarantine for reasons other than outlyingness are
        released last."""
        locked = [
            peer
            for peer in self.quarantined() & set(members)
            if not self._standings[peer].is_proven
        ]
        return min(
            locked,
            key=lambda peer: (
                self._standings[peer].typical == 0.0,
                self._standings[peer].typical,
                -self._standings[peer].trust,
                -peer,
            ),
            default=None,
        )

    def _is_worse(self, peer: PeerId, locked: PeerId) -> bool:
        """Whether ``peer`` is clearly more suspicious than ``locked``, a peer in quarantine: it is
        proven Byzantine, or much more outlying. If a small difference were enough, two similar
        peers would alternate in quarantine."""
        ours, theirs = self._standings[peer], self._standings[locked]
        return ours.is_proven or ours.typical > self.settings.farther * theirs.typical > 0.0

    def _set_free(self, peer: PeerId, round_id: int) -> TrustTransition:
        """Move a peer from quarantine to parole."""
        standing = self._standings[peer]
        standing.phase, standing.score = "parole", self._parole_score
        standing.served = max(standing.served, self._parole_score)
        standing.rounds_left = self.settings.parole_rounds
        # Old evidence must not be a reason for later transitions. The outlyingness stays stored,
        # because it shows how much the data of the peer differ.
        standing.recent = tuple(standing.distances)
        standing.refused = standing.twice = standing.audited = 0
        return self._transition(peer, "parole", round_id)

    def standing_out(self, round_id: int) -> list[TrustTransition]:
        """Return transitions that describe the suspected and the quarantined peers, with the round
        ``round_id``."""
        found: list[TrustTransition] = []
        for peer, standing in sorted(self._standings.items()):
            if standing.suspected:
                found.append(self._transition(peer, "suspected", round_id))
            if standing.phase == "quarantined":
                found.append(self._transition(peer, "quarantined", round_id))
        return found

    def _transition(self, peer: PeerId, change: Change, round_id: int) -> TrustTransition:
        return TrustTransition(peer, change, round_id, self.score(peer), self.reasons(peer))

    # --- as data ----------------------------------------------------------------------------------

    def pack(self) -> tuple[Any, ...]:
        """Return the whole table as plain tuples, for a state transfer."""
        table = [
            (peer, *PACKED_FIELDS(standing)[: None if standing.audited else -1])
            for peer, standing in sorted(self._standings.items())
        ]
        return tuple(table), *self.spread.counts

    def unpack(self, packed: Any) -> None:
        """Load the result of another peer's ``pack``. Raises ``ValueError``, and changes nothing,
        if the data is invalid."""
        table, *counts = unpacked("trust", _PACKED, packed)
        standings, spread = dict(table), SpreadMonitor(self.f)
        spread.counts = counts[0], counts[1], counts[2]
        self._standings, self.spread = standings, spread
        self._locked_ever = any(standing.phase != "normal" for standing in self._standings.values())


def _worse(known: Rejection | None, other: Rejection) -> Rejection:
    """Return the worse of two rejections of one peer in two shards: the rejection that is evidence,
    otherwise the rejection with the higher outlyingness."""
    if known is None or other.reason in WORDS:
        return other
    is_farther = known.reason == other.reason and other.outlyingness > known.outlyingness
    return other if is_farther else known
