"""S14, S15 and S17: a core raises no exception, sends no flood of messages, has bounded memory,
reuses no timer, and returns no effect after it has halted."""

from __future__ import annotations

from collections import Counter

from gossip.core import (
    CONTRIBUTIONS_KEPT,
    COPIES_MAX,
    HISTORY_ROUNDS,
    PIECES_MAX,
    PLANS_KEPT,
    RELAYS_MAX,
    TAKERS_MAX,
    CancelTimer,
    Event,
    Halt,
    PeerId,
    Received,
    Send,
    SetTimer,
    TimerFired,
    Token,
)
from gossip_lab.inspection import GossipInspection, Inspection, MembershipInspection
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    Violation,
    after_event,
    on_effect,
    on_event,
)
from gossip_lab.simulation.world import MANY, AnySwarm, SimulationStuck

STASH_MAX = 9  # number of rounds: the present round and eight later rounds
EVERY = 32  # timers of a peer between two checks of its memory, about 1 s
# Maximum number of messages per receiver and event, without the commits for a peer that is behind.
PER_TICK = 16


class NoExceptionsOrFloods(Checker):
    """S14: no input makes a core raise an exception or send a flood of messages, and no message of
    a single peer makes it halt.

    An exception is not caught here: it leaves ``Swarm.step``, and ``as_violation`` turns it into a
    violation that names the event.
    """

    invariant = "S14"

    def make_records(self) -> None:
        self._most: dict[PeerId, int] = {}

    def begin_incarnation(self) -> None:
        core, shards = self.swarm.inspections.get(self.peer), 16
        n = len(core.settings.everybody) if core is not None else len(self.swarm.hosts)
        self._most[self.peer] = PER_TICK * n + (
            core.settings.rounds.commit_log * shards if core is not None else 0
        )
        assert self._most[self.peer] >= MANY, "fewer are not checked"

    def on_flood(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        self.select_peer(swarm, peer)
        if sum(isinstance(effect, Send) for effect in swarm.dispatcher.effects) > self._most[peer]:
            raise self.violated(
                f"sends more than {self._most[peer]} messages because of {_describe_event(event)}"
            )

    def finish(self) -> None:
        """Count a judgement for each event of the run."""
        self.judged += self.swarm.dispatcher.handled

    @on_effect
    def judge(self, halt: Halt) -> None:
        event = self.swarm.dispatcher.event
        if self.core.stop_reason == halt.reason:
            return  # it was requested to stop
        if isinstance(event, Received) and event.sender in self.conditions.attackers:
            raise self.violated(
                f"halts ({halt.reason}) because of a Byzantine peer's message: "
                f"{_describe_event(event)}"
            )


def as_violation(swarm: AnySwarm, error: Exception) -> Violation:
    """Return the exception if it is a violation. If there were too many events, return a violation
    of S15: messages cause further messages forever. For any other exception, return a violation of
    S14 that names the last event that a core received."""
    if isinstance(error, Violation):
        return error
    now = swarm.dispatcher
    if isinstance(error, SimulationStuck):
        event = now.event
        what = type(event.message if isinstance(event, Received) else event).__name__
        text = f"{now.handled_max} events so far, this one a {what}: they cause each other"
        return Violation("S15", now.peer, swarm.now, f"{text} forever")
    text = f"{type(error).__name__}: {error}; the last event was {_describe_event(now.event)}"
    return Violation(NoExceptionsOrFloods.invariant, now.peer, swarm.now, text)


def _describe_event(event: Event | None) -> str:
    return repr(event)[:400] if event is not None else "nothing"


class BoundedStores(Checker):
    """S15: all stores of a core stay within bounds that depend only on its settings and the number
    of peers.

    The stores are compared at intervals and at the end of each incarnation. This is enough, because
    a store that has grown too large does not shrink by itself.
    """

    invariant = "S15"
    needs = ""

    def make_records(self) -> None:
        self._timers: Counter[PeerId] = Counter()

    @after_event
    def check_periodically(self, event: TimerFired) -> None:
        self._timers[self.peer] += 1
        if self._timers[self.peer] % EVERY == 0:
            self._check_bounds()

    def end_incarnation(self) -> None:
        self._check_bounds()

    def _check_bounds(self) -> None:
        """Compare all stores of a core with their bounds."""
        host, n = self.host, len(self.swarm.hosts)
        self.judged += 1
        if host.membership is not None:
            self._judge(host.membership.stores(), table_bounds(host.membership, n))
        if host.inspection is not None:
            self._judge(host.inspection.stores(), core_bounds(host.inspection, n))

    def finish(self) -> None:
        """Compare the stores of all running peers once more."""
        for peer in self.swarm.up:
            self.select_peer(self.swarm, peer)
            self._check_bounds()

    def _judge(self, stores: dict[str, int], bounds: dict[str, int]) -> None:
        for what, size in stores.items():
            if size > bounds[what]:
                raise self.violated(f"{size} {what}, at most {bounds[what]} are allowed")


def table_bounds(membership: MembershipInspection, n: int) -> dict[str, int]:
    """Return the maximum sizes of the stores of a membership with ``n`` peers."""
    return {
        "members in the table": n,
        "rumours waiting": n * membership.accusers_max,
        "probes under way": n,
        "probes for others under way": RELAYS_MAX,
        "peers on the probing circle": n,
        "voices without an address": n,
        "changes that nobody was told of": 0,
    }


def core_bounds(core: Inspection, n: int) -> dict[str, int]:
    """Return the maximum sizes of the other stores of a core."""
    rounds, shards = core.rounds, max(1, len(core.rounds.shard_bytes))
    pipeline = core.settings.pipeline
    micro_batches = 0 if pipeline is None else pipeline.micro_batches
    audits = n if pipeline is not None and pipeline.audit else 0  # per micro-batch
    return {
        "timers pending": 16 + RELAYS_MAX + 4 * n + 4 * shards + (1 + audits) * micro_batches,
        "micro-batches": micro_batches,
        "micro-batches with attempts": micro_batches,
        "messages kept for the next round": 2 * micro_batches + n,
        "members that have counted": n,
        "audits": n * micro_batches,
        "audits drawn": n * micro_batches,
        "answers to auditors": n * micro_batches,
        "stages' words": n,
        "hellos": n,
        "takers of the state": TAKERS_MAX,
        "who waits for an attestation": n,
        "states that are kept": COPIES_MAX,
        "takers of pieces": TAKERS_MAX,
        "pieces of a state": PIECES_MAX,
        "peers heard of in other rounds": n,
        **(
            _gossip_bounds(core, n)
            if isinstance(rounds, GossipInspection)
            else _rolling_bounds(core, n, shards)
        ),
    }


def _rolling_bounds(core: Inspection, n: int, shards: int) -> dict[str, int]:
    settings, round_bytes = core.settings.rounds, sum(core.rounds.shard_bytes)
    return {
        "commits kept, in rounds": max(2, settings.commit_log),
        "commits kept, in bytes": max(settings.commit_log_bytes, 2 * round_bytes),
        # For each round, sender and shard one message of each of five kinds: updates, requests,
        # commits, and measured or overdue statistics.
        "messages kept for later rounds": STASH_MAX * 5 * n * shards,
        "rounds with messages kept": STASH_MAX,
        "commits of former lives kept": STASH_MAX * n * shards,
        "answers of a shard": n,
        "rules asked": n * shards + shards,
        "measures of shards": shards,
        "measures that were asked for": n * shards,
        "peers that want to join": n,
        "peers that have finished": n,
        "branches heard of": n,
        "hashes of the lineage": HISTORY_ROUNDS,
        "snapshots": 8,
    }


def _gossip_bounds(core: Inspection, n: int) -> dict[str, int]:
    return {
        "pushes kept": 2 * n * (core.settings.gossip.staleness_max + 1),
        "peers heard pushing": 2 * n,
        "sketches": n,
        "plans": PLANS_KEPT,
        "times of contributions": CONTRIBUTIONS_KEPT,
        "rules asked": 2,
        "peers that have finished": n,
        "peers with a standing": n,
    }


class TimersAndHalt(Checker):
    """S17: a timer's token is used only once, fires at most once, and does not fire after it was
    cancelled. If two timers of an incarnation shared a token, stale timers would make healthy peers
    halt (docs/design_notes.md N7). A halted core returns no further effects."""

    invariant = "S17"
    needs = ""
    _pending = PerIncarnation(set[Token])
    _used = PerIncarnation(set[Token])

    @on_event
    def judge_fired(self, event: TimerFired) -> None:
        self.demand(
            event.token in self._pending,
            f"timer {event.token} fires, but is not pending: fired, cancelled or never set",
        )
        self._pending.remove(event.token)

    @on_effect
    def judge_set(self, timer: SetTimer) -> None:
        if timer.token in self._used:
            raise self.violated(f"sets timer {timer.token}, a token that it has used before")
        self._used.add(timer.token)
        self._pending.add(timer.token)

    @on_effect
    def judge_cancelled(self, timer: CancelTimer) -> None:
        if timer.token not in self._pending:
            raise self.violated(f"cancels timer {timer.token}, which is not pending")
        self._pending.remove(timer.token)

    @on_effect
    def judge_halt(self, halt: Halt) -> None:
        # A halted core receives no further events, so only effects of the same event have to be
        # checked.
        asked = self.swarm.dispatcher.effects
        later = [other for at, other in enumerate(asked) if halt in asked[:at]]
        if later:
            raise self.violated(f"returns {repr(later[0])[:400]} after it halted")
