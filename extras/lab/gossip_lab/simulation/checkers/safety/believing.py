"""Reasons for which a peer may reject a sound result, and for which it must reject one while at
most f peers have sent it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossip.core import Commit, Inspection, Payload, PeerId, ResultSimilarity, RollingInspection


def is_doubtful(
    core: Inspection, rounds: RollingInspection, commit: Commit, similarity: ResultSimilarity | None
) -> bool:
    """Whether a peer may doubt the result, because of its direction, length, learning rates, or
    next roster."""
    far = (
        similarity is not None
        and not similarity.length <= core.settings.results.longer * similarity.own
    )
    if far or _is_opposed(core, rounds, commit, similarity) or _recoils(core, similarity):
        return True
    if not _speaks_for_all(core, rounds, commit):
        return False
    if _steps(rounds, commit) != "as ever":
        return True
    # A peer that catches up cannot judge the rosters of the rounds that it has missed.
    past = rounds.is_passed(commit.round_id)
    return not past and bool(_left_out(core, rounds, commit) or _put_in(core, rounds, commit))


def must_be_refused(
    core: Inspection, rounds: RollingInspection, commit: Commit, similarity: ResultSimilarity | None
) -> str:
    """Return the reason why the result must be rejected, as a clause after "although"; "" if it may
    be accepted. A result that is too long may also be rejected."""
    if _is_opposed(core, rounds, commit, similarity):
        return "it opposes its own update"
    if not _speaks_for_all(core, rounds, commit):
        return ""
    if _steps(rounds, commit) == "far" and len(rounds.roster) >= 2 * core.settings.f + 2:
        return f"it uses the rates {commit.rates}, far from the peer's own"
    left_out, put_in = _left_out(core, rounds, commit), _put_in(core, rounds, commit)
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
    """Whether the result points against the local update, if that is more than noise."""
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


def _recoils(core: Inspection, similarity: ResultSimilarity | None) -> bool:
    """Whether the result points back along the local update by more than is allowed for a result
    that is not opposed. This test applies to a local update of any size."""
    limits = core.settings.results
    return (
        similarity is not None
        and similarity.product < limits.opposed * limits.longer * similarity.own**2
    )


def _mean_square(parts: Sequence[Payload]) -> float:
    """Return the mean square of all numbers in ``parts``."""
    numbers = np.concatenate([part.data for part in parts]).astype(np.float64)
    return float(np.mean(numbers * numbers))


def _speaks_for_all(core: Inspection, rounds: RollingInspection, commit: Commit) -> bool:
    return bool(core.settings.f) and commit.shard == 0 and core.local in rounds.roster


def _steps(rounds: RollingInspection, commit: Commit) -> str:
    """Return a comparison of the rates of the commit with those that this peer has: ``as ever``,
    ``others``, or ``far`` if all known ones are ten times off."""
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


def _left_out(core: Inspection, rounds: RollingInspection, commit: Commit) -> list[PeerId]:
    """Return the peers that the next roster lacks although this peer can reach them, itself
    included."""
    missing = [
        peer
        for peer in rounds.roster
        if peer not in commit.roster and not rounds.departures.leaves(peer)
    ]
    return [peer for peer in missing if peer == core.local or not rounds.skip_reason(peer)]


def _put_in(core: Inspection, rounds: RollingInspection, commit: Commit) -> list[PeerId]:
    """Return the peers that the next roster adds although they are dead, or unknown, in this peer's
    view."""
    members = core.membership.members
    come = [peer for peer in commit.roster if peer not in rounds.roster]
    return [
        peer for peer in come if peer not in members or members[peer].gone or not members[peer].met
    ]
