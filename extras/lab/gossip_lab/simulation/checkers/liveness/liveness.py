"""L1-L7: events that must happen once the faults have ended. The deadlines are computed from the
settings of the protocol."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from math import ceil, log2

import numpy as np

from gossip.core import STASH_ROUNDS, Apply, Committed, MembershipSettings, PeerId, Stop, longest_s
from gossip.topologies import lots
from gossip_lab.inspection import Inspection
from gossip_lab.simulation.checkers.base import (
    Checker,
    IncarnationId,
    on_effect,
    on_event,
    updates_needed,
)
from gossip_lab.simulation.checkers.disturbances import NEVER
from gossip_lab.simulation.checkers.safety import memory_s
from gossip_lab.simulation.world import AnySwarm, ToyTrainer

LINGER_S = 0.5  # for messages in transit
# Maximum number of rounds without serving, as a multiple of the expected number. The random order
# of servers exceeds it for one peer in ten million.
STARVED_AFTER = 16
ROUNDS_AFTER = 3  # number of rounds that every peer must apply in the calm phase

Shortcoming = tuple[PeerId, str] | None


def converged_after_s(settings: MembershipSettings, n: int) -> float:
    """Return the time limit of L1: the time of a table exchange, of two consecutive suspicions (the
    first begins with the last fault, the second follows from it), and of the dissemination of
    rumors."""
    stretch = ceil(log2(n) - 5) + 1 if n > 32 else 1  # same factor as in ``table_interval_s``
    spread_s = settings.gossip_interval_s * (ceil(log2(n)) + 1) if n > 1 else 0.0
    return settings.push_pull_interval_s * stretch + 2.0 * longest_s(n, settings) + spread_s


class Liveness(Checker):
    """Base of the checkers with a requirement that may be unmet for some time, but must be met
    after a deadline."""

    def finish(self) -> None:
        """Judge whether the requirement is met.

        Raises:
            Violation: The requirement is not met after the deadline.
            ValueError: The requirement is not met, but the calm phase ended before the deadline.
        """
        shortcoming = self.find_shortcoming()
        self.judged += 1
        if shortcoming is None:
            return
        peer, text = shortcoming
        if self.now < self.deadline_at():
            raise ValueError(
                f"the calm phase ends too soon at {self.now:.2f} s: {text}, and it has until "
                f"{self.deadline_at():.2f} s; use settle()"
            )
        raise self.violated(text, peer)

    def deadline_at(self) -> float:
        """Return the deadline: ``time_limit_s`` after the start of the calm phase, or after the
        last start or crash of a peer in it."""
        assert self.calm_at is not None, "begin_calm comes first"
        return max(self.calm_at, self.last_restart_at()) + self.time_limit_s()

    def last_restart_at(self) -> float:
        """Return the time of the last start or crash of any peer."""
        started = [host.started_at for host in self.swarm.hosts.values()]
        return max(*started, *self.disturbances.crashed_at.values(), NEVER)

    @abstractmethod
    def time_limit_s(self) -> float:
        """Return the time within which the requirement must be met, in seconds."""

    @abstractmethod
    def find_shortcoming(self) -> Shortcoming:
        """Return a peer that does not meet the requirement, and a text about it. Return None if the
        requirement is met."""


class MembershipConvergence(Liveness):
    """L1: after some time all running peers record each other as alive, with the right standing,
    and record no other peer as alive."""

    invariant = "L1"

    def time_limit_s(self) -> float:
        hosts = self.swarm.hosts
        memberships = [m for host in hosts.values() if (m := host.membership) is not None]
        return converged_after_s(memberships[0].settings, len(hosts)) if memberships else 0.0

    def find_shortcoming(self) -> Shortcoming:
        hosts = self.swarm.hosts
        running = {}
        for peer, host in hosts.items():
            if host.state == "starting":
                return peer, "it has not started"
            membership = host.membership
            if host.running and membership is not None and membership.me.status == "alive":
                running[peer] = membership
        for peer, membership in running.items():
            for subject in hosts:
                row = membership.members.get(subject)
                if subject in running:
                    standing = running[subject].standing
                    if row is None or (row.status, row.standing) != ("alive", standing):
                        how = f"{row.status} with standing {row.standing}" if row else "unknown"
                        which = f"peer {subject}, which runs with standing {standing}"
                        return peer, f"{which}, is {how}"
                    if row.skip:
                        return peer, f"peer {subject}, which runs, is skipped: {row.skip}"
                elif row is not None and row.met and not row.gone:
                    return peer, f"peer {subject}, which no longer runs, is {row.status}"
        return None


class RoundLiveness(Liveness):
    """Base of the checkers of rounds while a quorum runs."""

    def time_limit_s(self) -> float:
        cores = self.swarm.inspections.values()
        settings = next((core.settings for core in cores), None)  # the same for all peers
        if settings is None:
            return 0.0
        return (
            converged_after_s(settings.membership, len(self.swarm.hosts))
            + 2.0 * settings.rounds.round_timeout_s
            + 4.0 * self.swarm.travel_s
        )

    def participants(self) -> list[tuple[PeerId, Inspection]]:
        """Return the running peers that do not leave, or an empty list if they are not a quorum of
        any roster."""
        cores = self.swarm.inspections
        here = [
            (p, cores[p])
            for p in self.swarm.up
            if p in cores and cores[p].phase not in ("draining", "halted")
        ]
        ids = [peer for peer, _ in here]
        able = any(
            sum(1 for p in core.rounds.roster if p in ids) >= core.rounds.quorum()
            for _, core in here
        )
        return here if able else []


class RoundProgress(RoundLiveness):
    """L2: if a quorum is connected, all peers apply rounds. ``BoundedRoundDuration`` judges the
    time between two rounds."""

    invariant = "L2"

    def make_records(self) -> None:
        self._applied = self.per_incarnation(Counter[PeerId]())

    @on_effect
    def record_apply(self, apply: Apply) -> None:
        if self.calm_at is not None:
            self._applied[self.peer] += 1

    def find_shortcoming(self) -> Shortcoming:
        for peer, core in self.participants():
            if self._applied[peer] < ROUNDS_AFTER:
                where = f"{core.phase} in round {core.rounds.round_id}"
                return (
                    peer,
                    f"it has applied {self._applied[peer]} rounds in the calm, and is {where}",
                )
        return None


class AllPeersContribute(RoundLiveness):
    """L4: after some time all running peers contribute to commits, including returned and new
    peers."""

    invariant = "L4"

    def find_shortcoming(self) -> Shortcoming:
        participants = self.participants()
        # A peer with false micro-batches is in quarantine most of the time.
        excused = self.conditions.attackers | self.conditions.stage_attackers
        for peer, core in participants:
            rounds = core.rolling
            if rounds is None or peer in excused:
                continue
            pipeline = core.settings.pipeline
            if pipeline is not None and pipeline.micro_batches < len(rounds.roster):
                # A slow member may wait longer for a micro-batch than the calm phase lasts.
                continue
            trust = rounds.replicated.trust
            proven = trust.proven()
            useful = sum(1 for other, _ in participants if other not in proven)
            if useful < updates_needed(core.settings, rounds.roster, proven):
                # So few updates are not enough for the rule, because one of them may be an
                # undetected attacker's.
                continue
            if not self._contributes(peer) and peer not in trust.quarantined():
                where = f"{core.phase}, {rounds.mode} in round {rounds.round_id}"
                return peer, f"no commit of the calm phase has its update; it is {where}"
        return None

    def _contributes(self, peer: PeerId) -> bool:
        """Whether a commit of the calm phase has an update of the peer's present incarnation."""
        assert self.calm_at is not None, "begin_calm comes first"
        hosts = self.swarm.hosts
        since = max(self.calm_at, hosts[peer].started_at)
        return any(
            contribution.peer == peer
            for host in hosts.values()
            for at, committed in reversed(host.commits)
            if at >= since
            for contribution in committed.commit.contributors
        )


class SingleLineage(RoundLiveness):
    """L5: at the end all running peers take part in rounds, are in each other's rosters, and have
    the same history and the same parameters.

    In gossip rounds replicas differ. There, no running peer is far behind, and all parameters are
    finite.
    """

    invariant = "L5"

    def find_shortcoming(self) -> Shortcoming:
        participants = self.participants()
        for peer, core in participants:
            if core.phase != "running" or core.rounds.mode != "active":
                where = f"{core.phase}, {core.rounds.mode} in round {core.rounds.round_id}"
                return peer, f"it is {where}"
        if not participants:
            return None
        if participants[0][1].gossip is not None:
            return self._left_behind(participants) or self._finite()
        return self._one_chain(participants)

    def _left_behind(self, participants: list[tuple[PeerId, Inspection]]) -> Shortcoming:
        """Check that no peer is far behind its sources. Only sources are compared, because in a
        ring peers on the far side may be further ahead.

        A peer need not follow up to f sources, nor a source that an attacker has sent into a far
        round.
        """
        at = {peer: core.rounds.round_id for peer, core in participants}
        far = STASH_ROUNDS + 2
        for peer, core in participants:
            assert core.gossip is not None
            here, f = at[peer], core.settings.f
            sources = [source for source in core.gossip.sources if source not in self.tainted]
            ahead = [source for source in sources if at.get(source, 0) - here > far]
            if len(ahead) > f:
                text = f"it is in round {here}, peer {ahead[0]}, a source of it, in round"
                return peer, f"{text} {at[ahead[0]]}"
            behind = [source for source in sources if here - at.get(source, here) > far]
            if peer not in self.tainted and len(behind) == len(core.gossip.sources) > f:
                text = f"it is alone in round {here}; all its sources are behind, the first in"
                return peer, f"{text} round {at[behind[0]]}"
        return None

    def _one_chain(self, participants: list[tuple[PeerId, Inspection]]) -> Shortcoming:
        ids = {peer for peer, _ in participants}
        last = min(core.rounds.round_id for _, core in participants) - 1
        first: tuple[PeerId, bytes | None] | None = None
        for peer, core in participants:
            rounds = core.rolling
            assert rounds is not None
            roster = rounds.roster.peers
            if ids - set(roster):
                return peer, f"its roster is {roster}, and {sorted(ids)} run"
            chain = rounds.replicated.lineage.at(last)
            if first is None:
                first = (peer, chain)
            elif chain is None or chain != first[1]:
                text = f"round {last} has the hash {(chain or b'').hex()}, at peer {first[0]}"
                return peer, f"{text} {(first[1] or b'').hex()}"
        return None

    def _finite(self) -> Shortcoming:
        for peer in self.swarm.up:
            trainer = self.swarm.hosts[peer].trainer
            if isinstance(trainer, ToyTrainer) and not np.isfinite(trainer.parameters).all():
                return peer, "its parameters are not finite"
        return None


class NoServerStarvation(Checker):
    """L6: every peer that may serve eventually serves. The order of servers is random, so the bound
    is 16n rounds, and not 2n. With weights, the bound is 16 times the expected number of rounds."""

    invariant = "L6"
    needs = "rolling"

    def make_records(self) -> None:
        # Peer -> number of rounds since it last served, and the start of this count.
        self._waits: dict[PeerId, tuple[int, float]] = self.per_incarnation({})
        # Peer -> number of consecutive rounds in which it could have served.
        self._able = self.per_incarnation(Counter[PeerId]())
        self._latest = -1

    @on_effect
    def judge(self, committed: Committed) -> None:
        commit = committed.commit
        if commit.round_id <= self._latest or commit.shard:
            return
        self._latest = commit.round_id
        able = self.rolling.replicated.serving_roster().peers
        for peer in set(self._waits).difference(able):
            del self._waits[peer]
        shares = lots(self.core.topology.bound.get("weights", ""), able)
        for candidate, share in zip(able, shares, strict=True):
            starved_after = STARVED_AFTER * sum(shares) / share
            is_active = _is_active(self.swarm, candidate)
            waited, since_s = self._waits.get(candidate, (0, self.now))
            self._able[candidate] = self._able[candidate] + 1 if is_active else 0
            self.judged += self._able[candidate] > starved_after
            self._waits[candidate] = (0, self.now)
            if candidate == commit.server or not is_active:
                continue
            if waited + 1 <= starved_after:
                self._waits[candidate] = (waited + 1, since_s)
                continue
            # A peer that was paused or has returned does not serve at first, and is skipped for a
            # while.
            quiet_s = min(
                self.disturbances.undisturbed_s(self.swarm, candidate),
                self.now - self.swarm.hosts[candidate].started_at,
            )
            after_s = memory_s(self.core.settings.membership, len(self.swarm.hosts))
            if quiet_s >= self.now - since_s + after_s:
                raise self.violated(f"it has not served for {waited + 1} rounds", candidate)


def _is_active(swarm: AnySwarm, peer: PeerId) -> bool:
    core = swarm.inspections.get(peer)
    return (
        core is not None
        and swarm.hosts[peer].running
        and core.phase == "running"
        and core.rounds.mode == "active"
    )


class StopWithinDrainTimeout(Checker):
    """L7: a peer that is requested to stop ends within its drain timeout, whatever the other peers
    do."""

    invariant = "L7"

    @on_event
    def expect_end(self, event: Stop) -> None:
        self._schedule_judgement(self.incarnation_id, self.core.settings.rounds.drain_timeout_s)

    def _schedule_judgement(self, life: IncarnationId, drain_s: float) -> None:
        asked_at = self.now

        def judge() -> None:
            peer, incarnation = life
            host = self.swarm.hosts[peer]
            if not host.running or host.incarnation != incarnation:
                self.judged += 1
            elif (
                host.state == "paused" or self.disturbances.paused_until.get(peer, NEVER) > asked_at
            ):
                self._schedule_judgement(life, drain_s)  # it could not end while it was paused
            else:
                text = f"it was requested to stop at {asked_at:.2f} s and still runs"
                raise self.violated(text, peer)

        self.swarm.at(asked_at + drain_s + LINGER_S, judge)
