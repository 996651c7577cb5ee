"""A supervisor's door: open from before its first peer until after its last; it knows whom a start on several hosts lacks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gossip.config import RunConfig
from gossip.keys import SWARM_KEY
from gossip.transport.addresses import is_loopback

from .entrance import Entrance

if TYPE_CHECKING:
    from .supervisor import Supervisor

DOORS_SAID = 3  # any one of them will do, as long as one is left


class Doorway:
    """The door of one supervisor.

    Args:
        run: Whose peers they are.
    """

    def __init__(self, run: Supervisor, entrance: Entrance) -> None:
        # Here and not at the top: ZeroMQ and the codec take 0.2 s to import, and few launchers have a door.
        from .door import Door

        self._run, self._config, self._invites = run, run.config, entrance.invites
        if entrance.key is None and (run.folder / SWARM_KEY).is_file():
            entrance = replace(entrance, key=run.folder / SWARM_KEY)
        self.door = Door(run.config, run.folder, run.peers, entrance, let_in=self._let_in, lost=run.lose, say=run.screen.say)

    async def open(self) -> None:
        """Raises: ConfigError, AddressInUse: It cannot listen."""
        await self.door.open()
        self._run.record("door", None, address=self.door.address)
        if self._config.room > self._config.peers and self._invites:
            more = "others join with" if self._run.joins else f"room for {self._config.room - self._config.peers} more"
            self._run.screen.say(f"{more}: {self.invitation()}")

    async def close(self) -> None:
        await self.door.close()

    def invitation(self) -> str:
        """What to type on another machine, or here when this door is on a loopback address."""
        only = "for others: gossip run --advertise ADDRESS"
        return invitation([self.door.address], self.door.key_file, self._run.command[2:], only)

    async def another_id(self, peer: int) -> tuple[int, int] | None:
        """For a newcomer that has lost its own, with the incarnation that its life begins with. None: there is no room."""
        new = await self.door.claim_own()
        if new is None:
            self._run.screen.say(f"x there is no room for peer {peer} under another id")
        else:
            self._run.view.expect(new[0])
        return new

    def _let_in(self) -> set[int]:
        return {peer for peer in self._run.peers if self._run.view.rows[peer].state == "training"}

    @property
    def missing(self) -> list[int]:
        """Who of the first peers is elsewhere, and has not come."""
        return sorted(set(self.door.missing) - set(self._run.peers))

    def troubles(self) -> list[str]:
        """What came back from doors that were tried."""
        return self.door.troubles()


def invitation(doors: Sequence[str], key: Path | None, command: Sequence[str], only: str) -> str:
    """The line by which another machine joins.

    Args:
        doors: Addresses of some; the first is knocked at first.
        only: What to say behind it when that is a loopback address.
    """
    words = [*(["--key", str(key)] if key is not None else []), *(word for door in doors[1:] for word in ("--seed", door))]
    line = shlex.join(["gossip", "join", *words, doors[0], "--", *command])
    return f"{line}   (on this machine; {only})" if is_loopback(doors[0].rpartition(":")[0].strip("[]")) else line


def invitations(config: RunConfig, folder: Path, doors: Sequence[str], command: Sequence[str]) -> list[str]:
    """What the launcher of many hosts says once all of them have a door; nothing when there is room for nobody else.

    Args:
        folder: Of the launcher, where the key lies that another machine needs.
        doors: Of all hosts; "": not yet.
    """
    more = config.room - config.peers
    if more <= 0 or not all(doors):
        return []
    key = folder / SWARM_KEY if config.keyed else None
    only = "for others give hosts an address=... that they reach"
    return [f"room for {more} more: {invitation(doors[:DOORS_SAID], key, command, only)}"]
