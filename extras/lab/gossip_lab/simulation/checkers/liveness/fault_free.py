"""L8, L11: where nothing is wrong, nothing goes wrong, however large payloads are and however slow
links and processors; and where only payloads of some trickle, nobody waits for these for long."""

from __future__ import annotations

from gossip.core import Apply, Committed, Contributed, Effect, Event, PeerId, Report
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm

WRONG = ("attempt", "late", "suspect", "dead", "recovering", "fork", "paused")
"""Reports about other peers, or about a peer's own rounds, that only faults cause."""


ROUND_TIMEOUTS = 3.0
"""A server that trickles is given up after one; the next may have to wait for updates,
and be given up, too."""


class NothingGoesWrong(Checker):
    """L8: without a fault every commit has the updates of all who had samples, nothing is handed
    on, nobody is suspected, late, or in need of the state of another."""

    invariant = "L8"
    events = (Contributed,)
    effects = (Committed, Report)

    def make_records(self) -> None:
        self._idle: set[tuple[int, PeerId]] = set()  # who had no samples in which round

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Contributed) and not event.samples:
            self._idle.add((event.round_id, peer))

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if not self.circumstances.faultless:
            return
        if isinstance(effect, Report):
            text = f"reports {effect.event} {effect.fields}, and nothing is wrong"
            # near the optimum, now and then
            refused = effect.event == "attempt" and "is refused" in effect.fields["reason"]
            self.demand(effect.event not in WRONG or refused, swarm, peer, text)
        elif isinstance(effect, Committed):
            commit = effect.commit
            there = {contribution.peer for contribution in commit.contributors}
            lacking = [
                p
                for p in commit.roster
                if p not in there and (commit.round_id, p) not in self._idle
            ]
            text = (
                f"commits round {commit.round_id}, shard {commit.shard} without {lacking}, and "
                "nothing is wrong"
            )
            self.demand(not lacking, swarm, peer, text)


class NobodyWaitsForATrickle(Checker):
    """L11: where nothing is wrong but that payloads of some trickle, or cannot be read, rounds go
    on at all others: each ends within three round timeouts, however slowly something moves."""

    invariant = "L11"
    effects = (Apply,)

    def make_records(self) -> None:
        self._applied_at: dict[PeerId, float] = {}

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.rolling if core is not None else None
        trickling = self.circumstances.trickling
        if not trickling or peer in trickling or rounds is None or not isinstance(effect, Apply):
            return
        took_s, self._applied_at[peer] = (
            swarm.now - self._applied_at.get(peer, swarm.now),
            swarm.now,
        )
        most_s = ROUND_TIMEOUTS * rounds.deadline.cap_s + swarm.travel_s
        text = (
            f"has been in round {effect.round_id} for {took_s:.2f} s, where only payloads of "
            f"{sorted(trickling)} trickle; "
        )
        self.demand(took_s <= most_s, swarm, peer, f"{text}at most {most_s:.2f} s")
