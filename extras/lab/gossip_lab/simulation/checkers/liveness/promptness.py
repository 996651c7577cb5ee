"""L2, L3 and L5, as far as they limit waits: no peer waits for a peer that it skips, or for
commits that it has not requested, and no peer stays in a round."""

from __future__ import annotations

from gossip.core import (
    BUSY_S,
    Ack,
    Apply,
    Commit,
    CommitRequest,
    Hello,
    Inspection,
    NotServing,
    PeerId,
    Received,
    Report,
    Restore,
    Send,
    ShardRound,
    StateRequest,
    TrainerProgress,
    Update,
    UpdateRequest,
)
from gossip_lab.simulation.checkers.base import Checker, PerIncarnation
from gossip_lab.simulation.checkers.disturbances import NEVER, PAUSE_S
from gossip_lab.simulation.checkers.event_observer import (
    after_event,
    on_effect,
    on_event,
    on_report,
)
from gossip_lab.simulation.checkers.safety import rule_has_enough
from gossip_lab.simulation.world import AnySwarm

# Maximum time from a report that a peer is behind to its request. A peer should need a fiftieth.
ASKED_WITHIN_S = 1.0
CHECK_INTERVAL_S = 0.2


class NoWaitForSkippedServers(Checker):
    """L3: a peer does not wait for a server that it skips. If it does not skip all other servers,
    it moves on to the next one at once."""

    invariant = "L3"
    needs = "rolling"
    # (requesting peer, shard) -> round and attempt of its last request for an update.
    _asked = PerIncarnation(dict[tuple[PeerId, int], tuple[int, int]])

    @on_event
    def record_asked(self, event: Received, query: UpdateRequest) -> None:
        self._asked[event.sender, query.shard] = query.round_id, query.attempt

    @on_report("skip")
    def judge_skip(self, report: Report) -> None:
        if report.fields["round"] == self.rolling.round_id:
            self._judge_shards(report.fields["subject"])

    @on_effect
    def judge_offer(self, send: Send, update: Update) -> None:
        asked, shards = self._asked.get((send.peer, update.shard)), self.rolling.shards
        # A requested update is sent even if the requesting peer is skipped.
        if asked == (update.round_id, update.attempt):
            return
        here = update.round_id == self.rolling.round_id and update.shard < len(shards)
        if here and shards[update.shard].attempt == update.attempt:
            self._judge(shards[update.shard])

    @after_event
    def judge_leaving(self, event: Received, hello: Hello) -> None:
        if hello.stage != "ready":
            self._judge_shards(event.sender)

    def _judge_shards(self, subject: PeerId) -> None:
        """Judge the shards served by ``subject``, which the peer has begun to skip in this
        event."""
        for shard in self.rolling.shards:
            if shard.server_of(shard.attempt) == subject:
                self._judge(shard)

    def _judge(self, shard: ShardRound) -> None:
        core, rounds = self.core, self.rolling
        if core.phase != "running" or rounds.mode != "active" or shard.commit is not None:
            return
        server = shard.server_of(shard.attempt)
        self.judged += 1
        if server == self.peer or not (reason := rounds.skip_reason(server)):
            return
        able = [
            other
            for other in shard.order
            if (
                rounds.serves(core.handled_at)
                if other == self.peer
                else not rounds.skip_reason(other)
            )
        ]
        if able:
            where = f"round {rounds.round_id}, shard {shard.index}, attempt {shard.attempt}"
            raise self.violated(
                f"waits in {where} for peer {server}, which it skips ({reason}); {able} could serve"
            )


class BoundedRoundDuration(Checker):
    """L2: while all peers reach each other and are undisturbed, no peer stays in a round for two
    round timeouts, whatever happened before."""

    invariant = "L2"

    def make_records(self) -> None:
        self._applied_at: dict[PeerId, float] = {}
        self._next_check_at = NEVER
        self._well_since: float | None = None
        self._calm = False

    def begin_incarnation(self) -> None:
        self._applied_at[self.peer] = self.now
        self._well_since = None

    def end_incarnation(self) -> None:
        self._well_since = None

    def begin_calm(self) -> None:
        self._calm = True

    @on_effect
    def record_apply(self, apply: Apply) -> None:
        self._applied_at[self.peer] = self.now

    @on_event
    def judge(self, event: TrainerProgress) -> None:
        if self.now < self._next_check_at:
            return
        self._next_check_at = self.now + CHECK_INTERVAL_S
        cores = self._all_well()
        if cores is None:
            self._well_since = None
            return
        if self._well_since is None:
            self._well_since = self.now
        well_since = max(self._well_since, self.disturbances.calm_since(self.swarm))
        for other, core in cores.items():
            stuck_s = self.now - max(self._applied_at[other], well_since)
            timeouts_s = 2.0 * core.rounds.deadline.round_timeout_s()
            most_s = timeouts_s + self.swarm.travel_s + _carried_s(self.swarm, core)
            self.demand(
                stuck_s <= most_s + CHECK_INTERVAL_S,
                f"has been in round {core.rounds.round_id} for {stuck_s:.2f} s unhindered; "
                f"at most {most_s:.2f} s",
                other,
            )

    def _all_well(self) -> dict[PeerId, Inspection] | None:
        """Return all running peers if they reach each other and are undisturbed."""
        swarm = self.swarm
        if swarm.network.cuts or (self.conditions.allows_delays and not self._calm):
            return None
        cores: dict[PeerId, Inspection] = {}
        for peer, host in swarm.hosts.items():
            if host.state in ("crashed", "halted"):
                continue
            core = swarm.inspections.get(peer)
            if core is None or host.state != "up" or not _is_well(swarm, peer):
                return None
            if core.phase != "running" or core.rounds.mode == "off":
                return None
            cores[peer] = core
        return cores if all(_has_full_view(core, cores) for core in cores.values()) else None


def _has_full_view(core: Inspection, cores: dict[PeerId, Inspection]) -> bool:
    """Whether the core's whole roster is present, the core skips no peer, and the rule has enough
    updates."""
    return (
        all(other in cores for other in core.rounds.roster)
        and not any(other != core.local and core.membership.skip_reason(other) for other in cores)
        and rule_has_enough(core, cores)
    )


def _carried_s(swarm: AnySwarm, core: Inspection) -> float:
    """Return the time that slow links need to transfer the updates and results of two attempts, in
    seconds."""
    rate, payload_bytes = swarm.network.default.bytes_per_s, max(core.rounds.shard_bytes, default=0)
    return 4.0 * payload_bytes / rate if rate else 0.0


def _is_sent_payloads(swarm: AnySwarm, peer: PeerId) -> bool:
    """Whether payloads are in transit to the peer over a slow link, or were a moment ago."""
    lanes = [host.lanes.get(peer) for host in swarm.hosts.values()]
    return any(
        lane is not None and lane.free_at_ns / 1e9 > swarm.now - BUSY_S - 1.0 for lane in lanes
    )


class MissingCommitRequests(Checker):
    """L5: a peer that receives reports of later rounds requests the missing commits, and repeats
    the request while the reports continue."""

    invariant = "L5"
    needs = "rolling"

    # Time of the first report of a later round since the peer's last request or progress.
    _reported_at = PerIncarnation[float | None]()

    def end_pause(self) -> None:
        # The peer could not send a request while it was paused, and may handle other messages
        # first.
        self._reported_at = None

    @on_event
    def judge_ack(self, event: Received, ack: Ack) -> None:
        self._judge(event, ack.progress.step)

    @on_event
    def judge_message(
        self, event: Received, message: Update | UpdateRequest | Commit | NotServing
    ) -> None:
        self._judge(event, message.round_id)

    def _judge(self, event: Received, round_id: int) -> None:
        """Judge a message that reports that its sender is in the round ``round_id``."""
        core, rounds = self.core, self.rolling
        if round_id <= rounds.round_id:
            return
        is_able = core.phase == "running" and rounds.mode != "off"
        if not is_able or not _is_well(self.swarm, self.peer) or _is_outdated(core, event):
            self._reported_at = None
            return
        reported_at = self.now if self._reported_at is None else self._reported_at
        self._reported_at = reported_at
        waits = core.recover_at is not None and self.now < core.recover_at
        stood_still = self.now - core.handled_at > PAUSE_S
        if waits or stood_still or _is_sent_payloads(self.swarm, self.peer):
            # The peer is waiting before it recovers, was paused, or the missing commits may be in
            # transit.
            self._reported_at = self.now
        else:
            waited_s = self.now - reported_at
            self.demand(
                waited_s <= ASKED_WITHIN_S + self.swarm.travel_s,
                f"{waited_s:.2f} s ago others were reported beyond round {rounds.round_id}, "
                "but it has requested nothing since",
            )

    @on_effect
    def record_asked(self, send: Send, message: Update | CommitRequest | StateRequest) -> None:
        self._reported_at = None

    @on_effect
    def record_progress(self, effect: Apply | Restore) -> None:
        self._reported_at = None


def _is_outdated(core: Inspection, event: Received) -> bool:
    """Whether the message has to be ignored, because it comes from an unknown peer or from a former
    incarnation."""
    member = core.membership.members.get(event.sender)
    return not core.settings.may_be(event.sender) or (
        member is not None and event.incarnation < member.incarnation
    )


def _is_well(swarm: AnySwarm, peer: PeerId) -> bool:
    """Whether the peer's trainer does not hang and its machine is not overloaded."""
    host = swarm.hosts[peer]
    return not host.trainer_stopped and not host.machine.late_ns and not host.machine.handling_ns
