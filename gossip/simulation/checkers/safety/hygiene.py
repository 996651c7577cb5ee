"""S14, S15, S17: no exception out of a core, no flood, no unbounded memory, no timer that fires
twice, silence after the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossip.core import (
    COPIES_MAX,
    HISTORY_ROUNDS,
    PIECES_MAX,
    PLANS_KEPT,
    RELAYS_MAX,
    TAKERS_MAX,
    TIMES_KEPT,
    CancelTimer,
    Effect,
    Event,
    GossipRounds,
    Halt,
    Membership,
    Peer,
    PeerId,
    Received,
    RollingRounds,
    Send,
    SetTimer,
    TimerFired,
    Token,
)
from gossip.simulation.checkers.base import Checker, RunConditions, Violation, membership_of
from gossip.simulation.world import MANY

if TYPE_CHECKING:
    from gossip.simulation.world import Swarm

STASH_MAX = 9  # rounds: the present one and eight ahead
EVERY = 32  # timers of a peer between two looks at all its memory: about a second
# sends to each peer that one event may cause, beside the commits for one that is behind
PER_TICK = 16


class NothingRaises(Checker):
    """S14: nothing that comes makes a core raise, send a flood,
    or halt because of what one peer says.

    An exception leaves ``Swarm.step`` by itself; ``blame`` turns it into a violation that
    names the event.
    """

    invariant = "S14"
    effects = (Halt,)

    def __init__(self, circumstances: RunConditions | None = None) -> None:
        super().__init__(circumstances)
        self._most: dict[PeerId, int] = {}

    def on_start(self, swarm: Swarm[Any], peer: PeerId) -> None:
        core, shards = swarm.hosts[peer].core, 16
        n = len(core.settings.everybody) if isinstance(core, Peer) else len(swarm.hosts)
        self._most[peer] = PER_TICK * n + (
            core.settings.rounds.commit_log * shards if isinstance(core, Peer) else 0
        )
        assert self._most[peer] >= MANY, "fewer are not looked at"

    def on_flood(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        if sum(isinstance(effect, Send) for effect in swarm.asked) > self._most[peer]:
            raise self.violated(
                swarm,
                peer,
                f"sends more than {self._most[peer]} messages because of {_words(event)}",
            )

    def finish(self, swarm: Swarm[Any]) -> None:
        """Every event has been judged."""
        self.judged += swarm.deliveries

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Halt):
            core, event = swarm.hosts[peer].core, swarm.handling
            if isinstance(core, Peer) and core._stop_reason == effect.reason:
                return  # it was asked to leave, and nobody needs it any more
            if isinstance(event, Received) and event.sender in self.circumstances.attackers:
                raise self.violated(
                    swarm, peer, f"halts ({effect.reason}) at the word of a liar: {_words(event)}"
                )

    def blame(self, swarm: Swarm[Any], error: Exception) -> Violation:
        """The violation that an exception of a run amounts to,
        with the last event that any core was given."""
        text = f"{type(error).__name__}: {error}; the last event was {_words(swarm.handling)}"
        return self.violated(swarm, swarm.handler, text)


def _words(event: Event | None) -> str:
    return repr(event)[:400] if event is not None else "nothing"


class Bounded(Checker):
    """S15: everything that a core keeps stays within what its settings and the
    number of peers allow.

    Looked at now and then, and at the end of each life:
    what has grown too large does not shrink by itself.
    """

    invariant = "S15"
    afters = (TimerFired,)

    def __init__(self, circumstances: RunConditions | None = None) -> None:
        super().__init__(circumstances)
        self._timers: dict[PeerId, int] = {}

    def after_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        if type(event) is TimerFired:
            count = self._timers[peer] = self._timers.get(peer, 0) + 1
            if count % EVERY == 0:
                self.look(swarm, peer)

    def on_crash(self, swarm: Swarm[Any], peer: PeerId) -> None:
        self.look(swarm, peer)

    def finish(self, swarm: Swarm[Any]) -> None:
        """Looks at everybody once more."""
        for peer in swarm.up:
            self.look(swarm, peer)

    def look(self, swarm: Swarm[Any], peer: PeerId) -> None:
        """Compares all that a core keeps with its bounds."""
        core, n = swarm.hosts[peer].core, len(swarm.hosts)
        self.judged += 1
        membership = membership_of(core)
        if membership is not None:
            for what, size, most in table_sizes(membership, n):
                self._judge(swarm, peer, what, size, most)
        if isinstance(core, Peer):
            for what, size, most in core_sizes(core, n):
                self._judge(swarm, peer, what, size, most)

    def _judge(self, swarm: Swarm[Any], peer: PeerId, what: str, size: int, most: int) -> None:
        if size > most:
            raise self.violated(swarm, peer, f"{size} {what}, at most {most} are allowed")


def table_sizes(membership: Membership, n: int) -> list[tuple[str, int, int]]:
    """(what, how many, at most) of what a membership keeps among ``n`` peers."""
    rumors = membership.rumors
    return [
        ("members in the table", len(membership.members), n),
        ("rumours waiting", len(rumors), n * rumors.accusers_max),
        ("probes under way", len(membership.prober.probes), n),
        ("probes for others under way", len(membership.prober.relays), RELAYS_MAX),
        ("peers on the probing circle", len(membership.prober._circle), n),
        ("voices without an address", len(membership._voices), n),
        ("changes that nobody was told of", len(membership.view.changes), 0),
    ]


def core_sizes(core: Peer, n: int) -> list[tuple[str, int, int]]:
    """Likewise, of what a whole peer keeps beside its membership."""
    rounds, shards = core.rounds, max(1, len(core.rounds.sizes))
    sizes = [
        ("timers pending", len(core.timers), 16 + RELAYS_MAX + 4 * n + 4 * shards),
        ("hellos", len(core.bootstrap.hellos), n),
        (
            "takers of the state",
            sum([ask.what == "state" for ask in core.recovery.giving.asks.values()]),
            TAKERS_MAX,
        ),
        ("who waits for a voucher", len(core.recovery.giving.asks), n),
        ("states that are kept", len(core.recovery.giving.copies), COPIES_MAX),
        ("takers of pieces", len(core.recovery.giving._takers), TAKERS_MAX),
        ("pieces of a state", len(core.recovery._kept), PIECES_MAX),
        ("peers heard of in other rounds", len(rounds.future_buffer.seen), n),
        (
            "peers with a standing",
            len(rounds.trust.pack()) if isinstance(rounds, GossipRounds) else 0,
            n,
        ),
    ]
    if isinstance(rounds, GossipRounds):
        return sizes + _gossip_sizes(core, rounds, n)
    return sizes + _rolling_sizes(core, rounds, n, shards)


def _rolling_sizes(
    core: Peer, rounds: RollingRounds, n: int, shards: int
) -> list[tuple[str, int, int]]:
    settings, log, agreed = core.settings.rounds, rounds.log, rounds.replicated
    round_bytes = 4 * sum(rounds.sizes)
    # Each round's updates, queries, commits, and what was measured or is overdue, one of a kind,
    # sender and shard.
    stashed = sum(len(kept) for kept in rounds.future_buffer._stash.values())
    return [
        ("commits kept, in rounds", len(log._rounds), max(2, settings.commit_log)),
        ("commits kept, in bytes", log._bytes, max(settings.commit_log_bytes, 2 * round_bytes)),
        ("messages kept for later rounds", stashed, STASH_MAX * 5 * n * shards),
        ("rounds with messages kept", len(rounds.future_buffer._stash), STASH_MAX),
        ("answers of a shard", max((len(shard.answers) for shard in rounds._shards), default=0), n),
        ("rules asked", len(rounds.server._tickets), n * shards + shards),
        ("measures of shards", len(rounds.cross_shard._parts), shards),
        ("measures that were asked for", len(rounds.cross_shard._asked), n * shards),
        ("peers that want to join", len(rounds.joining), n),
        ("peers that have finished", len(rounds.departures), n),
        ("branches heard of", len(rounds.lag_detector._branches), n),
        ("hashes of the lineage", len(agreed.lineage._history), HISTORY_ROUNDS),
        ("snapshots", len(agreed._snapshots), 8),
    ]


def _gossip_sizes(core: Peer, rounds: GossipRounds, n: int) -> list[tuple[str, int, int]]:
    kept = core.settings.gossip.staleness_max + 1
    return [
        ("pushes kept", len(rounds.pushes), 2 * n * kept),
        ("peers heard pushing", len(rounds.pushes._heard), 2 * n),
        ("sketches", len(rounds.mixing._sketches), n),
        ("plans", len(rounds._plans), PLANS_KEPT),
        ("times of contributions", len(rounds._contributed_at), TIMES_KEPT),
        ("rules asked", len(rounds._tickets), 2),
        ("peers that have finished", len(rounds.finished), n),
    ]


class TimersAndHalt(Checker):
    """S17: a timer's token is used once, fires at most once and not after it was cancelled; a core
    that has halted says nothing any more."""

    invariant = "S17"
    events = (TimerFired,)
    effects = (SetTimer, CancelTimer, Halt)

    def __init__(self, circumstances: RunConditions | None = None) -> None:
        super().__init__(circumstances)
        self._pending: dict[PeerId, dict[Token, None]] = {}
        self._used: dict[PeerId, set[Token]] = {}

    def on_start(self, swarm: Swarm[Any], peer: PeerId) -> None:
        self._pending[peer], self._used[peer] = {}, set()

    def on_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        if isinstance(event, TimerFired):
            self.judged += 1
            if event.token not in self._pending[peer]:
                raise self.violated(
                    swarm,
                    peer,
                    f"timer {event.token} fires, which is not pending: fired, cancelled or never "
                    "set",
                )
            del self._pending[peer][event.token]

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, SetTimer):
            if effect.token in self._used[peer]:
                raise self.violated(
                    swarm, peer, f"sets timer {effect.token}, a token that it has used before"
                )
            self._used[peer].add(effect.token)
            self._pending[peer][effect.token] = None
        elif isinstance(effect, CancelTimer):
            if self._pending[peer].pop(effect.token, self) is self:
                raise self.violated(
                    swarm, peer, f"cancels timer {effect.token}, which is not pending"
                )
        elif isinstance(effect, Halt):
            # It is given nothing more to handle, so these are all that it can still say.
            later = [other for at, other in enumerate(swarm.asked) if effect in swarm.asked[:at]]
            if later:
                raise self.violated(swarm, peer, f"asks for {repr(later[0])[:400]} after it halted")


__all__ = ["Bounded", "NothingRaises", "TimersAndHalt", "core_sizes", "table_sizes"]
