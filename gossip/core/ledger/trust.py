"""Trust: a score of each peer from named evidence, and the peers that are suspected, in quarantine
or on parole, with reasons.

The table is a pure function of the commits, so peers with the same commits have the same table.
Crashes and lateness are no evidence: only messages that a peer has sent are. A peer that has
rejected a result of a server states it in its own commits (``Accusation``). Once more than f peers
have accused the same result, at least one of them is honest. The phases of a peer:

    normal --score < quarantine_below--> quarantined
    quarantined --trusted again by its updates--> on parole
    quarantined --quarantine_rounds--> on parole
    quarantined --another is more suspicious, or too few peers are left--> on parole
    on parole --score < quarantine_below--> quarantined
    on parole --parole_rounds--> normal

Suspicion is not proof. An honest peer with different data is an outlier like a Byzantine one. So
the rule does not use the updates of peers in quarantine, but still tolerates f: the Byzantine peers
may be among the others. Only proof lowers f (``proven``). There are two kinds: two results of one
turn, each stated by more than f peers, and a wrong result for a micro-batch of a pipeline, found by
more than f (``audits.py``). A wrong result for a micro-batch quarantines at once, even if f is 0.
Suspicion alone quarantines at most f peers, the most suspicious first. It quarantines none if the
rule would have too few updates left.

A peer in quarantine is still measured. In every second round the rule runs once more with its
update added, and only the outlyingness of this update is used. So its score changes. After at most
ten of these updates in a row that are no outliers (``TrustSettings.updates_to_return``), the peer
is trusted again. Good updates do not outweigh evidence against a peer as a server.

Quarantine and parole last a number of observed rounds and do not depend on round numbers. A peer
may resume at a distant round, even because of a Byzantine peer, and this ends no quarantine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gossip.core.events import Report
from gossip.core.messages import ROUND_MAX, Commit, Contribution, PeerId, Rejection
from gossip.core.settings import (
    ACCUSED_ROUNDS,
    FAR_MAX,
    PEERS_MAX,
    SPREAD_EVERY,
    TRUST_ROUNDS,
    UNEQUAL,
    UNEQUAL_OFTEN,
    UNEQUAL_SHARE,
    TrustSettings,
    accusation_rounds,
)

from .spread import beyond_chance

NO_FAR = ("non_finite", "wrong_size")
"""Reasons for rejection that have no outlyingness."""


NOBODY: frozenset[PeerId] = frozenset()

Change: TypeAlias = Literal["suspected", "trusted", "quarantined", "parole", "cleared"]

Observed: TypeAlias = float | tuple[str, float]
"""Outlyingness of an update, with the name of the evidence against it if there is any."""


# Evidence against an update, in words for "3 of the last 20 updates ...". Rejections for any other
# reason are no evidence.
WORDS = {
    "outlying": "were outliers",
    "non_finite": "were not finite",
    "wrong_size": "had the wrong size",
}


@dataclass(frozen=True, slots=True)
class TrustTransition:
    """Change of a peer's phase or suspicion with the commit of ``round_id``."""

    peer: PeerId
    change: Change
    round_id: int
    trust: float
    reasons: tuple[str, ...]

    def report(self) -> Report:
        fields = {"trust": round(self.trust, 3), "reasons": list(self.reasons)}
        return Report(self.change, {"subject": self.peer, **fields, "round": self.round_id})


@dataclass(slots=True)
class _Standing:
    # the lower of the two is the trust in a peer
    score: float = 1.0  # by its updates
    served: float = 1.0  # by its results
    suspected: bool = False
    rounds_left: int = 0  # of the quarantine or the parole
    phase: Literal["normal", "quarantined", "parole"] = "normal"
    recent: tuple[Observed, ...] = ()  # oldest first
    refused: int = 0  # results rejected by more than f peers since the last quarantine
    twice: int = 0  # turns with two proven results since then
    audited: int = 0  # convictions by audits since then
    # round of a result -> accusers; (): enough
    accusations: tuple[tuple[int, tuple[PeerId, ...]], ...] = ()

    @property
    def trust(self) -> float:
        return min(self.score, self.served)

    @property
    def is_proven(self) -> bool:
        """Whether the peer is proven Byzantine."""
        return bool(self.twice or self.audited)

    @property
    def evidence(self) -> list[tuple[str, float]]:
        """Evidence of the recent updates, oldest first: the name of the evidence against an update
        ("": none), and its outlyingness."""
        return [item if isinstance(item, tuple) else ("", item) for item in self.recent]

    @property
    def distances(self) -> list[float]:
        """Outlyingness of the recent updates, oldest first."""
        return [far for name, far in self.evidence if name not in NO_FAR]

    @property
    def typical(self) -> float:
        """Median outlyingness of those recent updates that were outliers; 0.0 without any."""
        far = sorted([value for name, value in self.evidence if name == "outlying"])
        return far[len(far) // 2] if far else 0.0


_UNKNOWN = _Standing()


class TrustTable:
    """Scores in [0, 1], 1 at first.

    Args:
        settings: Thresholds and lengths.
        f: Byzantine peers to tolerate, and maximum number of peers in quarantine. With 0 the table
            scores and suspects but does not quarantine: without a bound on Byzantine peers, noise
            could quarantine a majority.
        updates_for: Numbers of updates that the rule needs to tolerate 0, 1, ... f.
        judged: Whether the rule has a judge, which does not reject updates for different data.
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
        # measurements so far, unequal ones among them, and rounds since the last one
        self._windows = self._unequal = self._since = 0
        self.beyond_chance: float | None = None  # if the last round was measured
        self._standings: dict[PeerId, _Standing] = {}
        self._window = accusation_rounds(f)
        self._locked_ever = False  # False in most runs, which saves the search
        self._parole_score = (settings.suspect_below + settings.quarantine_below) / 2

    # --- queries ----------------------------------------------------------------------------------

    def score(self, peer: PeerId) -> float:
        standing = self._standings.get(peer)
        return 1.0 if standing is None else min(standing.score, standing.served)

    def scores(self) -> dict[PeerId, float]:
        """Return the scores of all peers with evidence, by peer."""
        return {peer: min(s.score, s.served) for peer, s in sorted(self._standings.items())}

    def suspected(self) -> tuple[PeerId, ...]:
        return tuple(
            sorted(peer for peer, standing in self._standings.items() if standing.suspected)
        )

    def quarantined(self) -> frozenset[PeerId]:
        """Return the peers in quarantine: the next round does not aggregate their updates."""
        if not self._locked_ever:
            return NOBODY
        return frozenset(
            [peer for peer, standing in self._standings.items() if standing.phase == "quarantined"]
        )

    def proven(self) -> frozenset[PeerId]:
        """Return the peers in quarantine that are proven Byzantine. Each lowers the f of the rule
        by one."""
        return frozenset([peer for peer in self.quarantined() if self._standings[peer].is_proven])

    def may_serve(self, peer: PeerId) -> bool:
        """Whether a peer may serve the next round: it is neither in quarantine nor on parole."""
        standing = self._standings.get(peer)
        return standing is None or standing.phase == "normal"

    def servers(self, peers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        """Return those of ``peers`` that may serve."""
        return tuple(filter(self.may_serve, peers)) if self._locked_ever else peers

    def reasons(self, peer: PeerId) -> tuple[str, ...]:
        """Return the reasons of the score, the most frequent first; empty without evidence against
        the peer."""
        standing = self._standings.get(peer)
        if standing is None:
            return ()
        evidence = standing.evidence
        counts = {name: sum(given == name for given, _ in evidence) for name in WORDS}
        total = len(evidence)
        found = []
        for name in sorted(
            (name for name in WORDS if counts[name]), key=lambda name: (-counts[name], name)
        ):
            words = (
                f"{counts[name]} of the last {total} updates {WORDS[name]}"
                if total > 1
                else f"the update {_singular(name)}"
            )
            if name == "outlying":
                far = sorted(value for given, value in evidence if given == name)
                words += f" ({_times(far[len(far) // 2])} the median distance)"
            found.append(words)
        if standing.refused:
            results = (
                f"{standing.refused} of its results were"
                if standing.refused > 1
                else "a result of it was"
            )
            found.append(f"{results} rejected by more than {self.f} peers")
        if standing.twice:
            found.append(
                f"it sent different results to different peers in {standing.twice} of its turns"
            )
        if standing.audited:
            found.append(
                "its results for micro-batches differ from those of other members of its stage"
            )
        return tuple(found)

    def lacks(self, accuser: PeerId, peer: PeerId, of_round: int, round_id: int) -> bool:
        """Whether the accusation by ``accuser`` adds evidence: it is not stored, and not too old in
        ``round_id``."""
        standing = self._standings.get(peer, _UNKNOWN)
        known = dict(standing.accusations).get(of_round)
        new = known is None or (bool(known) and accuser not in known)
        return new and of_round >= round_id - self._window and standing.phase != "quarantined"

    # --- evidence ---------------------------------------------------------------------------------

    def observe_round(
        self,
        commits: Sequence[Commit],
        proven: Sequence[PeerId] = (),
        audited: Sequence[PeerId] = (),
    ) -> list[TrustTransition]:
        """Record the commits of one round, one for each shard. An outlier in one shard is an
        outlier. ``proven``: peers that this round proves to have sent different results in one
        turn. ``audited``: peers that audits convict with this round."""
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
            standing = self._standings.setdefault(peer, _Standing())
            standing.served, standing.audited = 0.0, min(standing.audited + 1, TRUST_ROUNDS)
        for peer in proven:
            standing = self._standings.setdefault(peer, _Standing())
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
        """Record accepted and rejected results. Return the servers with possibly changed trust."""
        changed: list[PeerId] = []
        for commit in commits:
            server = self._standings.get(commit.server)
            if (
                server is not None
                and server.served < 1.0
                and commit.digest
                and server.phase == "normal"
            ):
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
                        self._standings.setdefault(accusation.peer, _Standing()),
                        commit,
                        accusation.round_id,
                    )
                    changed.append(accusation.peer)
        return tuple(changed)

    def _record_accusation(self, standing: _Standing, commit: Commit, of_round: int) -> None:
        """Record that the server of ``commit`` has rejected a result. It counts once more than f
        peers have."""
        accusations = {
            at: by for at, by in standing.accusations if at >= commit.round_id - self._window
        }
        by = tuple(sorted({*accusations.get(of_round, ()), commit.server}))
        enough = len(by) > self.f
        accusations[of_round] = () if enough else by
        # No Byzantine peer can displace accusations of several peers by its own.
        kept = sorted(
            accusations.items(),
            key=lambda accusation: (not accusation[1], len(accusation[1]), accusation[0]),
        )[-ACCUSED_ROUNDS:]
        standing.accusations = tuple(sorted(kept))
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
            roster: Peers of which a majority must stay out of quarantine; None: all peers with
                evidence.
            accused: Other peers with possibly changed trust.
        Returns: Transitions in the order of the peers.
        """
        judged: dict[PeerId, tuple[str, float]] = {}
        contributors, rejected, bound = list(contributors), list(rejected), None
        measures: list[Contribution | Rejection] = [*self._measures_of_locked(rejected)]
        for measure in (*measures, *contributors):
            far = measure.outlyingness
            out = far > self.settings.outlying
            if out:
                bound = self._bound(contributors) if bound is None else bound
                out = self._stands_out(measure, bound)
            judged[measure.peer] = ("outlying" if out else "", far)
        # If the model has diverged, most updates are non-finite, and no sender is to blame.
        broken = sum(each.reason == "non_finite" for each in rejected)
        diverged = broken > max(self.f, (len(contributors) + len(rejected)) // 2)
        for rejection in rejected:
            if rejection.reason in WORDS and not (diverged and rejection.reason == "non_finite"):
                judged[rejection.peer] = (rejection.reason, 0.0)
        memory = self.settings.memory
        for peer, verdict in judged.items():
            standing = self._standings.get(peer)
            if standing is None:
                standing = self._standings[peer] = _Standing()
            sample = 0.0 if verdict[0] else 1.0
            standing.score = memory * standing.score + (1.0 - memory) * sample
            # Two decimals: the tables of a thousand peers must fit in a message.
            name, far = verdict[0], round(verdict[1], 2)
            standing.recent = (*standing.recent[1 - TRUST_ROUNDS :], (name, far) if name else far)
        self._since, self.beyond_chance = self._since + 1, None
        if self._since >= SPREAD_EVERY and not self._judged:
            self._since = 0
            self._measure()
        affected = dict.fromkeys([*judged, *accused])
        changes = [
            *self._release(round_id),
            *self._suspect(round_id, affected),
            *self._quarantine(round_id, roster),
        ]
        return sorted(changes, key=lambda change: change.peer)

    def _measures_of_locked(self, rejected: Sequence[Rejection]) -> list[Rejection]:
        """Return the measurements of peers in quarantine; the rule did not use their updates."""
        if not self._locked_ever:
            return []
        locked = self.quarantined()
        return [each for each in rejected if each.reason == "quarantined" and each.peer in locked]

    def _bound(self, contributors: Sequence[Contribution]) -> float:
        """Return the outlyingness from which an update may be an outlier.

        The more the data of peers differ, the less does distance separate Byzantine from honest
        peers. With labels sorted by peer, two honest peers of ten lay 7.6 typical distances out,
        the others up to 2.5. So the bound grows with the square of the usual spread. If data count
        as different, it is ``outlying`` times as high: data stay different after a model has
        converged, though the spread no longer shows it.
        """
        outlying = self.settings.outlying
        if self._judged:
            return outlying
        unit = self._spread(contributors)
        unequal = self._unequal >= UNEQUAL_OFTEN or self._unequal * UNEQUAL_SHARE > self._windows
        return outlying * unit * unit * (outlying if unequal else 1.0)

    def _spread(self, contributors: Sequence[Contribution]) -> float:
        """Return the usual outlyingness of honest peers, in units of the median distance; at least
        1.

        All but f peers are honest, so the peer with the f + 1st largest value is no farther out
        than some honest peer. If peers have different data, its value is far above the median. The
        value of a peer is the median of its recent updates.
        """
        usual = []
        for contribution in contributors:
            past = sorted([*self._past(contribution.peer), contribution.outlyingness])
            usual.append(past[len(past) // 2])
        nearest = sorted(usual)[: max(0, len(usual) - max(1, self.f))]
        return max([1.0, *nearest[-1:]])

    def _measure(self) -> None:
        """Measure whether the same peers were outlying by more than chance in the stored rounds."""
        known = [
            far
            # the same order as after a state transfer
            for _, standing in sorted(self._standings.items())
            if standing.phase != "quarantined" and len(far := standing.distances) >= SPREAD_EVERY
        ]
        length = min([len(far) for far in known], default=0)
        self.beyond_chance = beyond_chance([far[-length:] for far in known], self.f)
        if self.beyond_chance is not None:
            self._windows += 1
            self._unequal += self.beyond_chance > UNEQUAL

    def _past(self, peer: PeerId) -> list[float]:
        """Return the outlyingness of the recent updates of a peer, without the next to be
        dropped."""
        standing = self._standings.get(peer)
        if standing is None:
            return []
        return standing.distances[1 - TRUST_ROUNDS :]

    def _stands_out(self, contribution: Contribution | Rejection, bound: float) -> bool:
        """Whether the outlyingness of an update exceeds ``bound``, and so does the geometric mean
        of the recent updates of its peer.

        Once a model fits its data, nearly all gradients are tiny. A batch with one wrong sample
        gives a gradient ten or a hundred times as large. So an honest peer is far out in one round
        and near in the next, and a Byzantine peer is far out in all. The influence of one update is
        limited in both directions, so that a single one does not outweigh the others.
        """
        outlying = self.settings.outlying
        if not contribution.outlyingness > bound:
            return False
        recent = (*self._past(contribution.peer), contribution.outlyingness)
        # A product of quotients has the same bits on every machine, logarithms have not.
        return (
            math.prod([min(max(1.0 / outlying**3, far / bound), outlying) for far in recent]) > 1.0
        )

    def _release(self, round_id: int) -> list[TrustTransition]:
        """Count down the rounds of quarantine and parole. After the last round, a peer moves from
        quarantine to parole, and from parole to normal. A peer that is trusted again by its updates
        moves to parole at once."""
        changes: list[TrustTransition] = []
        if not self._locked_ever:
            return changes
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

    def _is_trusted_again(self, standing: _Standing) -> bool:
        """Whether good updates end a quarantine early. They do not if evidence against the peer as
        a server would quarantine it."""
        settings = self.settings
        return (
            standing.phase == "quarantined"
            and standing.score > settings.trusted_above
            and standing.served >= settings.quarantine_below
        )

    def _suspect(self, round_id: int, judged: Iterable[PeerId]) -> list[TrustTransition]:
        changes = []
        for peer in judged:
            standing = self._standings.get(peer)
            if standing is None or standing.phase == "quarantined":
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
        """Quarantine peers that are suspicious enough, and release others if there is no room."""
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
        """Release the least suspicious peers while the rule has too few updates to tolerate f."""
        changes: list[TrustTransition] = []
        while self._lacks_updates(members, self.quarantined()):
            least = self._least_suspicious(members)
            if least is None:
                break
            changes.append(self._set_free(least, round_id))
        return changes

    def _has_room(self, members: Collection[PeerId], peer: PeerId) -> bool:
        """Whether ``peer`` can be quarantined as well. Of n members a majority, n // 2 + 1, must
        stay, and as many as the rule needs."""
        locked = self.quarantined()
        inside = len(locked.intersection(members))
        return (
            len(locked) < max(self.f, bool(self._standings[peer].audited))
            and inside < (len(members) - 1) // 2
            and not self._lacks_updates(members, locked | {peer})
        )

    def _lacks_updates(self, members: Collection[PeerId], locked: frozenset[PeerId]) -> bool:
        """Whether the other peers are too few for the rule, and peers in quarantine could be
        released."""
        inside = locked.intersection(members)
        proven = sum([1 for peer in inside if self._standings[peer].is_proven])
        left = max(0, min(self.f, len(self._updates_for) - 1) - proven)
        return len(inside) > proven and len(members) - len(inside) < self._updates_for[left]

    def _most_suspicious(self, peer: PeerId) -> tuple[bool, float, float, PeerId]:
        standing = self._standings[peer]
        return not standing.is_proven, standing.trust, -standing.typical, peer

    def _least_suspicious(self, members: Collection[PeerId]) -> PeerId | None:
        """Return the next peer to release of those in quarantine without proof. Peers that are
        there for other reasons than outlyingness come last."""
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
        """Whether ``peer`` is clearly more suspicious than a peer in quarantine: it is proven
        Byzantine, or much farther out. Otherwise two similar peers would alternate."""
        ours, theirs = self._standings[peer], self._standings[locked]
        return ours.is_proven or ours.typical > self.settings.farther * theirs.typical > 0.0

    def _set_free(self, peer: PeerId, round_id: int) -> TrustTransition:
        """Move a peer from quarantine to parole."""
        standing = self._standings[peer]
        standing.phase, standing.score = "parole", self._parole_score
        standing.served = max(standing.served, self._parole_score)
        standing.rounds_left = self.settings.parole_rounds
        # Old evidence must not be a reason for later transitions. Its outlyingness is kept, since
        # different data stay different.
        standing.recent = tuple(standing.distances)
        standing.refused = standing.twice = standing.audited = 0
        return self._transition(peer, "parole", round_id)

    def standing_out(self, round_id: int) -> list[TrustTransition]:
        """Return transitions for the suspected and the quarantined peers, as if of ``round_id``."""
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
        rows = tuple(
            [
                (
                    p,
                    s.score,
                    s.suspected,
                    s.phase,
                    s.rounds_left,
                    s.recent,
                    s.served,
                    s.refused,
                    s.twice,
                    s.accusations,
                    *([s.audited] if s.audited else []),
                )
                for p, s in sorted(self._standings.items())
            ]
        )
        return rows, self._windows, self._unequal, self._since

    def unpack(self, packed: Any) -> None:
        """Load data from ``pack`` of another peer. Raises ``ValueError``, and changes nothing,
        if the data is something else."""
        if not isinstance(packed, tuple | list) or len(packed) != 4:
            raise ValueError("trust: expected rows and three counts")
        rows, *counts = packed
        if not _are_counts(counts) or max(counts) > ROUND_MAX:
            raise ValueError("trust: counts of measurements must be non-negative integers")
        self._standings = _standings_of(rows)
        self._windows, self._unequal, self._since = counts
        self._locked_ever = any(standing.phase != "normal" for standing in self._standings.values())


def _worse(known: Rejection | None, other: Rejection) -> Rejection:
    """Return the worse of two rejections of one peer in two shards of a round: the one with
    evidence, else the one farther out."""
    if known is None or other.reason in WORDS:
        return other
    is_farther = known.reason == other.reason and other.outlyingness > known.outlyingness
    return other if is_farther else known


def _singular(name: str) -> str:
    return WORDS[name].replace("outliers", "an outlier").replace("were ", "was ")


def _times(value: float) -> str:
    return f"{value:.1f} times" if value < 1000 else "over 1000 times"


def _standings_of(packed: Any) -> dict[PeerId, _Standing]:
    if not isinstance(packed, tuple | list) or len(packed) > PEERS_MAX:
        raise ValueError("trust: not a table of peers")
    return dict([_standing_of(row) for row in packed])


def _standing_of(row: Any) -> tuple[PeerId, _Standing]:
    """Unpack the row of a peer."""
    if not isinstance(row, tuple | list) or len(row) not in (10, 11):
        raise ValueError("trust: expected a row of 10 or 11 fields")
    whole = [*row, 0] if len(row) == 10 else row
    peer, score, suspected, phase, rounds_left, recent, served, *counts = whole
    refused, twice, accusations, audited = counts
    if not _are_counts((peer, rounds_left, refused, twice, audited)):
        raise ValueError("trust: peers and rounds must be non-negative integers")
    for value in (score, served):
        if (
            not isinstance(value, int | float)
            or not 0.0 <= value <= 1.0
            or not isinstance(suspected, bool)
        ):
            raise ValueError(f"trust: invalid score {value!r}")
    if phase not in ("normal", "quarantined", "parole"):
        raise ValueError(f"trust: invalid phase {phase!r}")
    return peer, _Standing(
        float(score),
        float(served),
        suspected,
        rounds_left,
        phase,
        _evidence_of(recent),
        refused,
        twice,
        audited,
        _accusations_of(accusations),
    )


def _evidence_of(packed: Any) -> tuple[Observed, ...]:
    """Unpack the recent evidence of a peer."""
    if not isinstance(packed, tuple | list) or len(packed) > TRUST_ROUNDS:
        raise ValueError("trust: too many recent updates")
    evidence = [item if isinstance(item, tuple | list) else ("", item) for item in packed]
    for item in evidence:
        if len(item) != 2 or item[0] not in ("", *WORDS):
            raise ValueError("trust: evidence without a valid name")
        if not isinstance(item[1], int | float) or not 0.0 <= item[1] <= FAR_MAX:
            raise ValueError("trust: evidence without a valid number")
    return tuple([(str(name), float(far)) if name else float(far) for name, far in evidence])


def _are_counts(values: Iterable[Any]) -> bool:
    return all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )


def _accusations_of(packed: Any) -> tuple[tuple[int, tuple[PeerId, ...]], ...]:
    if not isinstance(packed, tuple | list) or len(packed) > ACCUSED_ROUNDS:
        raise ValueError("trust: too many accusations")
    for item in packed:
        if (
            not isinstance(item, tuple | list)
            or len(item) != 2
            or not isinstance(item[1], tuple | list)
        ):
            raise ValueError("trust: expected a round and its accusers")
        if not _are_counts((item[0], *item[1])) or len(item[1]) > PEERS_MAX:
            raise ValueError("trust: an accusation with an invalid round or peer")
    return tuple([(at, tuple(by)) for at, by in packed])
