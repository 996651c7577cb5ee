"""L1-L7: what must come about once the faults are over.
Deadlines follow from the protocol's own settings."""

from __future__ import annotations

from abc import abstractmethod
from math import ceil, log2

import numpy as np

from gossip.core import (
    BEHIND_ROUNDS,
    Apply,
    Committed,
    CoreSettings,
    Effect,
    Event,
    GossipInspection,
    Halt,
    Inspection,
    MembershipSettings,
    PeerId,
    Restore,
    Stop,
    longest_s,
)
from gossip.topologies import lots
from gossip_lab.simulation.checkers.base import (
    Checker,
    TaintedStates,
    updates_needed,
)
from gossip_lab.simulation.checkers.disturbances import NEVER, DisturbedChecker
from gossip_lab.simulation.checkers.safety import memory_s
from gossip_lab.simulation.world import AnySwarm, ToyTrainer

LINGER_S = 0.5  # what was said last may still be on its way
# times as many rounds as it takes to a turn: by the draw that happens to one peer in ten million
STARVED_AFTER = 16
ROUNDS_AFTER = 3  # that everybody applies in a calm phase before it counts as going on

Shortcoming = tuple[PeerId, str] | None


def converged_after_s(settings: MembershipSettings, n: int) -> float:
    """L1: a table exchange, a suspicion that began with the last fault and one that it led to,
    and the news of it."""
    stretch = ceil(log2(n) - 5) + 1 if n > 32 else 1  # as ``table_interval_s``
    spread_s = settings.gossip_interval_s * (ceil(log2(n)) + 1) if n > 1 else 0.0
    return settings.push_pull_interval_s * stretch + 2.0 * longest_s(n, settings) + spread_s


class Liveness(Checker):
    """Is content, or says what is lacking; from its deadline on it must be content."""

    def make_records(self) -> None:
        self.calm_at: float | None = None
        self._last_life_at = NEVER

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._last_life_at = swarm.now

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._last_life_at = swarm.now

    def begin_calm(self, swarm: AnySwarm) -> None:
        self.calm_at = swarm.now

    def finish(self, swarm: AnySwarm) -> None:
        """Raises Violation when something is lacking; ValueError when that may still come and the
        calm phase was too short."""
        shortcoming = self.lacks(swarm)
        self.judged += 1
        if shortcoming is None:
            return
        if swarm.now < self.deadline_at(swarm):
            late = f"it has until {self.deadline_at(swarm):.2f} s"
            raise ValueError(
                f"the calm phase ends too soon at {swarm.now:.2f} s: {shortcoming[1]}, and "
                f"{late}; use settle()"
            )
        raise self.violated(swarm, *shortcoming)

    def deadline_at(self, swarm: AnySwarm) -> float:
        """When it must be content: counted from the beginning of the calm phase, or from the last
        start or crash in it."""
        assert self.calm_at is not None, "begin_calm comes first"
        return max(self.calm_at, self._last_life_at) + self.time_limit_s(swarm)

    @abstractmethod
    def time_limit_s(self, swarm: AnySwarm) -> float:
        """How long it may take."""

    @abstractmethod
    def lacks(self, swarm: AnySwarm) -> Shortcoming:
        """At which peer there is something lacking, and what; None: it is content."""


class Converges(Liveness):
    """L1: soon everybody sees all who run alive, as they see themselves, and nobody else."""

    invariant = "L1"

    def time_limit_s(self, swarm: AnySwarm) -> float:
        memberships = [m for host in swarm.hosts.values() if (m := host.membership) is not None]
        return converged_after_s(memberships[0].settings, len(swarm.hosts)) if memberships else 0.0

    def lacks(self, swarm: AnySwarm) -> Shortcoming:
        standings = {}
        for peer, host in swarm.hosts.items():
            if host.state == "starting":
                return peer, "it has not started"
            membership = host.membership
            if host.running and membership is not None and membership.me.status == "alive":
                standings[peer] = membership.standing
        for peer in standings:
            membership = swarm.hosts[peer].membership
            assert membership is not None
            for subject in swarm.hosts:
                row = membership.members.get(subject)
                if subject in standings:
                    if row is None or row.status != "alive" or row.standing != standings[subject]:
                        how = (
                            f"{row.status} with standing {row.standing}"
                            if row is not None
                            else "unknown"
                        )
                        return (
                            peer,
                            (
                                f"peer {subject}, which runs with standing {standings[subject]}, "
                                f"is {how}"
                            ),
                        )
                    if row.skip:
                        return peer, f"peer {subject}, which runs, is skipped: {row.skip}"
                elif row is not None and row.met and not row.gone:
                    return peer, f"peer {subject}, which does not run any more, is {row.status}"
        return None


class RoundLiveness(Liveness):
    """Base of the demands on rounds while a quorum runs."""

    def time_limit_s(self, swarm: AnySwarm) -> float:
        settings = settings_of(swarm)
        if settings is None:
            return 0.0
        return (
            converged_after_s(settings.membership, len(swarm.hosts))
            + 2.0 * settings.rounds.round_timeout_s
            + 4.0 * swarm.travel_s
        )

    def participants(self, swarm: AnySwarm) -> list[tuple[PeerId, Inspection]]:
        """Return the running peers that go on; none unless they are a quorum of some roster."""
        cores = {p: core for p in swarm.up if (core := swarm.inspections.get(p)) is not None}
        here = [(p, core) for p, core in cores.items() if core.phase not in ("draining", "halted")]
        ids = [peer for peer, _ in here]
        able = any(
            sum(1 for p in core.rounds.roster if p in ids) >= core.rounds.quorum()
            for _, core in here
        )
        return here if able else []


class RoundsGoOn(RoundLiveness):
    """L2: where a quorum is connected, everybody applies round after round; once all has settled in
    the calm, never two round timeouts pass without one, up to the end."""

    invariant = "L2"
    effects = (Apply,)

    def make_records(self) -> None:
        super().make_records()
        self._applied_at: dict[PeerId, float] = self.per_life()
        self._applied: dict[PeerId, int] = {}
        self._settled_at: float | None = None

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._applied[peer] = 0

    def settled(self, swarm: AnySwarm) -> None:
        self._settled_at = swarm.now

    def begin_calm(self, swarm: AnySwarm) -> None:
        super().begin_calm(swarm)
        self._applied = dict.fromkeys(swarm.hosts, 0)
        self._applied_at.clear()
        self._settled_at = None

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, Apply) or self.calm_at is None:
            return
        before, self._applied_at[peer] = self._applied_at.get(peer), swarm.now
        self._applied[peer] += 1
        core = swarm.inspections.get(peer)
        if (
            before is None
            or core is None
            or self._settled_at is None
            or before < max(self._settled_at, self._last_life_at)
        ):
            return
        most_s = 2.0 * core.rounds.deadline.round_timeout_s() + swarm.travel_s
        self.judged += 1
        if swarm.now - before > most_s:
            text = (
                f"applies round {effect.round_id} {swarm.now - before:.2f} s after the one "
                f"before; at most {most_s:.2f} s"
            )
            raise self.violated(swarm, peer, text)

    def lacks(self, swarm: AnySwarm) -> Shortcoming:
        for peer, core in self.participants(swarm):
            if self._applied[peer] < ROUNDS_AFTER:
                where = f"{core.phase} in round {core.rounds.round_id}"
                return (
                    peer,
                    f"it has applied {self._applied[peer]} rounds in the calm, and is {where}",
                )
            since_s = max(self._applied_at[peer], self._settled_at or 0.0, self._last_life_at)
            if (
                self._settled_at is not None
                and swarm.now - since_s
                > 2.0 * core.rounds.deadline.round_timeout_s() + swarm.travel_s
            ):
                return (
                    peer,
                    (
                        f"it has applied nothing for {swarm.now - since_s:.2f} s, and is in round "
                        f"{core.rounds.round_id}"
                    ),
                )
        return None


class EverybodyContributes(RoundLiveness):
    """L4: whoever runs, came back or joined soon contributes to commits again."""

    invariant = "L4"
    effects = (Committed,)

    def make_records(self) -> None:
        super().make_records()
        self._contributes: dict[PeerId, None] = self.per_life()  # in its present life, in the calm

    def begin_calm(self, swarm: AnySwarm) -> None:
        super().begin_calm(swarm)
        self._contributes.clear()

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Committed) and self.calm_at is not None:
            for contribution in effect.commit.contributors:
                self._contributes[contribution.peer] = None

    def lacks(self, swarm: AnySwarm) -> Shortcoming:
        participants = self.participants(swarm)
        # who answers falsely is locked up most of the time
        excused = self.circumstances.attackers | self.circumstances.answering_falsely
        for peer, core in participants:
            rounds = core.rolling
            if rounds is None or peer in excused:
                continue
            locked = rounds.replicated.trust.quarantined()
            proven = rounds.replicated.trust.proven()
            useful = sum(1 for other, _ in participants if other not in proven)
            if useful < updates_needed(core.settings, rounds.roster, proven):
                # the rule can make nothing of so few while a liar that was not found out
                # may be among them
                continue
            if peer not in self._contributes and peer not in locked:
                return (
                    peer,
                    (
                        f"no commit of the calm names it; it is {core.phase}, {rounds.mode} in "
                        f"round {rounds.round_id}"
                    ),
                )
        return None


class OneLineage(RoundLiveness):
    """L5: all who run end in the rounds, in everybody's roster,
    on one history and with the same parameters.

    In gossip rounds, where replicas differ: all are in the present rounds,
    with parameters that are finite.
    """

    invariant = "L5"
    effects = (Restore,)

    def make_records(self) -> None:
        super().make_records()
        self._misled = TaintedStates(self.circumstances)

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._misled.forget(peer)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Restore):
            self._misled.restores(swarm, peer)

    def lacks(self, swarm: AnySwarm) -> Shortcoming:
        participants = self.participants(swarm)
        for peer, core in participants:
            if core.phase != "running" or core.rounds.mode != "active":
                return (
                    peer,
                    f"it is {core.phase}, {core.rounds.mode} in round {core.rounds.round_id}",
                )
        if not participants:
            return None
        at = {peer: core.rounds.round_id for peer, core in participants}
        ahead = max(at, key=lambda peer: at[peer])
        behind = min(at, key=lambda peer: at[peer])
        if isinstance(participants[0][1].rounds, GossipInspection):
            return self._left_behind(participants, at) or self._finite(swarm)
        return self._one_chain(participants, at[behind], ahead)

    def _left_behind(
        self, participants: list[tuple[PeerId, Inspection]], at: dict[PeerId, int]
    ) -> Shortcoming:
        """Nobody is far behind those it hears. In a ring those are two,
        and the far side may be further.

        Nobody has to follow one whom a liar has sent into a round that never comes, nor at the word
        of f peers alone.
        """
        for peer, core in participants:
            assert isinstance(core.rounds, GossipInspection)
            sources = [source for source in core.rounds.sources if source not in self._misled]
            ahead = [
                source for source in sources if at.get(source, 0) - at[peer] > BEHIND_ROUNDS + 2
            ]
            if len(ahead) > core.settings.f:
                return (
                    peer,
                    (
                        f"it is in round {at[peer]}, peer {ahead[0]}, which it hears, in round "
                        f"{at[ahead[0]]}"
                    ),
                )
            behind = [
                source
                for source in sources
                if at[peer] - at.get(source, at[peer]) > BEHIND_ROUNDS + 2
            ]
            if (
                peer not in self._misled
                and len(behind) == len(core.rounds.sources) > core.settings.f
            ):
                return (
                    peer,
                    (
                        f"it is alone in round {at[peer]}; all whom it hears are behind, the "
                        f"first in round {at[behind[0]]}"
                    ),
                )
        return None

    def _one_chain(
        self, participants: list[tuple[PeerId, Inspection]], last: int, ahead: PeerId
    ) -> Shortcoming:
        ids = [peer for peer, _ in participants]
        first: tuple[PeerId, bytes | None] | None = None
        for peer, core in participants:
            rounds = core.rolling
            assert rounds is not None
            roster = rounds.roster.peers
            if set(ids) - set(roster):
                return peer, f"its roster is {roster}, and {ids} run"
            chain = rounds.replicated.lineage.at(last - 1)
            if first is None:
                first = (peer, chain)
            elif chain is None or chain != first[1]:
                return (
                    peer,
                    (
                        f"round {last - 1} has the hash {(chain or b'').hex()}, at peer "
                        f"{first[0]} {(first[1] or b'').hex()}"
                    ),
                )
        return None

    def _finite(self, swarm: AnySwarm) -> Shortcoming:
        for peer in swarm.up:
            trainer = swarm.hosts[peer].trainer
            if isinstance(trainer, ToyTrainer) and not np.isfinite(trainer.parameters).all():
                return peer, "its parameters are not finite"
        return None


class NobodyStarves(DisturbedChecker):
    """L6: whoever may serve gets its turn. The draw is random, so that not 2n rounds are the bound
    but 16n; more by as much as others weigh more."""

    invariant = "L6"
    effects = (Committed,)

    def make_records(self) -> None:
        # rounds without a turn, and since when
        self._waits: dict[PeerId, tuple[int, float]] = self.per_life()
        # rounds in a row in which it could have had one
        self._able: dict[PeerId, int] = self.per_life()
        self._born_at: dict[PeerId, float] = {}
        self._latest = -1

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._born_at[peer] = swarm.now

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if (
            not isinstance(effect, Committed)
            or effect.commit.round_id <= self._latest
            or effect.commit.shard
        ):
            return
        core = swarm.inspections.get(peer)
        rounds = core.rolling if core is not None else None
        if core is None or rounds is None:
            return
        self._latest = effect.commit.round_id
        able = rounds.replicated.serving_roster().peers
        self._waits = {p: wait for p, wait in self._waits.items() if p in able}
        shares = lots(core.topology.bound.get("weights", ""), able)
        for candidate, share in zip(able, shares, strict=True):
            starved_after = STARVED_AFTER * sum(shares) / share
            waited, since_s = self._waits.get(candidate, (0, swarm.now))
            self._able[candidate] = (
                self._able.get(candidate, 0) + 1 if _is_active(swarm, candidate) else 0
            )
            self.judged += self._able[candidate] > starved_after
            if candidate == effect.commit.server or not _is_active(swarm, candidate):
                self._waits[candidate] = (0, swarm.now)
                continue
            self._waits[candidate] = (waited + 1, since_s)
            if waited + 1 > starved_after:
                self._waits[candidate] = (0, swarm.now)
                # One that stood still or came back does not serve at first,
                # and others skip it for a while.
                quiet_s = min(
                    self.disturbances.undisturbed_s(swarm, candidate),
                    swarm.now - self._born_at[candidate],
                )
                after_s = memory_s(core.settings.membership, len(swarm.hosts))
                if quiet_s >= swarm.now - since_s + after_s:
                    raise self.violated(
                        swarm, candidate, f"it has not served for {waited + 1} rounds"
                    )


def _is_active(swarm: AnySwarm, peer: PeerId) -> bool:
    core = swarm.inspections.get(peer)
    return (
        core is not None
        and swarm.hosts[peer].running
        and core.phase == "running"
        and core.rounds.mode == "active"
    )


class StopEnds(DisturbedChecker):
    """L7: one that was asked to stop is gone after its drain timeout, whatever the others do."""

    invariant = "L7"
    events = (Stop,)
    effects = (Halt,)

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core = swarm.inspections.get(peer)
        if isinstance(event, Stop) and core is not None:
            self._await(
                swarm,
                peer,
                swarm.hosts[peer].incarnation,
                swarm.now,
                core.settings.rounds.drain_timeout_s,
            )

    def _await(
        self, swarm: AnySwarm, peer: PeerId, incarnation: int, asked_at: float, drain_s: float
    ) -> None:
        due = swarm.now + drain_s + LINGER_S

        def judge() -> None:
            host = swarm.hosts[peer]
            if not host.running or host.incarnation != incarnation:
                self.judged += 1
            elif (
                host.state == "paused" or self.disturbances.still_until.get(peer, NEVER) > asked_at
            ):
                self._await(swarm, peer, incarnation, swarm.now, drain_s)  # it had no time to
            else:
                raise self.violated(
                    swarm, peer, f"it was asked to stop at {asked_at:.2f} s and still runs"
                )

        swarm.at(due, judge)


def settings_of(swarm: AnySwarm) -> CoreSettings | None:
    """Return the settings of the first whole peer; they are the same for all. None if there is
    none."""
    return next(
        (core.settings for host in swarm.hosts.values() if (core := host.inspection) is not None),
        None,
    )
