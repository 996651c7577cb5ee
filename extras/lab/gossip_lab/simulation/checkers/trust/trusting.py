"""S14, S11: whom the rules find standing out is locked up, nobody else is; who is locked up is
neither aggregated nor serves; and each rule is told how many liars it has to bear. Nobody charges
another with what it has not seen itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

from gossip.core import (
    DIGEST_BYTES,
    Aggregate,
    Aggregated,
    Apply,
    Commit,
    Committed,
    CoreSettings,
    Effect,
    Event,
    Inspection,
    PeerId,
    Push,
    Received,
    Report,
    header_bytes,
)
from gossip_lab.simulation.checkers.base import REFUSALS, Checker
from gossip_lab.simulation.checkers.safety import members_of
from gossip_lab.simulation.world import AnySwarm

from .ledger import CLEARLY, Ledger, RoundEvidence

HISTORIES_KEPT = 512
TOLD = ("quarantined", "parole")


class TrustFollowsTheCommits(Checker):
    """S14, of rolling rounds: along a history a peer is in quarantine for standing out, for as long
    as it should be, and whoever stands out for long is, while more liars can be borne; and who is
    in quarantine contributes to no commit and makes none."""

    invariant = "S14"
    effects = (Committed, Apply, Report, Aggregate)

    def make_records(self) -> None:
        self._ledgers: dict[bytes, Ledger] = {}  # by the hash of the last round
        self._changes = self.per_life(list[tuple[PeerId, str]])
        self._pending = self.per_life(list[Committed])

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Report):
            if effect.event in TOLD:
                self._changes[peer].append((effect.fields["subject"], effect.event))
            elif (
                effect.event == "ready"
                and (core := swarm.inspections.get(peer)) is not None
                and (rounds := core.rolling)
            ):
                settings = core.settings
                self._ledgers.setdefault(
                    rounds.chain, Ledger(settings.trust, settings.f, settings.updates_for)
                )
        elif isinstance(effect, Committed):
            self._pending[peer].append(effect)
        elif isinstance(effect, Aggregate):
            self._on_aggregate(swarm, peer, effect)
        elif isinstance(effect, Apply):
            done, self._pending[peer] = self._pending[peer], []
            changes, self._changes[peer] = self._changes[peer], []
            core = swarm.inspections.get(peer)
            if done and core is not None and core.settings.f and done[0].chain not in self._ledgers:
                self._follow(swarm, peer, core, done, changes)

    def _follow(
        self,
        swarm: AnySwarm,
        peer: PeerId,
        core: Inspection,
        done: list[Committed],
        changes: list[tuple[PeerId, str]],
    ) -> None:
        commits = [committed.commit for committed in done]
        before = self._ledgers.get(commits[0].parent)
        if before is None:
            return  # it took over a state of which nobody has seen the history
        for commit in commits:
            self._judge_commit(swarm, peer, core, before, commit)
        told = [
            (commit.server, accusation)
            for commit in commits
            for accusation in commit.accusations
            if not accusation.silent
        ]
        charged = [
            (by, accusation.peer, accusation.round_id)
            for by, accusation in told
            if not accusation.turn
        ]
        stated = [
            (by, c.peer, c.round_id, c.turn, c.content) for by, c in told if c.turn and by != c.peer
        ]
        judged = _judged(commits, core.settings, before.locked())
        evidence = RoundEvidence(judged, charged, stated)
        ledger = before.after(commits[0].round_id, evidence, changes, commits[0].roster)
        self.judged += 1
        if ledger.wrong is not None:
            raise self.violated(swarm, peer, f"peer {ledger.wrong[0]} {ledger.wrong[1]}")
        self._ledgers[done[0].chain] = ledger
        if len(self._ledgers) > HISTORIES_KEPT:
            del self._ledgers[next(iter(self._ledgers))]

    def _judge_commit(
        self, swarm: AnySwarm, peer: PeerId, core: Inspection, before: Ledger, commit: Commit
    ) -> None:
        if commit.server in self.circumstances.equivocating:
            return
        where = f"round {commit.round_id}, shard {commit.shard}"
        contributors = [c.peer for c in commit.contributors]
        if used := _used_without_need(contributors, before, core.rounds.roster):
            raise self.violated(
                swarm, peer, f"{where} uses updates of peers {used}, which are in quarantine"
            )
        barred = before.barred()
        if commit.server in barred and any(other not in barred for other in core.rounds.roster):
            raise self.violated(
                swarm, peer, f"{where} was made by peer {commit.server}, which may not serve"
            )

    def _on_aggregate(self, swarm: AnySwarm, peer: PeerId, ask: Aggregate) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.rolling if core is not None else None
        if core is None or rounds is None or not core.settings.f or rounds.round_id != ask.round_id:
            return
        ledger = self._ledgers.get(rounds.chain)
        shard = rounds.shards[ask.shard] if ask.shard < len(rounds.shards) else None
        if (
            ledger is None
            or shard is None
            or shard.served.ticket != ask.ticket
            or shard.commit is not None
        ):
            return
        self.judged += 1
        named = ask.peers or [row.peer for row in ask.rows]
        if ask.step != "whole":
            outside = {row.peer for row in ask.outside}
            named = [each for each in named if each not in outside]
        if used := _used_without_need(named, ledger, rounds.roster):
            raise self.violated(
                swarm,
                peer,
                f"round {ask.round_id}: its rule is given updates of {used}, which are in "
                "quarantine",
            )
        self._judge_outside(swarm, peer, core, ask, ledger)
        self._judge_f(swarm, peer, core, ask, ledger)

    def _judge_outside(
        self, swarm: AnySwarm, peer: PeerId, core: Inspection, ask: Aggregate, ledger: Ledger
    ) -> None:
        """Check that only suspects in quarantine are measured outside, and every usable one in each
        ``measured_every``-th round (every second by default)."""
        rounds = core.rolling
        assert rounds is not None
        where = f"round {ask.round_id}, shard {ask.shard}"
        suspects = set(ledger.locked()) - set(ledger.proven())
        measured = {row.peer for row in ask.outside}
        if free := sorted(measured - suspects):
            raise self.violated(swarm, peer, f"{where}: {free} are outside, and not in quarantine")
        inside, shard = {row.peer for row in ask.rows} - measured, rounds.shards[ask.shard]
        kind = shard.served.find_kind(inside) if inside else None
        usable = [
            peer for peer in shard.served.usable() if shard.served.answers[peer][0].kind == kind
        ]
        due = set(usable) & suspects - inside
        is_due = ask.round_id % core.settings.trust.measured_every == 0
        if ask.step in ("whole", "measure") and ask.rows and is_due and not due <= measured:
            text = f"{where}: of those in quarantine {sorted(due)} are to be measured"
            raise self.violated(swarm, peer, f"{text}, and {sorted(measured)} are")

    def _judge_f(
        self, swarm: AnySwarm, peer: PeerId, core: Inspection, ask: Aggregate, ledger: Ledger
    ) -> None:
        """Only proof lowers f, or that too few are left when some have sent no numbers; and there
        are no more liars among the updates than the rule is to tolerate."""
        settings, rounds = core.settings, core.rolling
        assert rounds is not None
        answers = rounds.shards[ask.shard].served.answers
        proven = [p for p in ledger.proven() if p in rounds.roster]
        f = max(0, settings.f - len(proven))
        faulty = [p for p, (_, update) in answers.items() if update and not update.finite]
        left = sum(
            1 for told, update in answers.values() if update and update.finite and told.samples
        )
        faulty = [p for p in faulty if p not in proven]
        least = max(0, f - len(faulty))
        enough = max([n for n in range(f + 1) if settings.updates_needed(n) <= left], default=0)
        if ask.f != max(least, enough):
            text = (
                f"round {ask.round_id}: its rule is to bear {ask.f} liars, of {settings.f} with "
                f"{proven} proven to lie and {faulty} without numbers"
            )
            raise self.violated(swarm, peer, text)
        attackers = self.circumstances.attackers
        liars = [row.peer for row in ask.rows if row.peer in attackers]
        bears = settings.rounds.quorum != "available" and len(attackers) <= settings.f
        if bears and ask.f < len(liars):
            text = f"round {ask.round_id}: its rule is to bear {ask.f} liars, and gets {liars}"
            raise self.violated(swarm, peer, text)


def _used_without_need(
    used: Sequence[PeerId], ledger: Ledger, roster: Collection[PeerId]
) -> list[PeerId]:
    """Return the used peers that are in quarantine although the others are enough for the rule, and
    the used peers that are proven to lie."""
    locked, proven = ledger.locked(), ledger.proven()
    others = [peer for peer in used if peer not in locked]
    enough = len(others) >= ledger.updates_needed(roster)
    return [peer for peer in used if peer in (locked if enough else proven)]


def _judged(
    commits: list[Commit], settings: CoreSettings, locked: Collection[PeerId]
) -> list[tuple[PeerId, int]]:
    """Return the peers that a round has judged, and how clearly each stood out in one of its
    shards. A peer that is not ``locked`` was not measured unless its update was used."""
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
            elif other.peer in locked and other.peer not in farthest:
                outside[other.peer] = max(outside.get(other.peer, 0.0), other.outlyingness)
    found = _standing_out(farthest, settings, outside)
    found.update(dict.fromkeys(faulty, CLEARLY))
    return sorted(found.items())


def _standing_out(
    farthest: Mapping[PeerId, float], settings: CoreSettings, outside: Mapping[PeerId, float]
) -> dict[PeerId, int]:
    """Return how clearly each peer stands out. A peer may stand out if it lies farther out than
    typical. It clearly does if it also lies far beyond all but the f farthest: data may differ.
    ``outside``: outlyingness of the peers in quarantine."""
    nearest = sorted(farthest.values())[: max(0, len(farthest) - max(1, settings.f))]
    least = settings.trust.outlying
    bound = least**2 * max([1.0, *nearest[-1:]]) ** 2
    return {
        peer: CLEARLY if far > bound else int(far > least)
        for peer, far in (*farthest.items(), *outside.items())
    }


class TrustFollowsExperience(Checker):
    """S14, of gossip rounds: a peer locks up whom its own rule has found standing out, and who has
    sent it what is not finite, and tells its rule how many liars are left to bear."""

    invariant = "S14"
    events = (Aggregated, Push)
    effects = (Aggregate, Apply, Report)

    def make_records(self) -> None:
        self._ledgers: dict[PeerId, Ledger] = self.per_life()
        self._changes: dict[PeerId, list[tuple[PeerId, str]]] = {}
        self._asked: dict[PeerId, dict[int, Aggregate]] = {}
        self._judged: dict[PeerId, dict[PeerId, int]] = {}

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        core = swarm.inspections.get(peer)
        if core is not None and core.gossip is not None and core.settings.f:
            settings = core.settings
            self._ledgers[peer] = Ledger(settings.trust, settings.f, settings.updates_for)
            self._changes[peer], self._asked[peer], self._judged[peer] = [], {}, {}

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core = swarm.inspections.get(peer)
        if peer not in self._ledgers or core is None:
            return
        if isinstance(event, Received):
            if (
                isinstance(event.message, Push)
                and event.payload is not None
                and not event.payload.finite
            ):
                self._judged[peer][event.sender] = CLEARLY
        elif isinstance(event, Aggregated):
            ask = self._asked[peer].pop(event.ticket, None)
            if ask is not None and event.payload is not None:
                farthest = {
                    row.peer: far
                    for row, far in zip(ask.rows, event.outlyingness, strict=True)
                    if row.peer != peer
                }
                outside = {
                    row.peer: far for row, far in zip(ask.outside, event.outside, strict=False)
                }
                for other, stood_out in _standing_out(farthest, core.settings, outside).items():
                    known = self._judged[peer].get(other, 0)
                    self._judged[peer][other] = max(known, stood_out)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.gossip if core is not None else None
        ledger = self._ledgers.get(peer)
        if core is None or rounds is None or ledger is None:
            return
        if isinstance(effect, Report):
            if effect.event in TOLD:
                self._changes[peer].append((effect.fields["subject"], effect.event))
        elif isinstance(effect, Aggregate):
            self._on_aggregate(swarm, peer, core, ledger, effect)
        elif isinstance(effect, Apply):
            judged, self._judged[peer] = self._judged[peer], {}
            changes, self._changes[peer] = self._changes[peer], []
            evidence = RoundEvidence(sorted(judged.items()))
            after = ledger.after(effect.round_id, evidence, changes, members_of(core))
            self.judged += 1
            if after.wrong is not None:
                raise self.violated(swarm, peer, f"peer {after.wrong[0]} {after.wrong[1]}")
            self._ledgers[peer] = after

    def _on_aggregate(
        self, swarm: AnySwarm, peer: PeerId, core: Inspection, ledger: Ledger, ask: Aggregate
    ) -> None:
        if not ask.mix:
            self._asked[peer] = {ask.ticket: ask}
        named = [row.peer for row in ask.rows]
        if used := _used_without_need(named, ledger, named):
            raise self.violated(
                swarm,
                peer,
                f"round {ask.round_id}: its rule is given updates of {used}, which are in "
                "quarantine",
            )
        settings = core.settings
        # Each liar more takes two updates more, and one needs what one needs without any.
        without_any = max(1, settings.updates_min - 2 * settings.f)
        most = max(0, min(settings.f, (len(ask.rows) - without_any) // 2))
        self.judged += 1
        if ask.f != most:
            text = (
                f"round {ask.round_id}: its rule is to bear {ask.f} liars among {len(ask.rows)}, "
                f"and {most} may be"
            )
            raise self.violated(swarm, peer, text)


class AccusesByExperience(Checker):
    """S14, of rolling rounds: a commit charges others with nothing but results of their own making,
    which they have themselves handed to the peer that made the commit, and which that has refused;
    or for which that has waited in vain; or it states what that was handed. What others say that
    they have made is no evidence."""

    invariant = "S14"
    events = (Commit,)
    effects = (Report, Committed)

    def make_records(self) -> None:
        # whose results of which rounds, as hashes
        self._handed = self.per_life(dict[tuple[PeerId, int], set[bytes]])
        self._refused = self.per_life(set[tuple[PeerId, int]])  # whose results of which rounds
        self._waited = self.per_life(set[tuple[PeerId, int]])  # likewise, in vain

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if (
            isinstance(event, Received)
            and isinstance(event.message, Commit)
            and event.sender == event.message.server
        ):
            content = blake2b(header_bytes(event.message), digest_size=DIGEST_BYTES).digest()
            self._handed[peer].setdefault((event.sender, event.message.round_id), set()).add(
                content
            )

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Report):
            if effect.event == "attempt" and effect.fields["reason"].endswith("in time"):
                silent = int(effect.fields["reason"].split()[3])  # no commit from PEER in time
                self._waited[peer].add((silent, effect.fields["round"]))
            elif effect.event in REFUSALS and effect.fields["from"] == effect.fields["server"]:
                self._refused[peer].add((effect.fields["from"], effect.fields["round"]))
        elif isinstance(effect, Committed) and effect.made:
            for accusation in effect.commit.accusations:
                whose = accusation.peer, accusation.round_id
                if accusation.turn:
                    text = (
                        f"states what peer {accusation.peer} has handed it in round "
                        f"{accusation.round_id}, and was not handed that"
                    )
                    self.demand(
                        accusation.content in self._handed[peer].get(whose, ()), swarm, peer, text
                    )
                    continue
                what = "waited for none" if accusation.silent else "refused none by it"
                text = (
                    f"charges peer {accusation.peer} with a result of round "
                    f"{accusation.round_id}, of which it has {what}"
                )
                known = self._waited if accusation.silent else self._refused
                self.demand(whose in known[peer], swarm, peer, text)


__all__ = ["AccusesByExperience", "TrustFollowsExperience", "TrustFollowsTheCommits"]
