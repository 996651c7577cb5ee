"""How long a suspect has, given how many peers there are and who confirms. Formulas: memberlist
(docs/design_notes.md N3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, log10

from gossip.core.events import Token
from gossip.core.messages import PeerId
from gossip.core.settings import MembershipSettings


def shortest_s(n: int, settings: MembershipSettings) -> float:
    """Time to refute once enough others confirm: grows with log n,
    as rumours take longer to reach everybody."""
    return settings.suspicion_mult * max(1.0, log10(max(1, n))) * settings.probe_interval_s


def longest_s(n: int, settings: MembershipSettings) -> float:
    """Time to refute while a single peer accuses."""
    return settings.suspicion_max_mult * shortest_s(n, settings)


def confirmations_wanted(n: int, settings: MembershipSettings) -> int:
    """How many peers beside the accuser bring the time down to the shortest;
    0 where so many cannot be had."""
    wanted = settings.suspicion_mult - 2
    return wanted if 0 < wanted <= n - 2 else 0


def timeout_s(confirmers: int, n: int, settings: MembershipSettings) -> float:
    """Return the time to refute, in seconds: from the longest, with no confirmer, down to the
    shortest. The first confirmer counts most."""
    shortest, wanted = shortest_s(n, settings), confirmations_wanted(n, settings)
    if wanted == 0:
        return shortest
    longest = longest_s(n, settings)
    return max(shortest, longest - (longest - shortest) * log(confirmers + 1) / log(wanted + 1))


@dataclass(slots=True)
class Suspicion:
    """The case against one member, as this peer knows it."""

    since: float
    # distinct, in the order they were heard
    accusers: dict[PeerId, None] = field(default_factory=dict)
    own: bool = False  # a probe of ours failed after it last answered us
    answered_since: bool = False  # it answered a ping that we sent after this began
    hurried: bool = False  # nothing listens at its address: no more than the shortest time
    expired: bool = False  # the time is up, only the evidence is missing
    token: Token | None = None

    def begin_again(self, now: float) -> None:
        """The accused has all its time again."""
        self.since, self.expired = now, False

    def deadline(self, n: int, settings: MembershipSettings) -> float:
        confirmers = len(self.accusers) - 1
        return self.since + (
            shortest_s(n, settings) if self.hurried else timeout_s(confirmers, n, settings)
        )

    @property
    def proven(self) -> bool:
        """Enough for a death: a failed probe of ours or two accusers,
        and no answer to us in between."""
        return not self.answered_since and (self.own or len(self.accusers) >= 2)
