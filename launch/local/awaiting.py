"""Reports which peers a start waits for, and the results of connecting to their addresses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from gossip.config import RunConfig
from gossip.launch.report import RunModel
from gossip.run import over, read_seed

TROUBLES_SHOWN = 4
INSECURE_EVERY_S = 60.0
INSECURE = (
    "! insecure: there are no keys: any process that reaches the peers' addresses can join, read "
    "gradients, send false updates and stop the run"
)


# Two launchers call it with different knowledge.
def waiting(  # noqa: PLR0913
    view: RunModel,
    config: RunConfig,
    seconds: float,
    now: float,
    name: Callable[[int], str] = str,
    elsewhere: Sequence[int] = (),
) -> str:
    """Return a line about a start that waits: missing peers, seconds waited, limits, present peers.

    Args:
        seconds: Time since the start began.
        name: Function that names a peer.
        elsewhere: Other missing peers, as far as join servers know.
    """
    lacking = {*view.lives.awaited(now), *elsewhere}
    # As long as no peer reports its missing peers, only the peers of this launcher are known here.
    everybody = range(config.peers) if view.lives.unmet(now) else view.lives.here
    here = ", ".join(name(peer) for peer in everybody if peer not in lacking) or "nobody"
    enough = (
        f"; {config.patience_s:g} s once {config.needed_to_start} are here"
        if config.min_peers
        else ""
    )
    missing = ", ".join(map(name, sorted(lacking)))
    peers = "peer" if len(lacking) == 1 else "peers"
    return (
        f"! waiting for {peers} {missing} since {seconds:.0f} s (at most "
        f"{config.start_timeout_s:g} s{enough}); here: {here}"
    )


def machine_load() -> str:
    """Return the load of this machine as text."""
    return f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors"


def name_log(folder: Path, peer: int) -> str:
    """Return the place of a peer's output; "" if it has printed nothing."""
    log = folder / f"peer-{peer}" / "out.log"
    return f": {log}" if log.is_file() and log.stat().st_size else ""


class WaitingReminder:
    """Times at which to print the peers that a start waits for: after 5, 15, 45 s and so on, and 5
    s after the previous line if the missing peers have changed."""

    def __init__(self, began: float, first_s: float) -> None:
        self._began, self._first_s = began, first_s
        self._said_s, self._missing = 0.0, frozenset[int]()

    def is_due(self, now: float, missing: Collection[int]) -> bool:
        """Whether to print a line now. The next call counts from the present time."""
        waited_s, others = now - self._began, self._missing != frozenset(missing)
        if waited_s < max(self._first_s, self._said_s * 3) and not (
            others and waited_s >= self._said_s + self._first_s
        ):
            return False
        self._said_s, self._missing = waited_s, frozenset(missing)
        return True


class ReachabilityProbe:
    """Determines in the background the reasons why missing peers cannot be reached.

    Args:
        folder: Folder of the run; addresses are read from its ``seeds``.
        own: Peers that run here.
        unannounced: Local peers without an address file in ``seeds``, with the reason why it cannot
            be written.
    """

    def __init__(
        self, folder: Path, own: Collection[int], unannounced: Mapping[int, str] | None = None
    ) -> None:
        self._folder, self._own = folder, own
        self._unannounced = {} if unannounced is None else unannounced
        self.found: dict[int, str] = {}
        """Reason why a missing peer cannot be reached, by peer."""
        self.over = ""
        """Peers that have completed the training, as text; "" if none has, or another peer still
        answers."""
        self._task: asyncio.Task[None] | None = None

    def troubles(self, missing: Collection[int], shared: bool) -> list[str]:
        """Return the findings of the last probe and start another probe.

        Args:
            shared: Whether the launchers of all peers write to this folder. If so, a peer without a
                file there has not been started.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._try(sorted(missing), shared))
        found = [self.found[peer] for peer in sorted(missing) if peer in self.found]
        more = len(found) - TROUBLES_SHOWN
        return [*found[:TROUBLES_SHOWN], *([f"and {more} more"] if more > 0 else [])]

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _try(self, missing: Sequence[int], shared: bool) -> None:
        self.over = ", ".join(map(str, await asyncio.to_thread(over, self._folder, self._own)))
        found = await asyncio.gather(*(self._why(peer, shared) for peer in missing))
        self.found = {peer: why for peer, why in zip(missing, found, strict=True) if why}

    async def _why(self, peer: int, shared: bool) -> str:
        # Imported here because ZeroMQ takes 0.1 s to import, and usually no peer is missing.
        from gossip.launch.registry import why_silent

        seeds = self._folder / "seeds"
        if why := self._unannounced.get(peer):
            return f"{peer} cannot be reached: its address cannot be written to {seeds} ({why})"
        if peer in self._own:
            return (
                f"{peer} has not completed gossip.init() and peer.prepare()"
                f"{name_log(self._folder, peer)}"
            )
        seed = read_seed(seeds, peer)
        if seed is None:
            return (
                f"{peer} has no address in {seeds}: it was not started, or with another folder"
                if shared
                else ""
            )
        if seed.ended:
            return f"{peer} has ended"
        address = seed.control.removeprefix("tcp://")
        return f"{peer} at {address}: {await why_silent(address)}"
