"""A small swarm of whole peers under checkers,
and ways to make one of its cores or trainers faulty."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from gossip.core import PIECE_BYTES
from gossip.core.events import Committed, Effect, Event, Received, Send
from gossip.core.messages import PeerId
from gossip.core.peer import Peer
from gossip.core.settings import CoreSettings, MembershipSettings, RoundSettings, TrustSettings
from gossip.faults import KINDS, Fault
from gossip.faults.reader import Reader
from gossip.topologies import load
from gossip_lab.simulation.campaign.play import SimulationResult, run
from gossip_lab.simulation.schedules import Schedule
from gossip_lab.simulation.world import SharedLedgers
from gossip_lab.simulation.world.driver import Swarm, address
from gossip_lab.simulation.world.observer import Observer
from gossip_lab.simulation.world.toy_rule import Aggregator, ToyRule, mean
from gossip_lab.simulation.world.toy_trainer import ToyPace, ToyTrainer

SAMPLES = 97


def assert_sound(schedule: Schedule, observers: Iterable[Observer] = ()) -> SimulationResult:
    """Play a schedule in which no checker finds anything."""
    outcome = run(schedule, observers)
    assert outcome.violation is None, outcome.violation
    return outcome


def typed(words: str) -> tuple[Fault, ...]:
    """Return the faults of some words, also of those kinds that no user can type."""
    found: list[Fault] = []
    for word in words.split():
        kind = word.partition(":")[0]
        found += KINDS[kind].read(Reader(word, at=len(kind)))
    return tuple(found)


class OnEffect(Observer):
    """Calls ``act(peer, effect)`` before each effect is carried out."""

    def __init__(self, act: Callable[[PeerId, Effect], None]) -> None:
        self._act = act

    def on_effect(self, swarm: Any, peer: PeerId, effect: Effect) -> None:
        self._act(peer, effect)


def core_settings(n: int, seed: int, **fields: Any) -> CoreSettings:
    """Return the settings of a run of ``n`` peers."""
    return CoreSettings(b"run-id!!", b"lineage!", seed=seed, peers=tuple(range(n)), **fields)


def peer_swarm(
    settings: CoreSettings,
    make_trainer: Callable[[PeerId, int], ToyTrainer],
    topology: str = "rolling",
    started: int | None = None,
    share: SharedLedgers | None = None,
) -> Swarm[Peer]:
    """Whole peers, each of which knows the last address of every other when it starts.

    Args:
        started: Peers that are there from the beginning; all by default.
        share: The ledgers that they share; each has its own by default.
    """
    n = len(settings.peers) if started is None else started
    plan, folder = load(topology), {peer: address(peer, 0) for peer in range(n)}

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = folder[peer] = address(peer, incarnation)
        core = Peer(
            peer, incarnation, settings, plan, control=control, bulk=bulk, seeds=dict(folder)
        )
        if share is not None:
            share.add(core)
        return core

    return Swarm(make_core, n, settings.seed, make_trainer=make_trainer)


def toy_trainers(
    seed: int, kind: type[ToyTrainer] = ToyTrainer, samples_total: int = 997, **options: Any
) -> Callable[[PeerId, int], ToyTrainer]:
    """Return what makes the trainer of each life. The value of an option may depend on the peer."""

    def make(peer: PeerId, incarnation: int) -> ToyTrainer:
        own = {
            name: value.get(peer, 0.0) if isinstance(value, dict) else value
            for name, value in options.items()
        }
        pace = ToyPace(**{name: own.pop(name) for name in ToyPace.__slots__ if name in own})
        rule = ToyRule(own.pop("aggregate", mean))
        life = {"incarnation": incarnation, "samples_total": samples_total}
        return kind(peer, seed, **life, pace=pace, rule=rule, **own)

    return make


def checked_swarm(
    *observers: Observer,
    n: int = 4,
    seed: int = 5,
    topology: str = "rolling",
    compute_s: float = 0.1,
    f: int = 0,
    aggregate: Aggregator = mean,
    sizes: tuple[int, ...] = (8,),
    piece_bytes: int = PIECE_BYTES,
    probe_interval_s: float = 0.2,
    quarantine_rounds: int = 12,
    quorum_timeout_s: float = 60.0,
) -> Swarm[Peer]:
    """``aggregate`` is the rule, which bears ``f`` liars."""
    rounds = RoundSettings(
        round_timeout_s=2.0, drain_timeout_s=1.0, quorum_timeout_s=quorum_timeout_s
    )
    trust = TrustSettings(quarantine_rounds=quarantine_rounds, parole_rounds=8)
    membership = MembershipSettings(probe_interval_s=probe_interval_s)
    settings = core_settings(n, seed, f=f, rounds=rounds, trust=trust, membership=membership)
    trainers = toy_trainers(
        seed,
        samples_total=SAMPLES,
        compute_s=(compute_s, 1.2 * compute_s),
        aggregate=aggregate,
        sizes=sizes,
        piece_bytes=piece_bytes,
    )
    swarm = peer_swarm(settings, trainers, topology)
    swarm.hooks.extend(observers)
    return swarm


def show(checker: Observer, moment: str, swarm: Any, peer: PeerId, what: Event | Effect) -> None:
    """Shows a checker an event or an effect as a swarm would."""
    kind = type(what.message) if isinstance(what, Received | Send) else type(what)
    for see in checker.watchers(moment, kind):
        see(swarm, peer, what)


Change = Callable[[Any, list[Effect]], list[Effect] | None]
"""``(event, effects of a core) -> those that it returns instead``; None: as they are."""


def each(kind: type, change: Callable[[Any], list[Effect]]) -> Callable[..., list[Effect]]:
    """Replaces every effect of a kind."""
    return lambda event, effects: [
        new for old in effects for new in (change(old) if isinstance(old, kind) else [old])
    ]


def changed(fields: dict[str, Any], of: Any) -> dict[str, Any]:
    """Return the new values of fields. A value may be a function of the object."""
    return {name: value(of) if callable(value) else value for name, value in fields.items()}


def swapped(kind: type, **fields: Any) -> Callable[..., list[Effect]]:
    """Replaces fields of every effect of a kind."""
    return each(kind, lambda effect: [replace(effect, **changed(fields, effect))])


def recommitted(**fields: Any) -> Callable[..., list[Effect]]:
    """Replaces fields of every commit that a core reports."""
    return swapped(
        Committed, commit=lambda done: replace(done.commit, **changed(fields, done.commit))
    )


def resent(kind: type, **fields: Any) -> Callable[..., list[Effect]]:
    """Replaces fields of every message of a kind."""

    def change(send: Send) -> list[Effect]:
        if not isinstance(send.message, kind):
            return [send]
        message: Any = send.message
        return [replace(send, message=replace(message, **changed(fields, message)))]

    return each(Send, change)


def record_commits(swarm: Swarm[Peer]) -> dict[int, Committed]:
    """Return what will hold the commit of each round, of one shard: also those that were made by
    peers which have crashed since."""
    commits: dict[int, Committed] = {}

    def look(_: PeerId, effect: Effect) -> None:
        if isinstance(effect, Committed):
            commits[effect.commit.round_id] = effect

    swarm.hooks.append(OnEffect(look))
    return commits


def tamper(swarm: Swarm[Peer], peer: PeerId, change: Change) -> None:
    """From now on the effects of a peer's core are what ``change`` makes of them;
    None: as they are."""
    core = swarm.hosts[peer].core
    handle = core.handle

    def faulty(event: Event, now: float) -> list[Effect]:
        effects = handle(event, now)
        instead = change(event, effects)
        return effects if instead is None else instead

    core.handle = faulty  # type: ignore[method-assign]


def disturb(swarm: Swarm[Peer], peer: PeerId, act: Callable[[Peer, float], Any]) -> None:
    """In the midst of its next event a peer's core does ``act`` as well, once."""
    done: list[bool] = []

    def change(event: Event, effects: list[Effect]) -> None:
        if not done:
            done.append(True)
            act(swarm.hosts[peer].core, swarm.now)

    tamper(swarm, peer, change)
