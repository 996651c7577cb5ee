"""The hash chain of commits."""

import dataclasses
import math
import struct

import pytest

from gossip.core import HISTORY_ROUNDS
from gossip.core.ledger.chain import Lineage, chain_hash, genesis, header_bytes
from gossip.core.messages import Accusation, AuditVote, Collected, Commit, Contribution, Rejection

RUN, LINEAGE = b"run-0001", b"line-001"


def commit(
    round_id: int = 0, shard: int = 0, parent: bytes | None = None, **changes: object
) -> Commit:
    plain = Commit(
        lineage=LINEAGE,
        round_id=round_id,
        shard=shard,
        attempt=0,
        made_at=0,
        server=2,
        parent=genesis(RUN, LINEAGE) if parent is None else parent,
        digest=b"d" * 16,
        contributors=(Contribution(0, 32, 0.5, 1.0), Contribution(1, 32, 0.5, 1.25)),
        rejected=(Rejection(3, "non_finite"),),
        roster=(0, 1, 2, 3),
        loss=0.7,
        reason="",
    )
    return dataclasses.replace(plain, **changes)


OTHERS = {
    "lineage": b"line-002",
    "round_id": 1,
    "shard": 1,
    "made_at": 1,
    "server": 3,
    "parent": b"p" * 16,
    "digest": b"e" * 16,
    "contributors": (Contribution(0, 32, 0.5, 1.0), Contribution(1, 32, 0.5, 1.5)),
    "rejected": (Rejection(3, "wrong_size"),),
    "roster": (0, 1, 2),
    "loss": None,
    "reason": "no quorum",
    "decision": (0.5, 0.5),
    "measured": (b"m" * 16,),
    "rates": (0.1,),
    "accusations": (Accusation(3, 0),),
    "collected": (Collected(1, b"given"),),
    "replica": b"r" * 18,
    "diverged": (1,),
    "kind": 1,
    "length": 0.5,
    "audits": (AuditVote(1, 0, 2, 5, None),),
}


@pytest.mark.parametrize(
    "field", [field.name for field in dataclasses.fields(Commit) if field.name != "attempt"]
)
def test_every_field_but_the_attempt_changes_the_header(field: str) -> None:
    before = {"replica": OTHERS["replica"]} if field == "diverged" else {}
    assert header_bytes(commit(**{**before, field: OTHERS[field]})) != header_bytes(
        commit(**before)
    )


def test_every_rate_changes_the_header() -> None:
    headers = {
        header_bytes(commit(rates=rates))
        for rates in ((), (0.1,), (0.2,), (0.1, 0.9), (0.1, 0.8), (0.9, 0.1))
    }
    assert len(headers) == 6


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Contribution)])
def test_every_field_of_a_contribution_changes_the_header(field: str) -> None:
    value = (7,) if field == "micro_batches" else 7
    other = dataclasses.replace(commit().contributors[0], **{field: value})
    assert header_bytes(commit(contributors=(other, commit().contributors[1]))) != header_bytes(
        commit()
    )


def test_a_commit_handed_on_under_a_later_attempt_keeps_its_place_in_the_chain() -> None:
    assert chain_hash(b"", [commit(attempt=5)]) == chain_hash(b"", [commit()])


def test_losses_that_are_no_number_hash_alike_whatever_their_bits() -> None:
    (odd,) = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))
    assert math.isnan(odd)
    assert (
        header_bytes(commit(loss=odd))
        == header_bytes(commit(loss=math.nan))
        != header_bytes(commit(loss=0.0))
    )


def test_fields_of_varying_length_cannot_run_into_each_other() -> None:
    one = commit(rejected=(Rejection(3, "ab"), Rejection(4, "c")))
    other = commit(rejected=(Rejection(3, "a"), Rejection(4, "bc")))
    assert header_bytes(one) != header_bytes(other)


def test_shards_hash_in_their_order() -> None:
    first, second = commit(shard=0), commit(shard=1)
    assert chain_hash(b"p", [first, second]) != chain_hash(b"p", [second, first])
    assert chain_hash(b"p", [first, second]) != chain_hash(b"p", [first])


def test_runs_and_lineages_begin_apart() -> None:
    assert len({genesis(b"ab", b"c"), genesis(b"a", b"bc"), genesis(b"ab", b"d")}) == 3


def test_two_peers_that_append_the_same_commits_have_the_same_head() -> None:
    ours, theirs = Lineage(RUN, LINEAGE), Lineage(RUN, LINEAGE)
    for round_id in range(5):
        shards = [commit(round_id, shard, parent=ours.head) for shard in range(2)]
        ours.append(shards)
        theirs.append([dataclasses.replace(made, attempt=3) for made in shards])
    assert ours.head == theirs.head
    assert ours.next_round == 5


def test_another_digest_is_a_fork_from_then_on() -> None:
    ours, theirs = Lineage(RUN, LINEAGE), Lineage(RUN, LINEAGE)
    ours.append([commit(0)])
    theirs.append([commit(0, digest=b"e" * 16)])
    assert theirs.stance(0, genesis(RUN, LINEAGE)) == "same"
    assert theirs.stance(1, ours.head) == "fork"
    assert theirs.stance(2, ours.head) == "unknown"


def test_who_begins_with_other_weights_is_on_another_branch_from_the_first_round_on() -> None:
    ours, same, theirs = (Lineage(RUN, LINEAGE) for _ in range(3))
    for lineage, weights in ((ours, b"weights"), (same, b"weights"), (theirs, b"others")):
        lineage.begin(weights)
    assert ours.stance(0, same.head) == "same"
    assert ours.stance(0, theirs.head) == "fork"
    not_begun = Lineage(RUN, LINEAGE)
    assert ours.stance(0, not_begun.head) == "unknown", "it may still come to any branch"
    assert not_begun.stance(0, ours.head) == "unknown"
    ours.append([commit(0, parent=ours.head)])
    with pytest.raises(AssertionError, match="round 0, not 1"):
        ours.begin(b"others")


def test_a_commit_that_does_not_follow_is_our_bug() -> None:
    ours = Lineage(RUN, LINEAGE)
    for wrong in (
        commit(1),
        commit(0, shard=1),
        commit(0, parent=b"x" * 16),
        commit(0, lineage=b"line-002"),
    ):
        with pytest.raises(AssertionError):
            ours.append([wrong])
    assert ours.next_round == 0


def test_a_restart_goes_on_from_the_offer() -> None:
    ours, returned = Lineage(RUN, LINEAGE), Lineage(RUN, LINEAGE)
    returned.append([commit(0, digest=b"e" * 16)])
    returned.append([commit(1, parent=returned.head)])
    for round_id in range(3):
        ours.append([commit(round_id, parent=ours.head)])
    returned.restart(3, ours.head)
    after = [commit(3, parent=ours.head)]
    assert returned.append(after) == ours.append(after)
    assert returned.at(2) == ours.at(2)
    assert returned.at(1) is None


def test_the_history_is_bounded() -> None:
    ours = Lineage(RUN, LINEAGE)
    for round_id in range(HISTORY_ROUNDS + 10):
        ours.append([commit(round_id, parent=ours.head)])
    assert ours.at(9) is None
    assert ours.at(10) is not None
    assert ours.at(HISTORY_ROUNDS + 9) == ours.head


def test_how_long_an_update_took_is_part_of_what_is_agreed() -> None:
    one, other = (
        commit(contributors=(Contribution(0, 32, 1.0, 1.0, took_us),))
        for took_us in (100_000, 100_001)
    )
    assert header_bytes(one) != header_bytes(other)
