"""L5: who finds out that more peers are on another branch of history than on its own does not
stay on its own."""

from __future__ import annotations

from gossip.core import Effect, Event, NotServing, PeerId, Received, Report, Update
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.checkers.safety import rolling_of
from gossip_lab.simulation.world import AnySwarm

AT_ONCE_S = 0.1  # for what follows in the same moment


class JoinsTheLarger(Checker):
    """L5: where only one side of a partition can go on, the smaller side of a fork takes over the
    larger one's state at once: as soon as those who say that they are on another branch of the
    present round are more than those on the own one, and more than f, who may lie. It does not wait
    until the others have gone on, which they may not be able to. Only who has just left its branch
    so, and is back on it without another state, may stay for the time of a round, to give others
    that of its own."""

    invariant = "L5"
    effects = (Report,)
    afters = (Update, NotServing)

    def make_records(self) -> None:
        self._left: dict[PeerId, bytes] = self.per_life()  # which branch last
        self._back_at: dict[PeerId, float] = {}

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        rounds = rolling_of(swarm.inspections.get(peer))
        if rounds is None or not isinstance(effect, Report):
            return
        if effect.event == "recovering":
            self._left[peer] = rounds.chain
        elif effect.event in ("kept_own_state", "restored"):
            self._back_at[peer] = swarm.now

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.rolling if core is not None else None
        if (
            core is None
            or rounds is None
            or not isinstance(event, Received)
            or not isinstance(event.message, Update | NotServing)
        ):
            return
        if core.phase != "running" or rounds.mode != "active" or rounds.may_differ:
            return
        timeout_s = core.settings.rounds.round_timeout_s
        if (
            self._left.get(peer) == rounds.chain
            and swarm.now - self._back_at[peer] <= timeout_s + AT_ONCE_S
        ):
            return
        message, seen = event.message, rounds.branches
        asked = message.asked_round if isinstance(message, NotServing) else message.round_id
        theirs = message.parent if isinstance(message, Update) else message.chain
        if not message.round_id == asked == rounds.round_id or message.shard >= len(rounds.shards):
            return
        # Who is not of the roster is not heard in it.
        if (
            theirs == rounds.chain
            or seen.get(event.sender) != theirs
            or event.sender not in rounds.roster
        ):
            return
        there = [other for other, branch in seen.items() if branch == theirs]
        here = [peer, *[other for other, branch in seen.items() if branch == rounds.chain]]
        text = (
            f"stays in round {rounds.round_id} with {sorted(here)}, having heard that "
            f"{sorted(there)} are on another branch"
        )
        self.demand(len(there) <= max(len(here), core.settings.f), swarm, peer, text)


__all__ = ["JoinsTheLarger"]
