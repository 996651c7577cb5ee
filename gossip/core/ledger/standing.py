"""Standing of one peer: its trust, its phase, the evidence against it, and the reasons as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gossip.core.messages import PeerId
from gossip.core.settings import FAR_MAX, TRUST_ROUNDS

from .accused_rounds import AccusedRounds, unpack_accused
from .unpacking import are_counts, are_rows, is_row, is_score

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

    @classmethod
    def unpack(cls, packed: Any) -> PeerStanding:
        """Return the standing from a row of ``TrustTable.pack`` without the peer id. Raises
        ValueError if the data is invalid."""
        score, suspected, phase, rounds_left, recent, served, *counts = packed
        refused, twice, accused, audited = (*counts, 0)[:4]
        if not are_counts((rounds_left, refused, twice, audited)):
            raise ValueError("trust: rounds must be non-negative integers")
        if not (is_score(score) and is_score(served) and isinstance(suspected, bool)):
            raise ValueError(f"trust: invalid scores {score!r} and {served!r}")
        if phase not in ("normal", "quarantined", "parole"):
            raise ValueError(f"trust: invalid phase {phase!r}")
        return cls(
            float(score),
            float(served),
            suspected,
            rounds_left,
            phase,
            _evidence_of(recent),
            refused,
            twice,
            audited,
            unpack_accused(accused),
        )


def unpack_standings(rows: Any) -> dict[PeerId, PeerStanding]:
    """Return the standings from the rows of ``TrustTable.pack``. Raises ValueError if invalid."""
    if not are_rows(rows, 10, 11) or not are_counts([row[0] for row in rows]):
        raise ValueError("trust: expected rows of 10 or 11 fields, which begin with a peer")
    return {row[0]: PeerStanding.unpack(row[1:]) for row in rows}


def _singular(name: str) -> str:
    return WORDS[name].replace("outliers", "an outlier").replace("were ", "was ")


def _times(value: float) -> str:
    return f"{value:.1f} times" if value < 1000 else "over 1000 times"


def _evidence_of(packed: Any) -> tuple[Observed, ...]:
    """Unpack the recent evidence of a peer."""
    if not is_row(packed) or len(packed) > TRUST_ROUNDS:
        raise ValueError("trust: too many recent updates")
    evidence = [item if is_row(item) else ("", item) for item in packed]
    for item in evidence:
        if len(item) != 2 or item[0] not in ("", *WORDS):
            raise ValueError("trust: evidence without a valid name")
        if not isinstance(item[1], int | float) or not 0.0 <= item[1] <= FAR_MAX:
            raise ValueError("trust: evidence without a valid number")
    return tuple([(str(name), float(far)) if name else float(far) for name, far in evidence])
