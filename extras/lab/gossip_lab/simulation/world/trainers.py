"""Trainers of all peers: requests of the cores to them, and the times of their replies."""

from __future__ import annotations

from typing import Any

from gossip.core import Effect, events

from .host import SimProcess, SwarmEnvironment
from .machine import to_ns
from .toy_trainer import ComputedAhead, Said

SLICE_S = 0.05
"""Maximum time after which the trainer of a slow machine notices that the machine is fast again, in
seconds."""


class Trainers:
    """Passes requests of cores to trainers, and replies of trainers to cores. ``progress_s``:
    interval at which a core receives its trainer's progress, in seconds."""

    def __init__(self, swarm: SwarmEnvironment, progress_s: float) -> None:
        self.swarm, self.progress_s = swarm, progress_s

    def report_progress(self, host: SimProcess[Any]) -> None:
        """Deliver the trainer's progress now and in each interval. The node reads it from shared
        memory, so it is delivered even if the trainer hangs."""
        swarm = self.swarm
        if host.trainer is None or host.state in ("crashed", "halted"):
            return
        if host.state == "up":
            swarm.deliver(host, host.trainer.progress(host.machine.clock_s(swarm.now_ns)))
        swarm.at_ns(swarm.now_ns + to_ns(self.progress_s), self.report_progress, host)

    def resume(self, host: SimProcess[Any]) -> None:
        """End the hang of a trainer. It continues with the replies and requests that had to
        wait."""
        host.trainer_stopped = False
        waiting, host.trainer_inbox = host.trainer_inbox, []
        for event in waiting:
            self._deliver(host, event)
        asked, host.asked = host.asked, []
        for effect in asked:
            self.request(host, effect)

    def request(self, host: SimProcess[Any], effect: Effect) -> None:
        assert host.trainer is not None, (
            f"peer {host.peer} has no trainer, but requests {type(effect).__name__}"
        )
        # The node aggregates, so this continues while the trainer hangs.
        if host.trainer_stopped and not isinstance(effect, events.Aggregate):
            host.asked.append(effect)
        else:
            self.schedule(
                host, host.trainer.on_effect(effect, host.machine.clock_s(self.swarm.now_ns))
            )

    def schedule(self, host: SimProcess[Any], answers: list[tuple[float, Said]]) -> None:
        """Schedule the trainer's replies. Aggregation that takes no time is settled at once, before
        timers, as in ``Node._settle``."""
        for delay_s, event in answers:
            if not delay_s and isinstance(event, events.Aggregated):
                host.settling.append(event)
                continue
            self._work(host, event, delay_s)

    def _work(self, host: SimProcess[Any], event: Said, left_s: float) -> None:
        """Let the trainer work on a reply for ``left_s``. A slow machine works in slices, because
        it may become fast again before the end."""
        slowness = host.machine.slowness
        done_s = left_s if slowness == 1.0 else min(left_s, SLICE_S / slowness)
        act = (self._work, host, event, left_s - done_s)
        self.swarm.at_ns(
            self.swarm.now_ns + to_ns(done_s * slowness),
            *(act if done_s < left_s else (self._from_trainer, host, event)),
        )

    def _from_trainer(self, host: SimProcess[Any], event: Said) -> None:
        if host.trainer is None or not host.trainer.is_still_valid(event):
            return
        if host.trainer_stopped and not isinstance(event, events.Aggregated):
            host.trainer_inbox.append(event)
        else:
            self._deliver(host, event)

    def _deliver(self, host: SimProcess[Any], event: Said) -> None:
        """First let the trainer handle deferred effects, and then deliver its event to the core.
        The core may react with an effect for the trainer, which has to follow the deferred
        effects."""
        if host.trainer is not None:
            for effect in host.trainer.put_off(event):
                self.request(host, effect)
        if not isinstance(event, ComputedAhead):
            self.swarm.deliver(host, event)
