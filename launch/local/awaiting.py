"""Reports for which peers a start waits, and the results of connecting to their addresses."""

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


# The parameters differ between the local launcher and that of many hosts.
def waiting(  # noqa: PLR0913
    view: RunModel,
    config: RunConfig,
    seconds: float,
    now: float,
    name: Callable[[int], str] = str,
    elsewhere: Sequence[int] = (),
) -> str:
    """Return a line about a start that waits. It has the missing peers, the time waited, the time
    limits, and the present peers.

    Args:
        seconds: Time since the first process was started.
        name: Function that returns the name of a peer.
        elsewhere: Further missing peers, as reported by join servers.
    """
    lacking = {*view.lives.awaited(now), *elsewhere}
    # Until a peer reports which peers it misses, this launcher only has information about its own
    # peers.
    everybody = range(config.peers) if view.lives.unmet(now) else view.lives.here
    here = ", ".join(name(peer) for peer in everybody if peer not in lacking) or "no peer"
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
    """Return the path of a peer's output after a colon; "" if the peer has printed nothing."""
    log = folder / f"peer-{peer}" / "out.log"
    return f": {log}" if log.is_file() and log.stat().st_size else ""


class WaitingReminder:
    """Timer for lines about the peers for which a start waits. A line is due after 5, 15, 45 s and
    so on, or 5 s after the previous line if the missing peers have changed (with ``first_s`` =
    5)."""

    def __init__(self, began: float, first_s: float) -> None:
        self._began, self._first_s = began, first_s
        self._said_s, self._missing = 0.0, frozenset[int]()

    def is_due(self, now: float, missing: Collection[int]) -> bool:
        """Whether to print a line now. If so, the caller must print it: the next line is timed from
        now."""
        waited_s, others = now - self._began, self._missing != frozenset(missing)
        if waited_s < max(self._first_s, self._said_s * 3) and not (
            others and waited_s >= self._said_s + self._first_s
        ):
            return False
        self._said_s, self._missing = waited_s, frozenset(missing)
        return True


class ReachabilityProbe:
    """Determines in the background why missing peers cannot be reached.

    Args:
        folder: Folder of the run; addresses are read from its ``seeds``.
        own: Peers that run here.
        unannounced: Reason why the address of a local peer cannot be written to ``seeds``, by peer.
    """

    def __init__(
        self, folder: Path, own: Collection[int], unannounced: Mapping[int, str] | None = None
    ) -> None:
        self._folder, self._own = folder, own
        self._unannounced = {} if unannounced is None else unannounced
        self.found: dict[int, str] = {}
        """Reason why a missing peer cannot be reached, by peer."""
        self.over = ""
        """Peers that have completed the training, as text; "" if none has, or if another peer still
        replies."""
        self._task: asyncio.Task[None] | None = None

    def troubles(self, missing: Collection[int], shared: bool) -> list[str]:
        """Return the reasons found by the last probe, and start another probe.

        Args:
            shared: Whether all launchers of the run share this folder. If so, a peer without a file
                in it has not been started.
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
                f"{peer} has no address in {seeds}: it was not started, or it uses another folder"
                if shared
                else ""
            )
        if seed.ended:
            return f"{peer} has ended"
        address = seed.control.removeprefix("tcp://")
        return f"{peer} at {address}: {await why_silent(address)}"
