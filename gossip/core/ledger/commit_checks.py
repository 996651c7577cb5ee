"""Checks of the fields of a commit, which a Byzantine peer may have forged."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from gossip.core.events import Payload
from gossip.core.messages import (
    ACCUSATIONS_MAX,
    AUDIT_VOTES_MAX,
    COLLECTED_BYTES_MAX,
    DIGEST_BYTES,
    Commit,
    Contribution,
    PeerId,
)
from gossip.core.settings import FAR_MAX, CoreSettings

from .rates import are_sound

REASONS = {"non_finite", "wrong_size", "quarantined", "skipped"}
"""Valid values of ``Rejection.reason``."""


def is_sound(
    commit: Commit, payload: Payload | None, peers: tuple[PeerId, ...], settings: CoreSettings
) -> bool:
    """Whether all fields of a commit are valid, and its payload is finite and has the digest of the
    commit. ``peers`` is the present roster."""
    roster, pipeline = frozenset(peers), settings.pipeline
    if not (
        may_have_contributed(commit, roster)
        and (not commit.accusations or _may_accuse(commit, settings))
        and (not commit.collected or _may_have_collected(commit, roster, settings))
        and (not commit.audits or _may_have_audited(commit, settings))
        and (not commit.rates or are_sound(commit.rates))
        and 0.0 <= commit.length < inf
        and (not (commit.replica or commit.diverged) or _may_have_compared(commit, roster))
    ):
        return False
    if pipeline is not None and commit.digest:
        whole = not commit.rejected
        if not _is_once(commit.contributors, pipeline.micro_batches, whole):
            return False
    return commit.digest == (payload.digest if payload is not None else b"") and (
        payload is None or payload.finite
    )


def may_have_contributed(commit: Commit, roster: frozenset[PeerId]) -> bool:
    """Whether the contributors and the rejected peers are valid: members of the present roster,
    without duplicates, ascending, with samples, and with an outlyingness that a rule can return."""
    contributors = [c.peer for c in commit.contributors]
    rejected = [r.peer for r in commit.rejected]
    named = set(contributors) | set(rejected)
    once = len(named) == len(contributors) + len(rejected)
    ascending = contributors == sorted(contributors) and rejected == sorted(rejected)
    with_samples = min([c.samples for c in commit.contributors], default=1) > 0
    measures = [c.outlyingness for c in commit.contributors]
    measures += [r.outlyingness for r in commit.rejected]
    return (
        once
        and ascending
        and with_samples
        and not [far for far in measures if not 0.0 <= far <= FAR_MAX]
        and named <= roster
        and (not rejected or {each.reason for each in commit.rejected} <= REASONS)
        and bool(contributors) <= bool(commit.digest)
    )


def _may_have_compared(commit: Commit, roster: frozenset[PeerId]) -> bool:
    """Whether the diverged peers are valid: members of the present roster, without duplicates,
    ascending, and only in a commit of the first shard that contains the replica digests of most
    peers."""
    named = list(commit.diverged)
    ascending = named == sorted(set(named)) and set(named) <= roster
    return ascending and bool(commit.replica) and not commit.shard


def _may_have_collected(commit: Commit, roster: frozenset[PeerId], settings: CoreSettings) -> bool:
    """Whether the values of a collective operation are valid: from members of the present roster,
    at most one each, ascending, and within the size limit. If the values make the round a
    collective operation, there must be no aggregate."""
    given = [each.peer for each in commit.collected]
    ascending = given == sorted(set(given)) and set(given) <= roster
    fits = sum([len(each.data) for each in commit.collected]) <= COLLECTED_BYTES_MAX
    too_few = settings.callers_too_few(len(roster))
    instead = len(given) <= too_few or not (commit.digest or commit.kind)
    return ascending and fits and instead and not (given and commit.shard)


def _may_accuse(commit: Commit, settings: CoreSettings) -> bool:
    """Whether the accusations are valid: they accuse members of the run, refer to this round or
    earlier rounds, have no duplicates, are ascending, and are at most ``ACCUSATIONS_MAX``."""
    named = [
        (
            accusation.peer,
            accusation.round_id,
            accusation.silent,
            accusation.turn,
            accusation.content,
        )
        for accusation in commit.accusations
    ]
    known = all(settings.may_be(peer) and at <= commit.round_id for peer, at, *_ in named)
    sizes = (0, 0), (DIGEST_BYTES, DIGEST_BYTES)
    known = known and all(
        (len(c.turn), len(c.content)) in sizes and not (c.silent and c.turn)
        for c in commit.accusations
    )
    return known and len(named) <= ACCUSATIONS_MAX and named == sorted(set(named))


def _may_have_audited(commit: Commit, settings: CoreSettings) -> bool:
    """Whether the audit votes are valid: they refer to members of the stage, possible neighbours,
    and this round or earlier rounds, have no duplicates, are ascending, and are at most
    ``AUDIT_VOTES_MAX``."""
    pipeline = settings.pipeline
    if pipeline is None or not pipeline.audit or commit.shard:
        return False
    stage = pipeline.stage_of(settings.peers[0])
    assert stage is not None, "a stage has members of the plan"
    for vote in commit.audits:
        sides = ((vote.before, stage - 1), (vote.behind, stage + 1))
        known = all(side is None or pipeline.stage_of(side) == at for side, at in sides)
        in_time = vote.round_id <= commit.round_id
        if not (known and in_time and settings.may_be(vote.peer)):
            return False
        if vote.micro_batch >= pipeline.micro_batches:
            return False
    answers = [(vote.peer, vote.round_id, vote.micro_batch) for vote in commit.audits]
    return len(answers) <= AUDIT_VOTES_MAX and answers == sorted(set(answers))


def _is_once(contributors: Iterable[Contribution], micro_batches: int, whole: bool) -> bool:
    """Whether each micro-batch is in at most one contribution. If ``whole`` is True, each
    micro-batch must be in exactly one contribution."""
    named = [b for each in contributors for b in each.micro_batches]
    once = len(set(named)) == len(named) and all(b < micro_batches for b in named)
    return once and (not whole or len(named) == micro_batches)
