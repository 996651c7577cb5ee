"""Reasons why a peer may reject a well-formed result, and reasons why it must reject a result that
at most f peers have sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossip.core import Commit, Payload, PeerId, ResultSimilarity
from gossip_lab.inspection import Inspection, RollingInspection


def is_doubtful(
    core: Inspection, rounds: RollingInspection, commit: Commit, similarity: ResultSimilarity | None
) -> bool:
    """Whether the peer may reject the result because of its direction, length, learning rates or
    next roster."""
    far = (
        similarity is not None
        and not similarity.length <= core.settings.results.longer * similarity.own
    )
    if far or _is_opposed(core, rounds, commit, similarity) or _is_reversed(core, similarity):
        return True
    if not _has_global_fields(core, rounds, commit):
        return False
    if _compare_rates(rounds, commit) != "as ever":
        return True
    # A peer that replays missed rounds cannot judge their rosters.
    past = rounds.is_passed(commit.round_id)
    return not past and bool(
        _omitted_peers(core, rounds, commit) or _unknown_peers(core, rounds, commit)
    )


def rejection_reason(
    core: Inspection, rounds: RollingInspection, commit: Commit, similarity: ResultSimilarity | None
) -> str:
    """Return the reason why the peer must reject the result, as a clause after "although". Return
    "" if the peer may accept it; it may also reject it if it is too long."""
    if _is_opposed(core, rounds, commit, similarity):
        return "it opposes its own update"
    if not _has_global_fields(core, rounds, commit):
        return ""
    if _compare_rates(rounds, commit) == "far" and len(rounds.roster) >= 2 * core.settings.f + 2:
        return f"it uses the rates {commit.rates}, far from the peer's own"
    left_out = _omitted_peers(core, rounds, commit)
    put_in = _unknown_peers(core, rounds, commit)
    if len(left_out) + len(put_in) > core.settings.f and not rounds.is_passed(commit.round_id):
        return (
            f"the next roster leaves out {left_out}, which are present, and adds {put_in}, which "
            "are not"
        )
    return ""


def _is_opposed(
    core: Inspection,
    rounds: RollingInspection,
    commit: Commit,
    similarity: ResultSimilarity | None,
) -> bool:
    """Whether the result points in a direction opposite to the local update. An update that is too
    small to be more than noise is not compared."""
    limits = core.settings.results
    if similarity is None or not (
        similarity.product < limits.opposed * similarity.length * similarity.own
    ):
        return False
    parts = rounds.own.payloads if rounds.own is not None else ()
    if len(parts) < 2:
        return True
    here = _mean_square(parts[commit.shard : commit.shard + 1])
    return not here < limits.faint**2 * _mean_square(parts)


def _is_reversed(core: Inspection, similarity: ResultSimilarity | None) -> bool:
    """Whether the component of the result against the local update is larger than that of any
    acceptable result. This test also applies to small local updates."""
    limits = core.settings.results
    return (
        similarity is not None
        and similarity.product < limits.opposed * limits.longer * similarity.own**2
    )


def _mean_square(parts: Sequence[Payload]) -> float:
    """Return the mean square of all elements in ``parts``."""
    numbers = np.concatenate([part.data for part in parts]).astype(np.float64)
    return float(np.mean(numbers * numbers))


def _has_global_fields(core: Inspection, rounds: RollingInspection, commit: Commit) -> bool:
    return bool(core.settings.f) and commit.shard == 0 and core.local in rounds.roster


def _compare_rates(rounds: RollingInspection, commit: Commit) -> str:
    """Compare the learning rates of the commit with the rates that this peer knows. Return ``as
    ever`` if they are equal, ``far`` if all known rates differ by a large factor, and ``others``
    otherwise."""
    own = rounds.own.rates if rounds.own is not None else ()
    known = [rates for rates in (own, rounds.replicated.rates) if rates]
    if not commit.digest or not known or all(rates == commit.rates for rates in known):
        return "as ever"
    same = [rates for rates in known if len(rates) == len(commit.rates)]
    off = [
        max(abs(new), abs(old)) > 200.0 * min(abs(new), abs(old))
        for rates in same
        for new, old in zip(commit.rates, rates, strict=True)
    ]
    return "far" if all(off) else "others"


def _omitted_peers(core: Inspection, rounds: RollingInspection, commit: Commit) -> list[PeerId]:
    """Return the peers that the next roster leaves out although this peer does not skip them;
    possibly this peer itself."""
    missing = [
        peer
        for peer in rounds.roster
        if peer not in commit.roster and not rounds.departures.leaves(peer)
    ]
    return [peer for peer in missing if peer == core.local or not rounds.skip_reason(peer)]


def _unknown_peers(core: Inspection, rounds: RollingInspection, commit: Commit) -> list[PeerId]:
    """Return the peers that the next roster adds although this peer does not know them, or knows
    them as dead or left."""
    members = core.membership.members
    come = [peer for peer in commit.roster if peer not in rounds.roster]
    return [
        peer for peer in come if peer not in members or members[peer].gone or not members[peer].met
    ]
