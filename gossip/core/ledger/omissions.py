"""Omissions: servers that reply to messages but do not deliver their results. After repeated
omissions, a server does not serve for a number of rounds.

A server that withholds its results costs all peers a timeout in each attempt that it serves. An
omission is no proof of an attack, because a slow link or a busy machine has the same effect. So an
omission does not lower the trust: the updates of the peer are still used, and the peer is not
suspected. A peer that has waited for a result until the timeout reports the omission in its next
commit (``Accusation.silent``). If more than f peers have reported an omission in the same round, at
least one of them is honest. Like the trust table, this table is a pure function of the commits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gossip.core.messages import Accusation, Commit, PeerId
from gossip.core.settings import TrustSettings, accusation_rounds

from .accused_rounds import ACCUSED, AccusedRounds, accuse, is_news
from .unpacking import COUNT, number, row, rows, unpacked

Turn: TypeAlias = Literal["passed_over", "serves_again"]


@dataclass(slots=True)
class _Server:
    heard: float = 1.0  # Delivery score of the server, in [0, 1].
    rests: int = 0  # Number of rounds for which the server will not serve.
    accused: AccusedRounds = ()


_PACKED = rows(row(COUNT, number(), COUNT, ACCUSED))


class OmissionTracker:
    """Delivery score and omissions of each server.

    Args:
        f: Maximum number of peers that do not serve at the same time, including the peers in
            quarantine. With 0, all peers serve.
    """

    def __init__(self, settings: TrustSettings, f: int) -> None:
        self.settings, self.f = settings, f
        self._window = accusation_rounds(f)
        self._servers: dict[PeerId, _Server] = {}

    def may_serve(self, peer: PeerId) -> bool:
        server = self._servers.get(peer)
        return server is None or not server.rests

    def servers(self, peers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        """Return the peers among ``peers`` that may serve."""
        return tuple(filter(self.may_serve, peers)) if self._servers else peers

    def lacks(self, accuser: PeerId, peer: PeerId, of_round: int, round_id: int) -> bool:
        """Whether the accusation by ``accuser`` is new evidence: it is not stored, it is not too
        old in ``round_id``, and ``peer`` still serves."""
        server = self._servers.get(peer, _Server())
        new = is_news(server.accused, accuser, of_round)
        return new and of_round >= round_id - self._window and not server.rests

    def observe_round(
        self, commits: Sequence[Commit], locked: Collection[PeerId]
    ) -> list[tuple[PeerId, Turn]]:
        """Record the commits of a round. ``locked``: peers in quarantine. Return the peers that
        stop serving now or serve again, each with this change."""
        changes: list[tuple[PeerId, Turn]] = []
        for peer, server in sorted(self._servers.items()) if self._servers else ():
            if server.rests:
                server.rests -= 1
                if not server.rests:
                    server.heard = max(server.heard, self.settings.suspect_below)
                    changes.append((peer, "serves_again"))
        for commit in commits:
            made = self._servers.get(commit.server)
            if made is not None and commit.digest and made.heard < 1.0 and not made.rests:
                made.heard += self.settings.served_recovery * (1.0 - made.heard)
        for commit in commits:
            for accusation in commit.accusations:
                by = commit.server
                if (
                    accusation.silent
                    and accusation.peer != by
                    and self.lacks(by, accusation.peer, accusation.round_id, commit.round_id)
                ):
                    self._record_omission(
                        self._servers.setdefault(accusation.peer, _Server()), accusation, commit
                    )
        return changes + self._suspend_servers(commits[0].roster, locked)

    def _record_omission(self, server: _Server, accusation: Accusation, commit: Commit) -> None:
        oldest = commit.round_id - self._window
        server.accused, enough = accuse(
            server.accused, commit.server, accusation.round_id, oldest, self.f
        )
        if enough:
            server.heard *= self.settings.heard_memory

    def _suspend_servers(
        self, roster: Collection[PeerId], locked: Collection[PeerId]
    ) -> list[tuple[PeerId, Turn]]:
        below = self.settings.quarantine_below
        silent = sorted(
            [
                (s.heard, peer)
                for peer, s in self._servers.items()
                if s.heard < below and not s.rests
            ]
        )
        if not silent:
            return []
        out = {peer for peer, server in self._servers.items() if server.rests} | set(locked)
        room = max(
            0, min(self.f - len(out), (len(roster) - 1) // 2 - len(out.intersection(roster)))
        )
        chosen = [peer for _, peer in silent if peer in roster and peer not in out][:room]
        for peer in chosen:
            self._servers[peer].rests = self.settings.quarantine_rounds
        return [(peer, "passed_over") for peer in chosen]

    # --- as data ----------------------------------------------------------------------------------

    def pack(self) -> tuple[Any, ...]:
        return tuple(
            [(peer, s.heard, s.rests, s.accused) for peer, s in sorted(self._servers.items())]
        )

    def unpack(self, packed: Any) -> None:
        """Load the result of another peer's ``pack``. Raises ``ValueError``, and changes nothing,
        if the data is invalid."""
        self._servers = {
            peer: _Server(heard, rests, accused)
            for peer, heard, rests, accused in unpacked("omissions", _PACKED, packed)
        }
