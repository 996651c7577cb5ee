"""L2, L3 and L5, as far as they limit waits: no peer waits for a peer that it skips, after all
updates have arrived, or for commits that it has not requested, and no peer stays in a round."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gossip.core import (
    BUSY_S,
    Ack,
    Apply,
    Commit,
    CommitRequest,
    Committed,
    Contributed,
    Hello,
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
from gossip_lab.inspection import Inspection
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    after_event,
    keep_latest,
    last_report_at,
    on_effect,
    on_event,
    on_report,
)
from gossip_lab.simulation.checkers.disturbances import NEVER, PAUSE_S, paused_s
from gossip_lab.simulation.checkers.safety import rule_has_enough
from gossip_lab.simulation.world import AnySwarm

# Maximum time from a report that a peer is behind to its request. A peer should need a fiftieth.
ASKED_WITHIN_S = 1.0
CHECK_INTERVAL_S = 0.2
PAUSES_KNOWN, ROUNDS_KNOWN = 32, 64
AT_ONCE_S = 0.5  # half of the shortest round timeout
QUIET_S = 1.0  # time without events after which the views of peers agree
CHANGES = (
    *("skip", "unskip", "suspect", "dead", "left", "joined", "alive_again"),
    *("recovering", "restored"),
)
"""Events that, once reported, may make the views of peers differ for a moment."""


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
        asked = self._asked.get((send.peer, update.shard))
        shards = self.rolling.shards
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


@dataclass(slots=True)
class _Offer:
    """The last update that a peer's trainer contributed to the present round."""

    at: float
    round_id: int
    parent: bytes
    roster: tuple[PeerId, ...]


class PromptRoundEnd(Checker):
    """L2: a round ends without a timeout as soon as all updates have arrived. This also holds if
    some links are cut, provided that each peer reaches a quorum and skips the peers that it cannot
    reach."""

    invariant = "L2"

    def make_records(self) -> None:
        self._offers: dict[PeerId, _Offer] = self.per_incarnation({})
        self._over: dict[tuple[int, bytes], None] = {}
        # (end, duration) of each pause, in seconds.
        self._paused: deque[tuple[float, float]] = deque(maxlen=PAUSES_KNOWN)

    def end_pause(self) -> None:
        self._paused.append((self.now, paused_s(self.swarm, self.peer)))

    def begin_calm(self) -> None:
        super().begin_calm()
        if not self.conditions.allows_delays:
            return
        # Before the calm phase, attackers may have sent other updates than those recorded here.
        self._offers.clear()
        # Rounds in progress are not judged: earlier claims of attackers may have moved a peer to a
        # later attempt, in which it now waits.
        for core in self.swarm.inspections.values():
            if (rounds := core.rolling) is not None:
                self._over[rounds.round_id, rounds.chain] = None

    @on_event
    def record_offer(self, event: Contributed) -> None:
        rounds = self.core.rolling
        if rounds is not None and rounds.round_id == event.round_id:
            self._offers[self.peer] = _Offer(
                self.now, event.round_id, rounds.chain, rounds.roster.peers
            )

    @on_effect
    def judge_first(self, committed: Committed) -> None:
        key = committed.commit.round_id, committed.commit.parent
        if key not in self._over:
            self._over[key] = None
            keep_latest(self._over, ROUNDS_KNOWN)
            self._judge(*key)

    def _judge(self, round_id: int, parent: bytes) -> None:
        """Judge the duration of the round at the first peer that commits it."""
        last = self._offers.get(self.peer)
        if last is None or (last.round_id, last.parent) != (round_id, parent):
            return
        first, roster = last, last.roster
        for other in roster:
            offer = self._offers.get(other)
            here = offer and (offer.round_id, offer.parent, offer.roster)
            if offer is None or here != (round_id, parent, roster):
                return  # the peer's update was late or missing
            first = offer if offer.at < first.at else first
            last = offer if offer.at > last.at else last
        changed_at = max(
            self.disturbances.calm_since(self.swarm),
            *self.disturbances.crashed_at.values(),
            *[last_report_at(host, *CHANGES) for host in self.swarm.hosts.values()],
        )
        if changed_at > first.at - QUIET_S or not self._is_settled(roster):
            return
        waited_s = self.now - last.at
        # Short pauses are not recorded as disturbances, so they are added here.
        stood_s = sum(for_s for until, for_s in self._paused if until >= last.at)
        self.demand(
            waited_s <= AT_ONCE_S + stood_s + self.swarm.travel_s,
            f"round {round_id} ended only {waited_s:.2f} s after the last update of "
            f"{list(roster)} had arrived, although no peer was missing",
        )

    def _is_settled(self, roster: tuple[PeerId, ...]) -> bool:
        """Whether all peers of the roster run undisturbed, reach a quorum, and skip exactly the
        peers that they do not reach."""
        swarm = self.swarm
        if self.conditions.allows_delays and self.calm_at is None:
            return False
        for peer in roster:
            core = swarm.inspections.get(peer)
            if core is None or swarm.hosts[peer].state != "up" or not _is_well(swarm, peer):
                return False
            away = [
                other for other in roster if other != peer and core.membership.skip_reason(other)
            ]
            is_cut = swarm.network.is_cut
            cut = [other for other in roster if is_cut((peer, other)) or is_cut((other, peer))]
            if away != cut or len(roster) - len(away) < core.rounds.quorum():
                return False
        return True


class BoundedRoundDuration(Checker):
    """L2: while all peers reach each other and are undisturbed, no peer stays in a round for two
    round timeouts, whatever happened before."""

    invariant = "L2"

    def make_records(self) -> None:
        self._applied_at: dict[PeerId, float] = {}
        self._next_check_at = NEVER
        self._well_since: float | None = None

    def begin_incarnation(self) -> None:
        self._applied_at[self.peer] = self.now
        self._well_since = None

    def end_incarnation(self) -> None:
        self._well_since = None

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
        if swarm.network.cuts or (self.conditions.allows_delays and self.calm_at is None):
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
    updates. The roster of gossip rounds keeps peers that never started."""
    return (
        (core.rolling is None or all(other in cores for other in core.rounds.roster))
        and not any(other != core.local and core.membership.skip_reason(other) for other in cores)
        and rule_has_enough(core, cores)
    )


def _carried_s(swarm: AnySwarm, core: Inspection) -> float:
    """Return the time that slow links need to transfer the updates and results of two attempts, in
    seconds."""
    rate = swarm.network.default.bytes_per_s
    payload_bytes = max(core.rounds.shard_bytes, default=0)
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
