"""A supervisor's join server: open from before its first peer until after its last.

The server reports which peers a start on several hosts lacks.
"""

from __future__ import annotations

from dataclasses import replace

from gossip.launch.registry import JoinEndpoint
from gossip.observe import events
from gossip.run import SWARM_KEY

from .invitation import Invitation
from .running import OngoingRun


class JoinService:
    """The join server of one supervisor.

    Args:
        run: Run that the peers belong to.
    """

    def __init__(self, run: OngoingRun, endpoint: JoinEndpoint) -> None:
        # Imported here because ZeroMQ and the codec take 0.2 s to import, and few launchers have a
        # join server.
        from gossip.launch.registry import JoinServer, JoinServerCallbacks

        self._run, self._config, self._invites = run, run.config, endpoint.invites
        if endpoint.key is None and (run.folder / SWARM_KEY).is_file():
            endpoint = replace(endpoint, key=run.folder / SWARM_KEY)
        self.join_server = JoinServer(
            run.config,
            run.folder,
            run.peers,
            endpoint,
            JoinServerCallbacks(self._let_in, run.lose, run.screen.print_line),
        )

    async def open(self) -> None:
        """Open the server. Raises: ConfigError, AddressInUse: It cannot listen."""
        await self.join_server.open()
        self._run.record(events.JoinServer(address=self.join_server.address))
        if self._config.room > self._config.peers and self._invites:
            self._invite()

    async def close(self) -> None:
        await self.join_server.close()

    def _invite(self) -> None:
        """Print the command to type on another machine, or on this one if the join server has a
        loopback address."""
        config, join_server = self._config, self.join_server
        head = "others join" if self._run.joins else f"room for {config.room - config.peers} more"
        only = "for others: gossip run --advertise ADDRESS"
        invitation = Invitation(
            config, [join_server.address], join_server.key_file, self._run.command[2:]
        )
        for line in invitation.format_lines(head, only):
            self._run.screen.print_line(line)

    async def another_id(self, peer: int) -> tuple[int, int] | None:
        """Return another id, and its first incarnation, for a newcomer that has lost its id. None:
        there is no room."""
        new = await self.join_server.claim_own()
        if new is None:
            self._run.screen.print_line(f"x there is no room for peer {peer} under another id")
        else:
            self._run.view.expect(new[0])
        return new

    def _let_in(self) -> set[int]:
        return {peer for peer in self._run.peers if self._run.view.rows[peer].state == "training"}

    @property
    def missing(self) -> list[int]:
        """First peers of other launchers that have not arrived."""
        return sorted(set(self.join_server.missing) - set(self._run.peers))

    @property
    def stateless(self) -> set[int]:
        """Newcomers of all launchers that have no state yet."""
        return self.join_server.keeper.stateless()

    def troubles(self) -> list[str]:
        """Return a line on each join server that does not answer, with its last error."""
        return self.join_server.troubles()
