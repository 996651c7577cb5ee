"""Who comes back to a round, by way of another branch, is bound by what it promised,
took and made there."""

from __future__ import annotations

import numpy as np

from gossip.core.events import Payload
from gossip.core.messages import Commit
from gossip.core.rounds.attempt_locks import AttemptLocks
from gossip.core.rounds.shard import ShardRound
from gossip.core.settings import LOCKED_ROUNDS

HERE, THERE = b"here", b"there"
PAYLOAD = Payload(np.zeros(2, np.float32), 8, True, b"d" * 16)


def shards(*attempts: int) -> list[ShardRound]:
    return [ShardRound(index, (0, 1, 2), attempt) for index, attempt in enumerate(attempts)]


def commit(shard: int) -> Commit:
    return Commit(b"lineage", 5, shard, 0, 0, 1, HERE, PAYLOAD.digest, (), (), (0, 1, 2), None, "")


def test_attempts_that_were_moved_on_from_are_not_gone_back_to() -> None:
    promises = AttemptLocks()
    promises.keep(5, HERE, shards(2, 0))
    assert promises.recall(5, HERE, shards(0, 0)) == [2, 0]
    assert promises.recall(5, THERE, shards(0, 0)) == [0, 0]


def test_a_round_that_was_finished_binds_as_well_and_its_maker_to_the_next_attempt() -> None:
    promises, done = AttemptLocks(), shards(1, 3)
    done[0].record_commit(commit(0), PAYLOAD, made_here=False)
    done[1].record_commit(commit(1), PAYLOAD, made_here=True)
    promises.keep_finished(5, HERE, done)
    assert promises.recall(5, HERE, shards(0, 0)) == [1, 4]


def test_what_was_passed_over_on_words_is_kept_with_the_attempts() -> None:
    left, done = shards(0, 7), shards(9)
    left[1].claims.skipped, done[0].claims.skipped = 5, 8
    promises = AttemptLocks()
    promises.keep(5, HERE, left)
    promises.keep_finished(6, HERE, done)
    for round_id, parent, jumped in ((5, HERE, [0, 5]), (6, HERE, [8, 0]), (5, THERE, [0, 0])):
        back = shards(0, 0)
        promises.recall(round_id, parent, back)
        assert [shard.claims.skipped for shard in back] == jumped


def test_a_commit_that_was_held_is_held_again_in_that_very_round() -> None:
    promises, left = AttemptLocks(), shards(0, 1)
    left[1].record_commit(commit(1), PAYLOAD, made_here=True)
    promises.keep(5, HERE, left)
    promises.keep(5, THERE, shards(0, 0))
    elsewhere, back = shards(0, 0), shards(0, 0)
    promises.recall(5, THERE, elsewhere)
    assert [shard.commit for shard in elsewhere] == [None, None]
    promises.recall(5, HERE, back)
    assert back[0].commit is None
    assert (back[1].commit, back[1].payload, back[1].made_here) == (commit(1), PAYLOAD, True)


def test_payloads_of_rounds_long_past_are_let_go() -> None:
    promises, left = AttemptLocks(), shards(0)
    left[0].record_commit(commit(0), PAYLOAD, made_here=False)
    promises.keep(5, HERE, left)
    promises.recall(6 + LOCKED_ROUNDS, THERE, shards(0))
    assert promises._held is None
    for round_id in range(100):
        promises.keep_finished(round_id, HERE, shards(0))
    assert len(promises._attempts) <= LOCKED_ROUNDS
