"""The end of a simulated training in gossip rounds: all scripts reach their last round, each in its
own time.

In most ends some peers are slow for a while, pause, hang or are killed and restarted. They are
present again when the others are about to leave, or have left.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from gossip.core import GossipRounds, Peer, PeerId
from gossip.inject import FAR_ROUNDS
from gossip_lab.simulation.checkers import EverybodyEnds

from .last_round import toys_of

if TYPE_CHECKING:
    from gossip_lab.simulation.world import Swarm

ROUNDS = (1, 12)  # bounds of the number of rounds that are still trained
DISTURBED = 0.7  # share of the ends with disturbances
KINDS = ("slow", "hang", "trainer", "restart", "crash")
AWAY_S = (0.1, 12.0)
TOGETHER, APART_S = 0.5, 1.5
SLOWNESS = (3.0, 40.0)
COPY_SHARES = (0.0, 0.1, 0.3)
"""Shares of a round timeout that copying or restoring a state may take."""
HANDLING_S = (0.0, 0.005)
SLICE_S = 0.5
FETCHES = 3
"""Number of round timeouts within which a peer that is behind gets another's state."""


def play_gossip_end(swarm: Swarm[Peer], checker: EverybodyEnds) -> None:
    """Let all peers that train in gossip rounds reach their end, and judge it."""
    running = {peer: host.core for peer, host in swarm.hosts.items() if host.running}
    if not running or not all(isinstance(core.rounds, GossipRounds) for core in running.values()):
        return
    checker.swarm = swarm
    rng, began = Random(f"last gossip round/{swarm.seed}"), swarm.now
    at = [core.rounds.round_id for core in running.values()]
    if max(at) >= FAR_ROUNDS:
        # A peer restored an attacker's state: the others would need days to reach its round.
        return
    left = rng.randint(*ROUNDS)
    last, compute_s = max(at) + left, 0.0
    for trainer in toys_of(swarm).values():
        trainer.rounds = last
        compute_s = max(compute_s, trainer.pace.compute_s[1] * trainer.pace.slowness)
    over_s = _disturb(swarm, sorted(running), last, rng)
    settings = next(iter(running.values())).settings.rounds
    # A peer that is further behind reaches the end alone, or restores the state of a peer that has
    alone_s = (last - min(at)) * compute_s
    rounds_s = (left + FETCHES) * (settings.round_timeout_s + compute_s)
    leaves_s = settings.drain_timeout_s + settings.linger_s
    # The others wait for the last peer to return, which then waits for others, or gives up if no
    # other peer has a state
    until = began + over_s + alone_s + rounds_s + 2 * leaves_s + settings.quorum_timeout_s
    while swarm.now < until and checker.remaining():
        swarm.run_for(SLICE_S)
    checker.judge_end(began)


def _disturb(swarm: Swarm[Peer], peers: list[PeerId], last: int, rng: Random) -> float:
    """Disturb some of the peers for a while. Return the longest duration, in seconds."""
    if rng.random() >= DISTURBED:
        return 0.0
    timeout_s = swarm.hosts[peers[0]].core.settings.rounds.round_timeout_s
    for trainer in toys_of(swarm).values():
        pace = trainer.pace
        pace.snapshot_s = max(rng.choice(COPY_SHARES) * timeout_s, pace.snapshot_s)
    together_s = rng.uniform(*AWAY_S) if rng.random() < TOGETHER else None
    most_s = 0.0
    for peer in rng.sample(peers, rng.randint(1, len(peers))):
        # Some peers crash while others restore their states.
        alone_s, apart_s = rng.uniform(*AWAY_S), rng.uniform(0.0, APART_S)
        for_s = alone_s if together_s is None else together_s + apart_s
        most_s = max(most_s, _disturb_one(swarm, peer, for_s, last, rng))
    return most_s


def _disturb_one(swarm: Swarm[Peer], peer: PeerId, for_s: float, last: int, rng: Random) -> float:
    """Disturb one peer by a drawn kind. Return the duration, in seconds."""
    over = swarm.now + for_s
    match rng.choice(KINDS):
        case "slow":
            swarm.slow_down(peer, rng.uniform(*SLOWNESS), rng.choice(HANDLING_S))
            swarm.at(over, partial(swarm.slow_down, peer, 1.0))
        case "hang":
            swarm.pause_for(peer, for_s)
        case "crash":
            swarm.at(over, partial(_kill, swarm, peer))
        case "trainer":
            swarm.stop_trainer(peer)
            swarm.at(over, partial(swarm.resume_trainer, peer))
        case _:
            swarm.restart(peer, for_s)
            if (trainer := toys_of(swarm).get(peer)) is not None:
                trainer.rounds = last
                return for_s + trainer.pace.prepare_s
    return for_s


def _kill(swarm: Swarm[Peer], peer: PeerId) -> None:
    """Kill a peer permanently, unless it has ended."""
    if swarm.hosts[peer].running:
        swarm.crash(peer)
