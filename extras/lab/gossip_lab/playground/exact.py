"""The exact engine: the real protocol core of each peer, in the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gossip.core import Peer, PeerId
from gossip.errors import ConfigError
from gossip_lab.simulation import (
    LinkModel,
    Network,
    RuleRunner,
    SharedLedgers,
    Swarm,
    address,
    many_peers,
    play,
)

from .disruptions import Disruptions
from .judging import EXACT_MAX
from .learning_trainer import LearningTrainer, SharedParts
from .moments import Moment
from .parts import Parts
from .promises import UpdateBook
from .recorder import Recorder
from .states import StateTable

ROUND_S_MAX = 300.0
"""Maximum virtual time of a round, in seconds. It is longer than all timeouts of the core, so a
longer round never ends."""
EVENTS_MAX = 50_000_000
"""Maximum number of events in a round. With more, the cores are assumed to cause events forever."""


def play_moments(parts: Parts) -> Iterator[Moment]:
    """Play a world with the real cores on the simulator's virtual clock.

    Raises:
        ReplicasDiverged: Two peers have applied different results of the same round.
        ConfigError: There are too many peers, the world has an attack or a setting that only the
            fast engine plays, or a round does not end, for example because all peers have crashed.
    """
    if parts.peers > EXACT_MAX:
        raise ConfigError(
            f"the exact engine plays up to {EXACT_MAX} peers, and this world has {parts.peers}",
            "engine = fast, or fewer peers",
        )
    uplink, optimizer = parts.links.uplink_bytes_per_s, parts.task.optimizer
    if parts.moves is not None or uplink is not None or optimizer != "sgd":
        raise ConfigError(
            "the exact engine plays neither swaps of samples nor a shared uplink nor AdamW",
            "engine = fast; or leave out assign = moves, uplink of the links, and optimizer",
        )
    recorder = Recorder(parts)
    return _play_rounds(_make_swarm(parts, recorder), recorder, parts.peers)


def _play_rounds(swarm: Swarm[Peer], recorder: Recorder, peers: int) -> Iterator[Moment]:
    while True:
        limit_s = swarm.now + ROUND_S_MAX
        swarm.dispatcher.handled_max = swarm.dispatcher.handled + EVENTS_MAX
        while not recorder.moments:
            if swarm.now > limit_s or not swarm.step():
                halts = [host.halt.reason for host in swarm.hosts.values() if host.halt is not None]
                raise ConfigError(
                    f"round {recorder.round_id} does not end: {len(swarm.up)} of "
                    f"{peers} peers run{f' ({halts[0]})' if halts else ''}",
                    "let fewer peers crash, or add peers",
                )
        yield recorder.moments.popleft()
        # Reports and commits would fill the memory in a long run.
        for host in swarm.hosts.values():
            host.reports.clear()
            host.commits.clear()
        swarm.past.clear()


def _make_swarm(parts: Parts, recorder: Recorder) -> Swarm[Peer]:
    """Return the swarm of a world before its first event. The peers that are available at time 0
    are connected and start together. The others join later, like newcomers in a run."""
    disruptions = Disruptions(parts)
    topology = play.CachedTopology(parts.topology)
    everybody = np.arange(parts.peers)

    @lru_cache(maxsize=64)
    def undisturbed(round_id: int) -> NDArray[np.float64]:
        return parts.compute(everybody, round_id)

    def seconds_of(peer: PeerId, round_id: int) -> float:
        return float(undisturbed(round_id)[peer]) * disruptions.slowness(peer, swarm.now)

    states = StateTable(parts.task)
    shared = SharedParts(
        states,
        UpdateBook(parts),
        RuleRunner(parts.rule, centered=not parts.topology.rolling),
        parts.task,
        parts.settings.seed,
        seconds_of,
        recorder.record_state,
    )
    first = np.flatnonzero(parts.availability.present_peers(parts.peers, 0.0)).tolist()
    if not first:
        raise ConfigError("no peer is available at the start", "see availability")
    room = parts.peers if len(first) < parts.peers else 0
    roster = replace(parts.settings, peers=tuple(first), room=room)
    known, ledgers = many_peers.Acquaintance({}), SharedLedgers()

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        known.lives[peer] = incarnation
        settings = replace(roster, had_round=recorder.round_id)
        control, bulk = address(peer, incarnation)
        core = many_peers.AcquaintedPeer(
            peer, incarnation, settings, topology, known=known, control=control, bulk=bulk
        )
        ledgers.add(core)
        return core

    links = LinkModel(parts.links.delay_s, bytes_per_s=parts.links.bytes_per_s)
    swarm = Swarm(
        make_core,
        parts.peers,
        parts.settings.seed,
        Network(links),
        make_trainer=lambda peer, incarnation: LearningTrainer(peer, shared),
        encoded=False,
        start_spread_s=0.0,
        traced=False,
        absent=sorted(set(range(parts.peers)).difference(first)),
    )
    swarm.connect_all()
    recorder.begin(swarm, states.initial)
    disruptions.begin(swarm)
    return swarm
