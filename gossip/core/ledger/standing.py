"""Standing of one peer: its trust, its phase, the evidence against it, and the reasons as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from gossip.core.messages import PeerId
from gossip.core.settings import FAR_MAX, TRUST_ROUNDS

from .accused_rounds import ACCUSED, AccusedRounds
from .unpacking import COUNT, Schema, number, one_of, row, rows

NO_FAR = ("non_finite", "wrong_size")
"""Reasons for rejection that have no outlyingness."""

Observed: TypeAlias = float | tuple[str, float]
"""Outlyingness of an update, together with the name of the evidence against it, if any."""

# Text for each kind of evidence against an update. It follows "3 of the last 20 updates". A
# rejection for any other reason is no evidence.
WORDS = {
    "outlying": "were outliers",
    "non_finite": "were not finite",
    "wrong_size": "had the wrong size",
}


@dataclass(slots=True)
class PeerStanding:
    # The trust in a peer is the minimum of ``score`` and ``served``.
    score: float = 1.0  # Score computed from the updates of the peer.
    served: float = 1.0  # Score computed from the results of the peer as a server.
    suspected: bool = False
    rounds_left: int = 0  # Remaining rounds of the quarantine or the parole.
    phase: Literal["normal", "quarantined", "parole"] = "normal"
    recent: tuple[Observed, ...] = ()  # Evidence from the recent updates, oldest first.
    # Number of results that more than f peers have rejected since the last quarantine.
    refused: int = 0
    twice: int = 0  # Number of attempts with two proven results since the last quarantine.
    audited: int = 0  # Number of convictions by audits since the last quarantine.
    accused: AccusedRounds = ()  # Rounds in which other peers have rejected a result of this peer.

    @property
    def trust(self) -> float:
        return min(self.score, self.served)

    @property
    def is_proven(self) -> bool:
        """Whether there is proof that the peer is Byzantine."""
        return bool(self.twice or self.audited)

    @property
    def evidence(self) -> list[tuple[str, float]]:
        """Evidence from the recent updates, oldest first. Each entry is the name of the evidence
        against the update, or "", and the outlyingness of the update."""
        return [item if isinstance(item, tuple) else ("", item) for item in self.recent]

    @property
    def distances(self) -> list[float]:
        """Outlyingness of the recent updates, oldest first."""
        return [far for name, far in self.evidence if name not in NO_FAR]

    @property
    def typical(self) -> float:
        """Median outlyingness of the recent updates that were outliers; 0.0 without any."""
        far = sorted([value for name, value in self.evidence if name == "outlying"])
        return far[len(far) // 2] if far else 0.0

    def reasons(self, f: int) -> Iterator[str]:
        """Yield the reasons for the score. The most frequent evidence against updates comes
        first."""
        names, total = [name for name, _ in self.evidence], len(self.recent)
        found = [name for name in WORDS if name in names]
        for name in sorted(found, key=lambda name: (-names.count(name), name)):
            words = (
                f"{names.count(name)} of the last {total} updates {WORDS[name]}"
                if total > 1
                else f"the update {_singular(name)}"
            )
            far = f" ({_times(self.typical)} the median distance)" if name == "outlying" else ""
            yield words + far
        if self.refused:
            results = f"{self.refused} of its results were"
            results = results if self.refused > 1 else "a result of it was"
            yield f"{results} rejected by more than {f} peers"
        if self.twice:
            yield f"it sent different results to different peers in {self.twice} of its turns"
        if self.audited:
            yield "its results for micro-batches differ from those of other members of its stage"


def _observed(packed: Any) -> Any:
    """Schema of ``Observed``."""
    is_evidence = isinstance(packed, tuple | list)
    return row(one_of(*WORDS), _FAR)(packed) if is_evidence else _FAR(packed)


_FAR = number(FAR_MAX)
_FIELDS: dict[str, Schema] = {
    "score": number(),
    "suspected": one_of(False, True),
    "phase": one_of("normal", "quarantined", "parole"),
    "rounds_left": COUNT,
    "recent": rows(_observed, most=TRUST_ROUNDS),
    "served": number(),
    "refused": COUNT,
    "twice": COUNT,
    "accused": ACCUSED,
    "audited": COUNT,
}
"""Packed fields of ``PeerStanding``. The last field is packed only if it is not 0."""
PACKED_FIELDS = attrgetter(*_FIELDS)
_PACKED = row(COUNT, *_FIELDS.values())


def unpack_standing(packed: Any) -> tuple[PeerId, PeerStanding]:
    """Return the peer and its standing from a row of ``TrustTable.pack``. Raises ValueError if the
    data is invalid."""
    is_short = isinstance(packed, tuple | list) and len(packed) == len(_FIELDS)
    peer, *values = _PACKED((*packed, 0) if is_short else packed)
    return peer, PeerStanding(**dict(zip(_FIELDS, values, strict=True)))


def _singular(name: str) -> str:
    return WORDS[name].replace("outliers", "an outlier").replace("were ", "was ")


def _times(value: float) -> str:
    return f"{value:.1f} times" if value < 1000 else "over 1000 times"
