"""L2, L3 and L5 where time matters: nobody waits for one that it skips, nor when all is there,
nor without asking."""

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
    Effect,
    Event,
    Hello,
    Inspection,
    NotServing,
    PeerId,
    Received,
    Report,
    Restore,
    RollingInspection,
    Send,
    ShardRound,
    StateRequest,
    TrainerProgress,
    Update,
    UpdateRequest,
)
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.checkers.disturbances import (
    NEVER,
    STILL_S,
    DisturbedChecker,
    stands_s,
)
from gossip_lab.simulation.checkers.safety import rolling_of, rule_has_enough
from gossip_lab.simulation.world import AnySwarm

PAUSES_KNOWN = 32
AT_ONCE_S = 0.5  # for some round trips and the rule; half of the shortest round timeout
QUIET_S = 1.0  # views have settled when nothing has happened for so long
ASKED_WITHIN_S = 1.0  # by one that was told that it is behind; it waits for a fiftieth of that
LOOK_EVERY_S = 0.2
ROUNDS_KNOWN = 64
TELLING = frozenset({Ack, Update, UpdateRequest, Commit, NotServing})
CHANGES = frozenset(
    {"skip", "unskip", "suspect", "dead", "left", "joined", "alive_again", "recovering", "restored"}
)
"""Reports after which peers may be of several minds for a moment."""


class NobodyWaitsForTheSkipped(Checker):
    """L3: a server that a peer skips costs it no time. It hands on at once, to one that it does not
    skip, if there is one."""

    invariant = "L3"
    events = (UpdateRequest,)
    effects = (Update, Report)
    afters = (Hello,)

    def make_records(self) -> None:
        # who has asked for which attempt of a round
        self._asked = self.per_life(dict[tuple[PeerId, int], tuple[int, int]])

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, UpdateRequest):
            query = event.message
            self._asked[peer][event.sender, query.shard] = query.round_id, query.attempt

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        match effect:
            case Report(event="skip", fields={"subject": subject, "round": round_id}):
                self._judge_shards(swarm, peer, subject, round_id)
            case Send(server, Update() as update):
                core, asked = (
                    swarm.inspections.get(peer),
                    self._asked[peer].get((server, update.shard)),
                )
                rounds = core.rolling if core is not None else None
                # Who asks for an update gets it, whatever we think of its health.
                if core is None or rounds is None or asked == (update.round_id, update.attempt):
                    return
                if update.round_id == rounds.round_id and update.shard < len(rounds.shards):
                    shard = rounds.shards[update.shard]
                    if shard.attempt == update.attempt:
                        self._judge(swarm, peer, core, rounds, shard)
            case _:
                return

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if (
            isinstance(event, Received)
            and isinstance(event.message, Hello)
            and event.message.stage != "ready"
        ):
            core = swarm.inspections.get(peer)
            if core is not None:
                self._judge_shards(swarm, peer, event.sender, core.rounds.round_id)

    def _judge_shards(self, swarm: AnySwarm, peer: PeerId, subject: PeerId, round_id: int) -> None:
        """``subject`` has come to be skipped in the round, by ``peer``,
        which is done with the event."""
        core = swarm.inspections.get(peer)
        rounds = core.rolling if core is not None else None
        if core is None or rounds is None or rounds.round_id != round_id:
            return
        for shard in rounds.shards:
            if shard.server_of(shard.attempt) == subject:
                self._judge(swarm, peer, core, rounds, shard)

    def _judge(
        self,
        swarm: AnySwarm,
        peer: PeerId,
        core: Inspection,
        rounds: RollingInspection,
        shard: ShardRound,
    ) -> None:
        if core.phase != "running" or rounds.mode != "active" or shard.commit is not None:
            return
        server = shard.server_of(shard.attempt)
        self.judged += 1
        if server == peer or not (reason := rounds.skip_reason(server)):
            return
        able = [
            other
            for other in shard.order
            if (_serves(core, rounds) if other == peer else not rounds.skip_reason(other))
        ]
        if able:
            where = f"round {rounds.round_id}, shard {shard.index}, attempt {shard.attempt}"
            raise self.violated(
                swarm,
                peer,
                f"waits in {where} for peer {server}, which it skips ({reason}); {able} could "
                "serve",
            )


def _serves(core: Inspection, rounds: RollingInspection) -> bool:
    return rounds.serves(core.handled_at)


@dataclass(slots=True)
class _Offer:
    """The last update that a peer's trainer has come with, in time for its round."""

    at: float
    round_id: int
    parent: bytes
    roster: tuple[PeerId, ...]


class OverWhenAllIsThere(DisturbedChecker):
    """L2: a round is over as soon as everybody's update is there, and no timeout passes then. Also
    where some links are cut, if everybody reaches a quorum,
    once all have noticed who cannot be reached."""

    invariant = "L2"
    events = (Contributed,)
    effects = (Committed, Report)

    def make_records(self) -> None:
        self._offers: dict[PeerId, _Offer] = self.per_life()
        self._over: dict[tuple[int, bytes], None] = {}
        self._calm = False
        self._changed_at = NEVER
        self._lives_at = NEVER  # somebody was started or died
        # when each pause ended, and how long it was
        self._paused: deque[tuple[float, float]] = deque(maxlen=PAUSES_KNOWN)

    def on_resume(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._paused.append((swarm.now, stands_s(swarm, peer)))

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._lives_at = swarm.now

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._lives_at = swarm.now

    def begin_calm(self, swarm: AnySwarm) -> None:
        self._calm = True
        if not self.circumstances.delaying:
            return
        # what a liar has made of its update until now is not what it would send
        self._offers.clear()
        # Nor is what it has said in a round that is under way taken back: who followed it to a
        # later turn waits there.
        for core in swarm.inspections.values():
            if (rounds := rolling_of(core)) is not None:
                self._over[rounds.round_id, rounds.chain] = None

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        rounds = rolling_of(swarm.inspections.get(peer))
        if (
            isinstance(event, Contributed)
            and rounds is not None
            and rounds.round_id == event.round_id
        ):
            self._offers[peer] = _Offer(
                swarm.now, event.round_id, rounds.chain, rounds.roster.peers
            )

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Report):
            if effect.event in CHANGES:
                self._changed_at = swarm.now
        elif isinstance(effect, Committed):
            key = effect.commit.round_id, effect.commit.parent
            if key not in self._over:
                self._over[key] = None
                if len(self._over) > ROUNDS_KNOWN:
                    del self._over[next(iter(self._over))]
                self._judge(swarm, peer, *key)

    def _judge(self, swarm: AnySwarm, peer: PeerId, round_id: int, parent: bytes) -> None:
        """``peer`` is the first for which the round is over."""
        last = self._offers.get(peer)
        if last is None or (last.round_id, last.parent) != (round_id, parent):
            return
        first, roster = last, last.roster
        for other in roster:
            offer = self._offers.get(other)
            if offer is None or (offer.round_id, offer.parent, offer.roster) != (
                round_id,
                parent,
                roster,
            ):
                return  # it came too late, or not at all
            first = offer if offer.at < first.at else first
            last = offer if offer.at > last.at else last
        changed_at = max(self._changed_at, self._lives_at, self.disturbances.calm_since(swarm))
        if changed_at > first.at - QUIET_S or not self._is_settled(swarm, roster):
            return
        waited_s = swarm.now - last.at
        text = (
            f"round {round_id} was over {waited_s:.2f} s after the last update of {list(roster)} "
            "was there, with nobody missing"
        )
        # too short to be a disturbance
        paused_s = sum(for_s for until, for_s in self._paused if until >= last.at)
        self.demand(waited_s <= AT_ONCE_S + paused_s + swarm.travel_s, swarm, peer, text)

    def _is_settled(self, swarm: AnySwarm, roster: tuple[PeerId, ...]) -> bool:
        """Whether everybody runs, undisturbed, reaches a quorum,
        and skips exactly those whom it does not reach."""
        network = swarm.network
        if self.circumstances.delaying and not self._calm:
            return False
        cores = {
            peer: core
            for peer in roster
            if (core := swarm.inspections.get(peer)) is not None and swarm.hosts[peer].state == "up"
        }
        if len(cores) < len(roster) or any(not _is_well(swarm, peer) for peer in roster):
            return False
        for peer, core in cores.items():
            away = [
                other for other in roster if other != peer and core.membership.skip_reason(other)
            ]
            cut = [
                other
                for other in roster
                if network.is_cut((peer, other)) or network.is_cut((other, peer))
            ]
            if away != cut or len(roster) - len(away) < core.rounds.quorum():
                return False
        return True


class NobodyIsStuck(DisturbedChecker):
    """L2: where everybody sees everybody and nothing disturbs them, nobody stays in a round for two
    round timeouts, whatever has happened before."""

    invariant = "L2"
    events = (TrainerProgress,)
    effects = (Apply,)

    def make_records(self) -> None:
        self._applied_at: dict[PeerId, float] = {}
        self._look_at = NEVER
        self._well_since: float | None = None
        self._calm = False

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._applied_at[peer] = swarm.now
        self._well_since = None

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._well_since = None

    def begin_calm(self, swarm: AnySwarm) -> None:
        self._calm = True

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Apply):
            self._applied_at[peer] = swarm.now

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if swarm.now < self._look_at or not isinstance(event, TrainerProgress):
            return
        self._look_at = swarm.now + LOOK_EVERY_S
        cores = self._all_well(swarm)
        if cores is None:
            self._well_since = None
            return
        if self._well_since is None:
            self._well_since = swarm.now
        well_since = max(self._well_since, self.disturbances.calm_since(swarm))
        for other, core in cores.items():
            stuck_s = swarm.now - max(self._applied_at[other], well_since)
            timeouts_s = 2.0 * core.rounds.deadline.round_timeout_s()
            most_s = timeouts_s + swarm.travel_s + _carried_s(swarm, core)
            self.judged += 1
            if stuck_s > most_s + LOOK_EVERY_S:
                where = (
                    f"has been in round {core.rounds.round_id} for {stuck_s:.2f} s with nothing "
                    "in its way"
                )
                raise self.violated(swarm, other, f"{where}; at most {most_s:.2f} s")

    def _all_well(self, swarm: AnySwarm) -> dict[PeerId, Inspection] | None:
        """All who run, when they see each other and nothing disturbs them."""
        if swarm.network.cuts:
            return None
        if self.circumstances.delaying and not self._calm:
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
        return cores if all(_sees_all(core, cores) for core in cores.values()) else None


def _sees_all(core: Inspection, cores: dict[PeerId, Inspection]) -> bool:
    """Whether its roster is there, nobody is skipped, and the rule has enough updates."""
    return (
        all(other in cores for other in core.rounds.roster)
        and not any(other != core.local and core.membership.skip_reason(other) for other in cores)
        and rule_has_enough(core, cores)
    )


def _carried_s(swarm: AnySwarm, core: Inspection) -> float:
    """How long links carry the updates and the results of two attempts."""
    rate, payload_bytes = swarm.network.default.bytes_per_s, max(core.rounds.shard_bytes, default=0)
    return 4.0 * payload_bytes / rate if rate else 0.0


def _is_sent_payloads(swarm: AnySwarm, peer: PeerId) -> bool:
    """Whether some are on a slow link to it, or were a moment ago."""
    lanes = [host.lanes.get(peer) for host in swarm.hosts.values()]
    return any(
        lane is not None and lane.free_at_ns / 1e9 > swarm.now - BUSY_S - 1.0 for lane in lanes
    )


class AsksForWhatItLacks(Checker):
    """L5: who is told that others are ahead asks for what it lacks,
    and again for as long as it is told so."""

    invariant = "L5"
    events = (Ack, Update, UpdateRequest, Commit, NotServing)
    effects = (Update, CommitRequest, StateRequest, Apply, Restore)

    def make_records(self) -> None:
        # that others are ahead, and it has asked for nothing since
        self._told_at: dict[PeerId, float] = self.per_life()

    def on_resume(self, swarm: AnySwarm, peer: PeerId) -> None:
        # It could not ask meanwhile, and what is not about rounds may be handled first.
        self._told_at.pop(peer, None)

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if not isinstance(event, Received) or type(event.message) not in TELLING:
            return
        core = swarm.inspections.get(peer)
        rounds = core.rolling if core is not None else None
        if core is None or rounds is None or _read_sender_round(event) <= rounds.round_id:
            return
        if (
            core.phase != "running"
            or rounds.mode == "off"
            or not _is_well(swarm, peer)
            or _is_of_old(core, event)
        ):
            self._told_at.pop(peer, None)
            return
        told_at = self._told_at.setdefault(peer, swarm.now)
        waits = core.recover_at is not None and swarm.now < core.recover_at
        if waits or swarm.now - core.handled_at > STILL_S or _is_sent_payloads(swarm, peer):
            # it could not keep up and says so, stood still, or what it lacks may be on its way
            self._told_at[peer] = swarm.now
        else:
            waited_s = swarm.now - told_at
            text = (
                f"was told {waited_s:.2f} s ago that others are beyond round {rounds.round_id}, "
                "and has asked for nothing since"
            )
            self.demand(waited_s <= ASKED_WITHIN_S + swarm.travel_s, swarm, peer, text)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        self._told_at.pop(peer, None)


class TakesAStateInstead(Checker):
    """L5: who hears that the commits which it lacks are not kept any more, or that others are
    farther ahead than anybody keeps commits, asks for no more commits and takes over a state; as
    soon as more peers say so than may be lying."""

    invariant = "L5"
    events = (UpdateRequest, Commit, NotServing)
    afters = (UpdateRequest, Commit, NotServing)

    def make_records(self) -> None:
        # the round in which it cannot go on by commits
        self._lost: dict[PeerId, int] = self.per_life()

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        self._lost.pop(peer, None)
        core = swarm.inspections.get(peer)
        rounds = core.rolling if core is not None else None
        if core is None or rounds is None or not isinstance(event, Received):
            return
        member, message = core.membership.members.get(event.sender), event.message
        if (
            core.phase != "running"
            or member is None
            or event.incarnation != member.incarnation
            or rounds.holds_back
        ):
            return
        if (
            isinstance(message, UpdateRequest | Commit | NotServing)
            and message.lineage == core.settings.lineage
        ):
            here = rounds.round_id
            not_kept = (
                isinstance(message, NotServing) and message.round_id > here == message.asked_round
            )
            not_kept = (
                not_kept
                and message.attempt == message.shard == 0
                and rounds.asked == (event.sender, here)
            )
            far = here + core.settings.rounds.commit_log
            beyond = here if not_kept else far
            ahead = {
                event.sender,
                *(other for other, told in rounds.ahead.items() if told > beyond),
            }
            if (not_kept or message.round_id > far) and len(ahead) > core.settings.f:
                self._lost[peer] = here

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core, here = swarm.inspections.get(peer), self._lost.pop(peer, None)
        if core is not None and here is not None:
            text = (
                f"cannot go on from round {here} by commits, as it has heard, and takes over no "
                "state"
            )
            # it tries again later
            self.demand(core.phase != "running" or core.recover_at is not None, swarm, peer, text)


def _read_sender_round(event: Received) -> int:
    """The round in which, by this message, somebody is."""
    message = event.message
    if isinstance(message, Ack):
        return message.progress.step
    return (
        message.round_id
        if isinstance(message, Update | UpdateRequest | Commit | NotServing)
        else -1
    )


def _is_of_old(core: Inspection, event: Received) -> bool:
    """Whether the message is of a stranger or of a former life, which counts for nothing."""
    member = core.membership.members.get(event.sender)
    return not core.settings.may_be(event.sender) or (
        member is not None and event.incarnation < member.incarnation
    )


def _is_well(swarm: AnySwarm, peer: PeerId) -> bool:
    """Whether neither its trainer hangs nor its machine has too much to do."""
    host = swarm.hosts[peer]
    return not host.trainer_stopped and not host.machine.late_ns and not host.machine.handling_ns


__all__ = [
    "AsksForWhatItLacks",
    "NobodyIsStuck",
    "NobodyWaitsForTheSkipped",
    "OverWhenAllIsThere",
    "TakesAStateInstead",
]
