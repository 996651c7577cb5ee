"""Suspicion timeouts, computed from the number of peers and the number of confirmations. The
formulas are those of memberlist (docs/design_notes.md N3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, log10

from gossip.core.events import Token
from gossip.core.messages import PeerId
from gossip.core.settings import MembershipSettings


def shortest_s(n: int, settings: MembershipSettings) -> float:
    """Return the suspicion timeout after enough peers have confirmed the suspicion, in seconds. The
    timeout grows with log n, because rumors need longer to reach all peers."""
    return settings.suspicion_mult * max(1.0, log10(max(1, n))) * settings.probe_interval_s


def longest_s(n: int, settings: MembershipSettings) -> float:
    """Return the suspicion timeout with a single accuser, in seconds."""
    return settings.suspicion_max_mult * shortest_s(n, settings)


def confirmations_wanted(n: int, settings: MembershipSettings) -> int:
    """Return the number of confirming peers, in addition to the accuser, with which the timeout is
    the shortest. Return 0 if there are not enough peers."""
    wanted = settings.suspicion_mult - 2
    return wanted if 0 < wanted <= n - 2 else 0


def timeout_s(confirmers: int, n: int, settings: MembershipSettings) -> float:
    """Return the suspicion timeout in seconds. Without confirmers it is the longest timeout. Each
    confirmer shortens the timeout, down to the shortest timeout. The first confirmer shortens it
    most."""
    shortest, wanted = shortest_s(n, settings), confirmations_wanted(n, settings)
    if wanted == 0:
        return shortest
    longest = longest_s(n, settings)
    return max(shortest, longest - (longest - shortest) * log(confirmers + 1) / log(wanted + 1))


@dataclass(slots=True)
class Suspicion:
    """Local record of the accusations of one member."""

    since: float
    # distinct accusers, in order of arrival
    accusers: dict[PeerId, None] = field(default_factory=dict)
    own: bool = False  # Whether a local probe has failed, and no later local probe was successful.
    # Whether the member has replied to a local ping that was sent after ``since``.
    answered_since: bool = False
    # Whether the shortest timeout is used, for example because no process listens at the address.
    hurried: bool = False
    expired: bool = False  # Whether the timeout has passed, but the evidence was not sufficient.
    token: Token | None = None

    def begin_again(self, now: float) -> None:
        """Restart the suspicion timeout at ``now``."""
        self.since, self.expired = now, False

    def deadline(self, n: int, settings: MembershipSettings) -> float:
        confirmers = len(self.accusers) - 1
        return self.since + (
            shortest_s(n, settings) if self.hurried else timeout_s(confirmers, n, settings)
        )

    @property
    def proven(self) -> bool:
        """Whether the evidence is sufficient for a death: a failed local probe or two accusers, and
        no reply to a later local ping."""
        return not self.answered_since and (self.own or len(self.accusers) >= 2)
