"""S11, S14: quarantine follows only from what the rules measure.

A peer in quarantine does not serve, and its updates are not aggregated. The f of each rule is the
number of Byzantine peers that may remain. No peer makes an accusation without evidence of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from gossip.core import (
    DIGEST_BYTES,
    Aggregate,
    Aggregated,
    Apply,
    Commit,
    Committed,
    CoreSettings,
    PeerId,
    Push,
    Received,
    Report,
    header_bytes,
)
from gossip_lab.simulation.checkers.base import (
    REFUSALS,
    Checker,
    PerIncarnation,
    on_effect,
    on_event,
    on_report,
)
from gossip_lab.simulation.checkers.safety import members_of

from .histories import Decision, HistoryChecker
from .ledger import CLEARLY, Ledger, RoundEvidence
from .omissions import server_without_commit

REPORTED_DECISIONS = ("quarantined", "parole")


class QuarantineFollowsCommits(HistoryChecker):
    """S14, in rolling rounds: along a history, a peer is put into quarantine only for standing out,
    and stays for the prescribed time. A peer that stands out for long is put into quarantine if
    another Byzantine peer can be tolerated. A peer in quarantine neither contributes to commits nor
    makes commits."""

    invariant = "S14"
    decision_events = REPORTED_DECISIONS
    record_kind = Ledger

    def follow(
        self, before: Ledger, commits: Sequence[Commit], decisions: Sequence[Decision]
    ) -> Ledger:
        for commit in commits:
            self._judge_commit(before, commit)
        told = [(c.server, each) for c in commits for each in c.accusations if not each.silent]
        charged = [(by, each.peer, each.round_id) for by, each in told if not each.turn]
        stated = [
            (by, c.peer, c.round_id, c.turn, c.content) for by, c in told if c.turn and by != c.peer
        ]
        judged = _judged(commits, self.core.settings, before.quarantined())
        evidence = RoundEvidence(judged, charged, stated)
        self.judged += 1
        return before.after(commits[0].round_id, evidence, decisions, commits[0].roster)

    def _judge_commit(self, before: Ledger, commit: Commit) -> None:
        if commit.server in self.conditions.equivocating:
            return
        where = f"round {commit.round_id}, shard {commit.shard}"
        roster = self.rolling.roster
        contributors = [c.peer for c in commit.contributors]
        if used := _used_without_need(contributors, before, roster):
            raise self.violated(f"{where} uses updates of peers {used}, which are in quarantine")
        excluded_servers = before.excluded_servers()
        if commit.server in excluded_servers and any(
            other not in excluded_servers for other in roster
        ):
            raise self.violated(f"{where} was made by peer {commit.server}, which must not serve")

    @on_effect
    def judge_rule(self, ask: Aggregate) -> None:
        rounds = self.rolling
        if not self.core.settings.f or rounds.round_id != ask.round_id:
            return
        ledger = self.records.get(rounds.chain)
        if ledger is None or ask.shard >= len(rounds.shards):
            return
        shard = rounds.shards[ask.shard]
        if shard.served.ticket != ask.ticket or shard.commit is not None:
            return
        named = ask.peers or [row.peer for row in ask.rows]
        if ask.step != "whole":
            outside = {row.peer for row in ask.outside}
            named = [each for each in named if each not in outside]
        self.judged += 1
        if used := _used_without_need(named, ledger, rounds.roster):
            raise self.violated(_quarantine_text(ask, used))
        self._judge_outside(ask, ledger)
        self._judge_f(ask, ledger)

    def _judge_outside(self, ask: Aggregate, ledger: Ledger) -> None:
        """Check which updates are only measured. Only updates of unproven peers in quarantine may
        be. In every ``measured_every``-th round (every second round by default), all usable updates
        of these peers have to be."""
        where = f"round {ask.round_id}, shard {ask.shard}"
        served = self._served(ask)
        suspects = set(ledger.quarantined()) - set(ledger.proven())
        measured = {row.peer for row in ask.outside}
        if free := sorted(measured - suspects):
            raise self.violated(
                f"{where}: the updates of {free} are only measured, without quarantine"
            )
        inside = {row.peer for row in ask.rows} - measured
        kind = served.find_kind(inside) if inside else None
        usable = [peer for peer in served.usable() if served.answers[peer][0].kind == kind]
        due = set(usable) & suspects - inside
        is_due = ask.round_id % self.core.settings.trust.measured_every == 0
        if ask.step in ("whole", "measure") and ask.rows and is_due and not due <= measured:
            raise self.violated(
                f"{where}: of the peers in quarantine, {sorted(due)} are to be measured, but "
                f"{sorted(measured)} are"
            )

    def _served(self, ask: Aggregate) -> Any:
        return self.rolling.shards[ask.shard].served

    def _judge_f(self, ask: Aggregate, ledger: Ledger) -> None:
        """Check the f of the rule. It is lower than the f of the settings only because of proven
        Byzantine peers, or because some updates are not finite and the others are too few. At most
        f of the rows are Byzantine."""
        settings, answers = self.core.settings, self._served(ask).answers
        bears = f"round {ask.round_id}: its rule is to tolerate {ask.f} Byzantine peers"
        proven = [p for p in ledger.proven() if p in self.rolling.roster]
        f = max(0, settings.f - len(proven))
        numbers = {p: (told, update) for p, (told, update) in answers.items() if update}
        faulty = [p for p, (_, update) in numbers.items() if not update.finite]
        left = sum(1 for told, update in numbers.values() if update.finite and told.samples)
        faulty = [p for p in faulty if p not in proven]
        enough = max([n for n in range(f + 1) if settings.updates_needed(n) <= left], default=0)
        if ask.f != max(0, f - len(faulty), enough):
            raise self.violated(
                f"{bears}; f = {settings.f}, proven: {proven}, not finite: {faulty}"
            )
        attackers = self.conditions.attackers
        liars = [row.peer for row in ask.rows if row.peer in attackers]
        is_bound = settings.rounds.quorum != "available" and len(attackers) <= settings.f
        if is_bound and ask.f < len(liars):
            raise self.violated(f"{bears}, but gets updates of {liars}")


def _quarantine_text(ask: Aggregate, used: list[PeerId]) -> str:
    return f"round {ask.round_id}: its rule receives updates of {used}, which are in quarantine"


def _used_without_need(
    used: Sequence[PeerId], ledger: Ledger, roster: Collection[PeerId]
) -> list[PeerId]:
    """Return the used peers that must not be used: proven Byzantine peers, and all peers in
    quarantine if the updates of the other peers are enough for the rule."""
    quarantined, proven = ledger.quarantined(), ledger.proven()
    others = [peer for peer in used if peer not in quarantined]
    enough = len(others) >= ledger.updates_needed(roster)
    return [peer for peer in used if peer in (quarantined if enough else proven)]


def _judged(
    commits: Sequence[Commit], settings: CoreSettings, quarantined: Collection[PeerId]
) -> list[tuple[PeerId, int]]:
    """Return (peer, mark) for each peer that the rule has judged in this round. The mark is that of
    the shard in which the peer stood out most, see ``RoundEvidence``. Of the peers whose update was
    not used, only those in ``quarantined`` were measured."""
    farthest: dict[PeerId, float] = {}
    for commit in commits:
        for each in commit.contributors:
            farthest[each.peer] = max(farthest.get(each.peer, 0.0), each.outlyingness)
    outside: dict[PeerId, float] = {}
    faulty = []
    for commit in commits:
        for other in commit.rejected:
            if other.reason != "quarantined":
                faulty.append(other.peer)
            elif other.peer in quarantined and other.peer not in farthest:
                outside[other.peer] = max(outside.get(other.peer, 0.0), other.outlyingness)
    found = _standing_out(farthest, settings, outside)
    found.update(dict.fromkeys(faulty, CLEARLY))
    return sorted(found.items())


def _standing_out(
    farthest: Mapping[PeerId, float], settings: CoreSettings, outside: Mapping[PeerId, float]
) -> dict[PeerId, int]:
    """Return the mark of each peer, see ``RoundEvidence``. A peer may stand out if it is farther
    out than typical. It clearly stands out if it is also far beyond all peers but the f farthest,
    because honest data may differ. ``outside``: outlyingness of the peers in quarantine."""
    nearest = sorted(farthest.values())[: max(0, len(farthest) - max(1, settings.f))]
    least = settings.trust.outlying
    bound = least**2 * max([1.0, *nearest[-1:]]) ** 2
    return {
        peer: CLEARLY if far > bound else int(far > least)
        for peer, far in (*farthest.items(), *outside.items())
    }


class QuarantineFollowsLocalMeasurements(Checker):
    """S14, in gossip rounds: a peer puts peers into quarantine only because they stand out in the
    measurements of its own rule, or have sent it an update that is not finite. The f of its rule is
    the number of Byzantine peers that may remain."""

    invariant = "S14"
    needs = "gossip"
    _changes = PerIncarnation(list[tuple[PeerId, str]])
    _asked = PerIncarnation(dict[int, Aggregate])
    _judged = PerIncarnation(dict[PeerId, int])
    _ledger = PerIncarnation[Ledger | None]()

    @on_event
    def record_push(self, event: Received, push: Push) -> None:
        if event.payload is not None and not event.payload.finite:
            self._judged[event.sender] = CLEARLY

    @on_event
    def record_answer(self, event: Aggregated) -> None:
        ask = self._asked.pop(event.ticket, None)
        if ask is None or event.payload is None:
            return
        farthest = {
            row.peer: far
            for row, far in zip(ask.rows, event.outlyingness, strict=True)
            if row.peer != self.peer
        }
        outside = {row.peer: far for row, far in zip(ask.outside, event.outside, strict=False)}
        judged = self._judged
        for other, clearly in _standing_out(farthest, self.core.settings, outside).items():
            judged[other] = max(judged.get(other, 0), clearly)

    @on_report(*REPORTED_DECISIONS)
    def record_change(self, report: Report) -> None:
        self._changes.append((report.fields["subject"], report.event))

    @on_effect
    def judge_apply(self, apply: Apply) -> None:
        judged, self._judged = self._judged, {}
        changes, self._changes = self._changes, []
        if not self.core.settings.f:
            return
        evidence = RoundEvidence(sorted(judged.items()))
        after = (self._ledger or Ledger(self.core.settings)).after(
            apply.round_id, evidence, changes, members_of(self.core)
        )
        self.judged += 1
        if after.wrong is not None:
            raise self.violated(f"peer {after.wrong[0]} {after.wrong[1]}")
        self._ledger = after

    @on_effect
    def judge_rule(self, ask: Aggregate) -> None:
        settings = self.core.settings
        if not settings.f:
            return
        if not ask.mix:
            self._asked = {ask.ticket: ask}
        named = [row.peer for row in ask.rows]
        if used := _used_without_need(named, (self._ledger or Ledger(self.core.settings)), named):
            raise self.violated(_quarantine_text(ask, used))
        # Each additional Byzantine peer requires two more updates.
        without_any = max(1, settings.updates_min - 2 * settings.f)
        most = max(0, min(settings.f, (len(ask.rows) - without_any) // 2))
        self.demand(
            ask.f == most,
            f"round {ask.round_id}: its rule is to tolerate {ask.f} Byzantine peers among "
            f"{len(ask.rows)}, but {most} may be Byzantine",
        )


class AccusationsHaveLocalEvidence(Checker):
    """S14, in rolling rounds: the accusations in a commit are based on what its server has
    experienced itself. The server has rejected a result that the accused peer sent, has not
    received its result in time, or states a result that the accused peer has sent. Claims of other
    peers are not evidence."""

    invariant = "S14"
    # (peer, round) -> hashes of the results that this peer has sent itself.
    _received_results = PerIncarnation(dict[tuple[PeerId, int], set[bytes]])

    @on_event
    def record_handed(self, event: Received, commit: Commit) -> None:
        if event.sender == commit.server:
            content = blake2b(header_bytes(commit), digest_size=DIGEST_BYTES).digest()
            whose = event.sender, commit.round_id
            self._received_results.setdefault(whose, set()).add(content)

    @on_effect
    def judge(self, committed: Committed) -> None:
        for each in committed.commit.accusations if committed.made else ():
            whose = each.peer, each.round_id
            if each.turn:
                self.demand(
                    each.content in self._received_results.get(whose, ()),
                    f"states a result of peer {each.peer} in round {each.round_id} that it has "
                    "not received",
                )
                continue
            what = "waited for none" if each.silent else "rejected none by it"
            known = [_accused(report, each.silent) for _, report in self.host.reports]
            self.demand(
                whose in known,
                f"accuses peer {each.peer} of a result of round {each.round_id}, but it has {what}",
            )


def _accused(report: Report, silent: bool) -> tuple[PeerId | None, int] | None:
    """Return (accused peer, round) if the report is evidence for an accusation, else None: it
    reports a missing result if ``silent``, and otherwise a rejected result that its own server has
    sent."""
    fields = report.fields
    if silent:
        return (
            (server_without_commit(report), fields["round"]) if report.event == "attempt" else None
        )
    own = report.event in REFUSALS and fields["from"] == fields["server"]
    return (fields["from"], fields["round"]) if own else None
