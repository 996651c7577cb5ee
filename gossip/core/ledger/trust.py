"""One score a peer from evidence with a name: who is suspected, quarantined, on parole, and why.

A pure function of the commits, so all peers whose commits agree hold the same table. Crashes and
lateness are no evidence: only what a peer has sent is. Peers that have refused a result of a server
say so in the commits that they make themselves (``Accusation``). Once more than f have accused the
same result, one of them is honest. A peer's life in the table:

    normal --score < quarantine_below--> quarantined
    quarantined --trusted again by what it sends--> on parole
    quarantined --quarantine_rounds--> on parole
    quarantined --another is more suspicious, or too few are left--> on parole
    on parole --score < quarantine_below--> quarantined
    on parole --parole_rounds--> normal

Suspicion is not proof. An honest peer whose data differ stands out like a Byzantine one. So the
updates of peers in quarantine do not go into the rule, and the rule goes on tolerating f: the
Byzantine peers may be among the others. Only proof lowers f (``proven``). There are two kinds: two
results of one turn, stated by more than f peers each, and a wrong answer for a micro-batch of a
pipeline, found by more than f (``audits.py``). The latter quarantines at once, also where f is 0.
Suspicion alone quarantines f peers at most, the most suspicious first, and nobody where the rule
would be left with too few updates.

A peer in quarantine is still measured. In every second round the rule runs once more, with its
update beside those of the others, and only how far out it lies is used. So its score goes on. After
at most ten such updates in a row that do not stand out (``TrustSettings.updates_to_return``) it is
trusted again. Good updates do not outweigh what is against a peer as a server.

Quarantine and parole are counted in rounds that the table has learnt from, not by round numbers. A
peer may go on from a round that is far away, even because a Byzantine peer said so, and that frees
nobody.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gossip.core.events import Report
from gossip.core.messages import Commit, Contribution, PeerId, Rejection
from gossip.core.settings import TrustSettings

from .spread import UNEQUAL, beyond_chance

NO_FAR = ("non_finite", "wrong_size")
"""Evidence that is no distance."""

MEASURED_EVERY = 10
"""Rounds, after which it is measured whether the data of peers differ."""

UNEQUAL_OFTEN, UNEQUAL_SHARE = 3, 8
"""Number of unequal measurements, or one in this many, from which on the data of peers count as
different. Chance alone reaches it less often."""

COUNT_MAX = 2**53

RECENT = 20
"""Updates of a peer that say how far out it is as a rule, and that its reasons speak of."""

MOST_PEERS = 2**16
DIGITS = 2
"""Decimals that are kept of how far out an update lies, in multiples of the typical distance: the
tables of a thousand peers are to fit a message."""
FAR_MAX = 3.5e38
"""How far out an update may be said to lie: beyond any float32, which is where rules stop."""

NOBODY: frozenset[PeerId] = frozenset()

Change: TypeAlias = Literal["suspected", "trusted", "quarantined", "parole", "cleared"]

Observed: TypeAlias = float | tuple[str, float]
"""How far out an update lay, and the name of what speaks against it where something does."""

ACCUSATIONS_OPEN = 16
"""Rounds of one peer's results of which others have said that they refused them, at most."""

# What counts as evidence, in words for "3 of the last 20 updates ...". Rejections for any other
# reason say nothing about lying.
WORDS = {
    "outlying": "were outliers",
    "non_finite": "were not finite",
    "wrong_size": "had the wrong size",
}


@dataclass(frozen=True, slots=True)
class TrustTransition:
    """Something that changed about a peer with the commit of ``round_id``."""

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
    refused: int = 0  # results that more than f have refused, since its last quarantine
    twice: int = 0  # turns in which it is proven to have told two results, likewise
    audited: int = 0  # times that audits have found it, likewise
    # round of a result -> who refused it; (): enough
    accusations: tuple[tuple[int, tuple[PeerId, ...]], ...] = ()

    @property
    def trust(self) -> float:
        return min(self.score, self.served)

    @property
    def is_proven(self) -> bool:
        """Whether it is certain that it lies."""
        return bool(self.twice or self.audited)

    @property
    def evidence(self) -> list[tuple[str, float]]:
        """Evidence of its recent updates, oldest first: the name of the evidence against an update,
        "" for none, and how far out the update lay."""
        return [item if isinstance(item, tuple) else ("", item) for item in self.recent]

    @property
    def distances(self) -> list[float]:
        """How far out its recent updates lay, oldest first."""
        return [far for name, far in self.evidence if name not in NO_FAR]

    @property
    def typical(self) -> float:
        """How far out its recent updates lie that stood out: their median; 0.0 without any."""
        far = sorted([value for name, value in self.evidence if name == "outlying"])
        return far[len(far) // 2] if far else 0.0


_UNKNOWN = _Standing()


class TrustTable:
    """Scores in [0, 1], 1 at first.

    Args:
        settings: Thresholds and lengths.
        f: Byzantine peers to tolerate, and the most that may be quarantined at once. With 0 the
            table scores and suspects, but quarantines nobody: without a bound on the liars a
            majority could be locked out by noise.
        updates_for: What the rule needs to tolerate 0, 1, ... f.
        judged: Whether it tells updates apart by a judge, for whom different data are no offence.
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
        # measurements so far, those that found more than chance, and rounds since the last one
        self._windows = self._unequal = self._since = 0
        self.beyond_chance: float | None = None  # as it was measured last
        self._standings: dict[PeerId, _Standing] = {}
        # rounds in which more than f different peers have served, as good as certainly
        self._window = 64 + 16 * f
        self._locked_ever = False  # somebody has been in quarantine: most runs need not look who is
        self._parole_score = (settings.suspect_below + settings.quarantine_below) / 2

    # --- what it says -----------------------------------------------------------------------------

    def score(self, peer: PeerId) -> float:
        standing = self._standings.get(peer)
        return 1.0 if standing is None else min(standing.score, standing.served)

    def scores(self) -> dict[PeerId, float]:
        """Return the score of every peer that was ever judged, by peer."""
        return {peer: min(s.score, s.served) for peer, s in sorted(self._standings.items())}

    def suspected(self) -> tuple[PeerId, ...]:
        return tuple(
            sorted(peer for peer, standing in self._standings.items() if standing.suspected)
        )

    def quarantined(self) -> frozenset[PeerId]:
        """Return the peers whose updates the next round does not aggregate."""
        if not self._locked_ever:
            return NOBODY
        return frozenset(
            [peer for peer, standing in self._standings.items() if standing.phase == "quarantined"]
        )

    def proven(self) -> frozenset[PeerId]:
        """Those in quarantine of whom it is certain that they lie: each is one less of the f that
        the rule has to tolerate."""
        return frozenset([peer for peer in self.quarantined() if self._standings[peer].is_proven])

    def may_serve(self, peer: PeerId) -> bool:
        """Whether it may serve the next round: not in quarantine, and not on parole."""
        standing = self._standings.get(peer)
        return standing is None or standing.phase == "normal"

    def servers(self, peers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        """Those of ``peers`` who may."""
        return tuple(filter(self.may_serve, peers)) if self._locked_ever else peers

    def reasons(self, peer: PeerId) -> tuple[str, ...]:
        """Why the score is what it is, the most frequent first;
        empty when nothing speaks against the peer."""
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
            found.append(f"{results} refused by more than {self.f} peers")
        if standing.twice:
            found.append(
                f"it told different peers different results in {standing.twice} of its turns"
            )
        if standing.audited:
            found.append("its answers for micro-batches are not what others of its stage compute")
        return tuple(found)

    def lacks(self, accuser: PeerId, peer: PeerId, of_round: int, round_id: int) -> bool:
        """Whether the charge of ``accuser`` is of use: not known yet,
        and not too old in ``round_id``."""
        standing = self._standings.get(peer, _UNKNOWN)
        known = dict(standing.accusations).get(of_round)
        new = known is None or (bool(known) and accuser not in known)
        return new and of_round >= round_id - self._window and standing.phase != "quarantined"

    # --- what it learns ---------------------------------------------------------------------------

    def observe_round(
        self,
        commits: Sequence[Commit],
        proven: Sequence[PeerId] = (),
        audited: Sequence[PeerId] = (),
    ) -> list[TrustTransition]:
        """Learns from the commits of one round, one a shard. A peer that stands out in one shard
        stands out. ``proven``: who has told different peers different results in one turn, as it is
        certain with this round; ``audited``: whom audits have found, likewise."""
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
            standing.served, standing.audited = 0.0, min(standing.audited + 1, RECENT)
        for peer in proven:
            standing = self._standings.setdefault(peer, _Standing())
            standing.served *= self.settings.twice_memory
            standing.twice = min(standing.twice + 1, RECENT)
        return self.observe_commit(
            commits[0].round_id,
            contributors.values(),
            rejected.values(),
            roster=commits[0].roster or None,
            accused=accused,
        )

    def _serve(self, commits: Sequence[Commit]) -> tuple[PeerId, ...]:
        """Learns who has made a result that was taken, and who one that was refused. Returns whose
        trust may have changed."""
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
                    self._accusation(
                        self._standings.setdefault(accusation.peer, _Standing()),
                        commit,
                        accusation.round_id,
                    )
                    changed.append(accusation.peer)
        return tuple(changed)

    def _accusation(self, standing: _Standing, commit: Commit, of_round: int) -> None:
        """The server of ``commit`` says that it has refused a result.
        Once more than f have, it counts."""
        accusations = {
            at: by for at, by in standing.accusations if at >= commit.round_id - self._window
        }
        by = tuple(sorted({*accusations.get(of_round, ()), commit.server}))
        enough = len(by) > self.f
        accusations[of_round] = () if enough else by
        # No liar can push out by charges of its own what others say, too.
        kept = sorted(
            accusations.items(),
            key=lambda accusation: (not accusation[1], len(accusation[1]), accusation[0]),
        )[-ACCUSATIONS_OPEN:]
        standing.accusations = tuple(sorted(kept))
        if enough:
            standing.served *= self.settings.served_memory
            standing.refused = min(standing.refused + 1, RECENT)

    def observe_commit(
        self,
        round_id: int,
        contributors: Iterable[Contribution],
        rejected: Iterable[Rejection],
        *,
        roster: Sequence[PeerId] | None = None,
        accused: Sequence[PeerId] = (),
    ) -> list[TrustTransition]:
        """Learns from one round.

        Args:
            roster: Whose majority must stay out of quarantine; when None,
                everybody who was ever judged.
            accused: Whose trust may have changed otherwise.
        Returns: what changed, in the order of the peers.
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
            told = 0.0 if verdict[0] else 1.0
            standing.score = memory * standing.score + (1.0 - memory) * told
            name, far = verdict[0], round(verdict[1], DIGITS)
            standing.recent = (*standing.recent[1 - RECENT :], (name, far) if name else far)
        self._since += 1
        if self._since >= MEASURED_EVERY and not self._judged:
            self._since = 0
            self._measure()
        looked_at = dict.fromkeys([*judged, *accused])
        changes = [
            *self._release(round_id),
            *self._suspect(round_id, looked_at),
            *self._quarantine(round_id, roster),
        ]
        return sorted(changes, key=lambda change: change.peer)

    def _measures_of_locked(self, rejected: Sequence[Rejection]) -> list[Rejection]:
        """Those of peers in quarantine, whose updates the rule has seen and not used."""
        if not self._locked_ever:
            return []
        locked = self.quarantined()
        return [each for each in rejected if each.reason == "quarantined" and each.peer in locked]

    def _bound(self, contributors: Sequence[Contribution]) -> float:
        """How far out an update has to lie.

        Where the data of peers differ, distance tells liars from honest peers less and less: labels
        sorted by peer, two honest peers of ten lay 7.6 typical distances out, the others up to 2.5.
        So the bound grows with the square of what is usual. It is ``outlying`` times as high where
        the same peers were farther out by more than chance; data stay different when a model has
        converged, and the measure no longer shows it.
        """
        outlying = self.settings.outlying
        if self._judged:
            return outlying
        unit = self._spread(contributors)
        unequal = self._unequal >= UNEQUAL_OFTEN or self._unequal * UNEQUAL_SHARE > self._windows
        return outlying * unit * unit * (outlying if unequal else 1.0)

    def _spread(self, contributors: Sequence[Contribution]) -> float:
        """How far out the updates of honest peers lie as a rule, in units of the median distance;
        at least 1.

        All but f are honest, so that of n peers the f + 1st farthest is no farther out than some
        honest one is. Where peers have different data that is far beyond the median. A peer's rule
        is the median of its recent updates.
        """
        usual = []
        for contribution in contributors:
            past = sorted([*self._past(contribution.peer), contribution.outlyingness])
            usual.append(past[len(past) // 2])
        nearest = sorted(usual)[: max(0, len(usual) - max(1, self.f))]
        return max([1.0, *nearest[-1:]])

    def _measure(self) -> None:
        """Whether the same peers were farther out again and again, by more than chance, in the
        rounds that are remembered."""
        known = [
            far
            for _, standing in sorted(self._standings.items())  # as a peer that took it over has it
            if standing.phase != "quarantined" and len(far := standing.distances) >= MEASURED_EVERY
        ]
        length = min([len(far) for far in known], default=0)
        self.beyond_chance = beyond_chance([far[-length:] for far in known], self.f)
        if self.beyond_chance is not None:
            self._windows += 1
            self._unequal += self.beyond_chance > UNEQUAL

    def _past(self, peer: PeerId) -> list[float]:
        """How far out the recent updates of a peer lay, all but the one that is the next to be
        forgotten."""
        standing = self._standings.get(peer)
        if standing is None:
            return []
        return standing.distances[1 - RECENT :]

    def _stands_out(self, contribution: Contribution | Rejection, bound: float) -> bool:
        """Whether an update lies farther out than ``bound``, and so do this peer's updates as a
        rule: the geometric mean of the recent ones.

        Once a model fits its data nearly all gradients are tiny, and one batch with a sample that
        it gets wrong is ten or a hundred times as large: whoever has that batch is far out in this
        round, and near in the next. A liar is far out in all. One update counts no more than
        ``outlying`` squared, and no less than its inverse, else a single one would outweigh all.
        """
        outlying = self.settings.outlying
        if not contribution.outlyingness > bound:
            return False
        recent = (*self._past(contribution.peer), contribution.outlyingness)
        # As a product of quotients: the same bits on every machine, which logarithms are not.
        return (
            math.prod([min(max(1.0 / outlying**3, far / bound), outlying) for far in recent]) > 1.0
        )

    def _release(self, round_id: int) -> list[TrustTransition]:
        """A round less to go, and whoever has none left goes on: from quarantine to parole, from
        there to normal. Who is trusted again by what it has sent goes on parole at once."""
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
        """Whether a quarantine is over before its time: by its updates, where it was not for what
        is against the peer as a server."""
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
        """Quarantines who is suspicious enough, and releases others where there is no room."""
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
        """Lets the least suspicious go while the rule has too few updates to tolerate f."""
        changes: list[TrustTransition] = []
        while self._lacks_updates(members, self.quarantined()):
            least = self._least_suspicious(members)
            if least is None:
                break
            changes.append(self._set_free(least, round_id))
        return changes

    def _has_room(self, members: Collection[PeerId], peer: PeerId) -> bool:
        """Whether ``peer`` can be quarantined, too: of n members a majority, n // 2 + 1, must stay,
        and as many as the rule needs."""
        locked = self.quarantined()
        inside = len(locked.intersection(members))
        return (
            len(locked) < max(self.f, bool(self._standings[peer].audited))
            and inside < (len(members) - 1) // 2
            and not self._lacks_updates(members, locked | {peer})
        )

    def _lacks_updates(self, members: Collection[PeerId], locked: frozenset[PeerId]) -> bool:
        """Whether the others are too few for the rule, and those in quarantine would help."""
        inside = locked.intersection(members)
        proven = sum([1 for peer in inside if self._standings[peer].is_proven])
        left = max(0, min(self.f, len(self._updates_for) - 1) - proven)
        return len(inside) > proven and len(members) - len(inside) < self._updates_for[left]

    def _most_suspicious(self, peer: PeerId) -> tuple[bool, float, float, PeerId]:
        standing = self._standings[peer]
        return not standing.is_proven, standing.trust, -standing.typical, peer

    def _least_suspicious(self, members: Collection[PeerId]) -> PeerId | None:
        """The next to be released of those in quarantine without proof. Peers that are there for
        anything else than a distance come last."""
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
        """Whether ``peer`` is clearly more suspicious than one in quarantine: it is proven to
        lie, or lies much farther out. Else two alike would take turns."""
        ours, theirs = self._standings[peer], self._standings[locked]
        return ours.is_proven or ours.typical > self.settings.farther * theirs.typical > 0.0

    def _set_free(self, peer: PeerId, round_id: int) -> TrustTransition:
        """Move a peer from quarantine to parole."""
        standing = self._standings[peer]
        standing.phase, standing.score = "parole", self._parole_score
        standing.served = max(standing.served, self._parole_score)
        standing.rounds_left = self.settings.parole_rounds
        # Otherwise the old offences would be told as the reason for what happens from now on. How
        # far out it lay stays known: who is different is so afterwards, too.
        standing.recent = tuple(standing.distances)
        standing.refused = standing.twice = standing.audited = 0
        return self._transition(peer, "parole", round_id)

    def standing_out(self, round_id: int) -> list[TrustTransition]:
        """Return transitions for the suspected and the quarantined peers, as if they had come with
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
        """The whole table as plain tuples, for a peer that takes over our state."""
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
        """Takes over what ``pack`` gave elsewhere. Raises ``ValueError``, and changes nothing,
        when it is not that."""
        if not isinstance(packed, tuple | list) or len(packed) != 4:
            raise ValueError("trust: a table has rows and three counts")
        rows, *counts = packed
        if not _are_counts(counts) or max(counts) > COUNT_MAX:
            raise ValueError("trust: measurements are whole numbers")
        self._standings = _standings_of(rows)
        self._windows, self._unequal, self._since = counts
        self._locked_ever = any(standing.phase != "normal" for standing in self._standings.values())


def _worse(known: Rejection | None, other: Rejection) -> Rejection:
    """Return the worse of two rejections of one peer, in two shards of a round: evidence by its
    name, or else the one farther out."""
    if known is None or other.reason in WORDS:
        return other
    is_farther = known.reason == other.reason and other.outlyingness > known.outlyingness
    return other if is_farther else known


def _singular(name: str) -> str:
    return WORDS[name].replace("outliers", "an outlier").replace("were ", "was ")


def _times(value: float) -> str:
    return f"{value:.1f} times" if value < 1000 else "over 1000 times"


def _standings_of(packed: Any) -> dict[PeerId, _Standing]:
    if not isinstance(packed, tuple | list) or len(packed) > MOST_PEERS:
        raise ValueError("trust: not a table of peers")
    return dict([_standing_of(row) for row in packed])


def _standing_of(row: Any) -> tuple[PeerId, _Standing]:
    """A peer and where it stands."""
    if not isinstance(row, tuple | list) or len(row) not in (10, 11):
        raise ValueError("trust: a row has 10 fields, and one more of who was found by audits")
    whole = [*row, 0] if len(row) == 10 else row
    peer, score, suspected, phase, rounds_left, recent, served, *counts = whole
    refused, twice, accusations, audited = counts
    if not _are_counts((peer, rounds_left, refused, twice, audited)):
        raise ValueError("trust: peers and rounds are whole numbers")
    for value in (score, served):
        if (
            not isinstance(value, int | float)
            or not 0.0 <= value <= 1.0
            or not isinstance(suspected, bool)
        ):
            raise ValueError(f"trust: a score of {value!r}")
    if phase not in ("normal", "quarantined", "parole"):
        raise ValueError(f"trust: a phase of {phase!r}")
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
    """The recent evidence against a peer."""
    if not isinstance(packed, tuple | list) or len(packed) > RECENT:
        raise ValueError("trust: too long a memory")
    evidence = [item if isinstance(item, tuple | list) else ("", item) for item in packed]
    for item in evidence:
        if len(item) != 2 or item[0] not in ("", *WORDS):
            raise ValueError("trust: evidence without a name")
        if not isinstance(item[1], int | float) or not 0.0 <= item[1] <= FAR_MAX:
            raise ValueError("trust: evidence without a number")
    return tuple([(str(name), float(far)) if name else float(far) for name, far in evidence])


def _are_counts(values: Iterable[Any]) -> bool:
    return all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )


def _accusations_of(packed: Any) -> tuple[tuple[int, tuple[PeerId, ...]], ...]:
    if not isinstance(packed, tuple | list) or len(packed) > ACCUSATIONS_OPEN:
        raise ValueError("trust: too many charges")
    for item in packed:
        if (
            not isinstance(item, tuple | list)
            or len(item) != 2
            or not isinstance(item[1], tuple | list)
        ):
            raise ValueError("trust: a charge has a round and those who have said it")
        if not _are_counts((item[0], *item[1])) or len(item[1]) > MOST_PEERS:
            raise ValueError("trust: a charge of no round or by no peer")
    return tuple([(at, tuple(by)) for at, by in packed])
