"""Reads the addresses of peers from the folder of the run, and reports them to the core as
events."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gossip.core import Event, events
from gossip.run import Announcement, Journal, SeedFolder

from .spec import NodeSpec


class SeedWatch:
    """Writes the addresses of the local peer to the folder, and reads those of the other peers.

    Args:
        addresses: Addresses of the local peer: of the control connection, and of the bulk
            connection.
        now: Time in seconds. The first announcement is attempted at once.
    """

    def __init__(
        self,
        folder: SeedFolder,
        spec: NodeSpec,
        journal: Journal,
        addresses: tuple[str, str],
        now: float,
    ) -> None:
        self._folder, self._spec, self._journal = folder, spec, journal
        self._reported_later_life = False
        key = "" if spec.keys is None else spec.keys.pair.public
        announce = partial(folder.announce, *addresses, spec.incarnation, key)
        self._announcement = Announcement(folder.path, announce, journal.event, journal.troubles)
        self._announcement.attempt(now)

    def poll(self, now: float, *, all_linked: bool) -> Iterator[Event]:
        """Repeat the announcement if it is due, and yield events about the other peers.

        Args:
            all_linked: Whether the links to all other peers are up. If so, the folder is read less
                often.
        """
        self._announcement.tick(now)
        for seed in self._folder.poll_seeds(now, all_linked):
            if seed.ended:
                yield events.PeerEnded(seed.peer)
            elif seed.coming:
                yield events.PeerExpected(seed.peer)
            else:
                yield events.AddressLearned(seed.peer, seed.control, seed.bulk, seed.incarnation)

    def check_later_life(self) -> None:
        """Emit a notice if a later incarnation of the local peer was started. The other peers then
        reject this incarnation."""
        own = self._spec.incarnation
        later = None if self._reported_later_life else self._folder.later_life(own)
        if later is None:
            return
        self._reported_later_life = True
        self._journal.event(
            "notice",
            message=f"peer {self._spec.peer} was started again, as incarnation {later}, while this "
            f"process of incarnation {own} runs: the other peers accept only the later one",
            hint="end this process; if both were intended, give each peer its own number",
            about=None,
        )
