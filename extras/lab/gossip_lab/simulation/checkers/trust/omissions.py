"""S14, L6: servers that are skipped because their results do not arrive.

A server is skipped only if more than f peers claim for the same rounds that they have not received
its result in time. Every peer that has waited makes this claim. On all peers the skip lasts for the
same, prescribed number of rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import floor, log

from gossip.core import (
    ACCUSATIONS_MAX,
    Aggregated,
    Commit,
    CoreSettings,
    PeerId,
    Report,
    Send,
)
from gossip_lab.simulation.checkers.base import PerIncarnation, keep_latest, on_effect, on_report

from .histories import Decision, HistoryChecker

TURNS = ("passed_over", "serves_again")
KNOWN_MAX = 32  # maximum number of waits that a peer still stores
OPEN_MAX = 16
"""Maximum number of rounds of one server with open claims. Beyond it, a core may drop claims."""


@dataclass(frozen=True, slots=True)
class OmissionRecord:
    """Record, along a history, of servers whose results other peers did not receive. ``wrong`` is
    (peer, error text) if a decision of the core does not follow from this record.

    Attributes:
        claims: (server, round) -> peers that claim that they did not receive its result.
        rounds: Server -> two numbers of rounds in which more than f peers did not receive its
            result: since it was last skipped, and since a result of it was last accepted.
        rests: Server -> number of rounds for which it is still skipped.
        again: Servers that were skipped before. For them, fewer rounds are enough for the next
            skip.
    """

    settings: CoreSettings
    claims: dict[tuple[PeerId, int], frozenset[PeerId]] = field(default_factory=dict)
    rounds: dict[PeerId, tuple[int, int]] = field(default_factory=dict)
    rests: dict[PeerId, int] = field(default_factory=dict)
    again: frozenset[PeerId] = frozenset()
    wrong: tuple[PeerId, str] | None = None

    @property
    def f(self) -> int:
        return self.settings.f

    @property
    def window(self) -> int:
        """Number of rounds after which a peer need not make a claim any more."""
        return 64 + 16 * self.f

    def enough(self, start: float) -> int:
        """Return the number of rounds without result after which a server's score falls from
        ``start`` below the threshold."""
        trust = self.settings.trust
        return floor(log(trust.quarantine_below / start) / log(trust.heard_memory)) + 1

    def needs_claim(self, by: PeerId, server: PeerId, of_round: int, round_id: int) -> bool:
        """Whether the record still needs a claim of ``by`` about the round ``of_round``, if it is
        made in ``round_id``."""
        known = self.claims.get((server, of_round), frozenset())
        open_rounds = sum(peer == server for peer, _ in self.claims)
        is_claimed = by in known or len(known) > self.f
        return (
            not is_claimed
            and server not in self.rests
            and of_round >= round_id - self.window
            and open_rounds < OPEN_MAX
        )

    def after(
        self,
        commits: Sequence[Commit],
        turns: Iterable[tuple[PeerId, str]],
        locked: Collection[PeerId],
    ) -> OmissionRecord:
        """Return the record after one more round.

        Args:
            turns: Decisions in this round that the core has reported: ``(peer, "passed_over" or
                "serves_again")``.
            locked: Peers in quarantine after this round.
        """
        round_id, roster = commits[0].round_id, commits[0].roster
        passed_over, back = ([peer for peer, turn in turns if turn == which] for which in TURNS)
        rests = {peer: left - 1 for peer, left in self.rests.items() if left > 1}
        due = [peer for peer, left in self.rests.items() if left == 1]
        claims, rounds = dict(self.claims), dict(self.rounds)
        for commit in commits:
            if commit.digest and commit.server in rounds:
                rounds[commit.server] = rounds[commit.server][0], 0
        for commit in commits:
            for accusation in commit.accusations:
                key = accusation.peer, accusation.round_id
                before = claims.get(key, frozenset())
                fresh = (
                    accusation.peer not in rests
                    and accusation.round_id >= round_id - self.window
                    and len(before) <= self.f
                )
                if accusation.silent and accusation.peer != commit.server and fresh:
                    claims[key] = before | {commit.server}
                    if len(claims[key]) > self.f:
                        rounds[accusation.peer] = tuple(
                            number + 1 for number in rounds.get(accusation.peer, (0, 0))
                        )  # type: ignore[assignment]
        wrong = None
        for peer in {*due} ^ {*back}:
            does = "serves" if peer in back else "does not serve"
            wrong = peer, f"{does} again after round {round_id}"
        claims = {key: by for key, by in claims.items() if key[1] >= round_id - self.window}
        after = replace(self, claims=claims, rounds=rounds, rests=rests, again=self.again | {*due})
        wrong = wrong or after.find_error(round_id, roster, passed_over, {*rests, *locked})
        for peer in passed_over:
            rests[peer], rounds[peer] = self.settings.trust.quarantine_rounds, (0, 0)
        return replace(after, wrong=wrong)

    def find_error(
        self,
        round_id: int,
        roster: Collection[PeerId],
        passed_over: list[PeerId],
        out: set[PeerId],
    ) -> tuple[PeerId, str] | None:
        """Return (peer, error text) if a decision to skip a server is wrong or missing.

        Args:
            passed_over: Peers that are skipped from now on.
            out: Peers that were already skipped, and peers in quarantine.
        """
        rounds = self.rounds
        for peer in passed_over:
            least = self.enough(self.settings.trust.suspect_below if peer in self.again else 1.0)
            if (number := rounds.get(peer, (0, 0))[0]) < least:
                text = "more than f have waited without a result in"
                return peer, f"is skipped with round {round_id}: {text} {number}, of {least}"
        if passed_over and len({*out, *passed_over}) > self.f:
            text = f"{sorted(out)} are out, although only {self.f} may be"
            return passed_over[0], f"is skipped with round {round_id}, but {text}"
        room = min(self.f - len(out), (len(roster) - 1) // 2 - len(out.intersection(roster)))
        silent = [
            peer
            for peer, (_, since) in rounds.items()
            if since >= self.enough(1.0) and peer in roster and peer not in out
        ]
        for peer in silent if len(silent) <= room else ():
            if peer not in passed_over:
                text = (
                    f"still serves after round {round_id}, although more than f have waited "
                    "for it without a result"
                )
                return peer, f"{text} in {rounds[peer][1]} of its consecutive turns"
        return None


class OmissionSkipsFollowCommits(HistoryChecker):
    """S14: along a history a server is skipped after more than f peers have waited in vain for its
    result in enough rounds, and not earlier. The skip lasts for the prescribed number of rounds, in
    which the server makes no result. A peer that has waited in vain states this in its next own
    commit."""

    invariant = "S14"
    decision_events = TURNS
    record_kind = OmissionRecord
    # (server, round) of the results that the peer did not receive.
    _missing_results = PerIncarnation(dict[tuple[PeerId, int], None])

    @on_report("attempt")
    def record_wait(self, report: Report) -> None:
        silent = server_without_commit(report)
        rounds = self.rolling
        waited = self._missing_results
        if silent is None or report.fields["round"] != rounds.round_id:
            return
        # Up to f of the expected peers may withhold their updates. If the remaining peers are not a
        # quorum, an honest server could not make a result either.
        if len(rounds.server.quorum.expected()) - self.core.settings.f < rounds.quorum():
            return
        if silent != self.peer:
            waited[silent, rounds.round_id] = None
            keep_latest(waited, KNOWN_MAX)

    @on_effect
    def judge_accusations(self, send: Send, commit: Commit) -> None:
        history = self.records.get(commit.parent)
        if commit.server != self.peer or type(self.swarm.dispatcher.event) is not Aggregated:
            return
        if not self.core.settings.f or history is None:
            return
        if len(commit.accusations) >= ACCUSATIONS_MAX:
            return
        told = {(each.peer, each.round_id) for each in commit.accusations if each.silent}
        for server, of_round in self._missing_results:
            if history.needs_claim(self.peer, server, of_round, commit.round_id):
                self.demand(
                    (server, of_round) in told,
                    f"has waited for peer {server} in round {of_round} without a result, but does "
                    f"not state this in its result of round {commit.round_id}",
                )

    def follow(
        self, before: OmissionRecord, commits: Sequence[Commit], decisions: Sequence[Decision]
    ) -> OmissionRecord | None:
        if self.rolling.round_id != commits[0].round_id + 1:
            return None  # several rounds were applied at once
        trust = self.rolling.replicated.trust
        others = [
            other
            for other in commits[0].roster
            if other not in before.rests and trust.may_serve(other)
        ]
        for commit in commits:
            if commit.server in before.rests and len(others) > self.core.settings.f:
                raise self.violated(
                    f"round {commit.round_id}, shard {commit.shard} was made by peer "
                    f"{commit.server}, which is skipped"
                )
        self.judged += bool(decisions or before.rounds)
        return before.after(commits, decisions, trust.quarantined())


def server_without_commit(report: Report) -> PeerId | None:
    """Return the server that sent no commit in time, if this is the reason in a report of a new
    attempt; else None."""
    words = report.fields["reason"].split()  # "no commit from PEER in time"
    return int(words[3]) if words[-2:] == ["in", "time"] else None
