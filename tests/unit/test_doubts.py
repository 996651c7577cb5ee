"""Which results a receiver does not take, and when it takes them all the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossip.core.events import Contributed, Effect, Payload, Received, Report, ResultSimilarity
from gossip.core.ledger.commit_checks import may_have_contributed
from gossip.core.ledger.replicated_state import ReplicatedState
from gossip.core.messages import (
    ACCUSATIONS_MAX,
    Accusation,
    Commit,
    Contribution,
    Hello,
    Rejection,
    UpdateRequest,
)
from gossip.core.rounds.departures import Departures
from gossip.core.rounds.result_checks import Objection
from gossip.core.rounds.shard import PresentRound, ShardRound
from gossip.core.rounds.validation import ResultValidator
from gossip.core.settings import LENGTH_ROUNDS, CoreSettings
from gossip.topologies.base import Roster
from gossip.vectors.likeness import BLOCK_NUMBERS, similarity_of

BAD_COMMIT = Objection("it is no result of this round", event="bad_commit")
OPPOSED, ALIKE = ResultSimilarity(1.0, 1.0, -0.9), ResultSimilarity(1.0, 1.0, 0.9)


class ResultBench:
    """Peer 1 of n, at attempt 0 of a shard that peer 0 serves."""

    def __init__(self, n: int = 8, f: int = 2) -> None:
        self.shard = ShardRound(0, tuple(range(n)))
        self.handed_on: list[str] = []
        self.closed = 0
        self.agreed = ReplicatedState(CoreSettings(b"r", b"l", 0, tuple(range(n)), f=f))
        self.departures = Departures(8)
        self.skipped: dict[int, str] = {}
        self.unknown: set[int] = set()
        self.passed = False
        quorum = SimpleNamespace(
            local=1,
            present=PresentRound(7, Roster(tuple(range(n))), entered=[self.shard]),
            expected=lambda: [peer for peer in range(n) if peer not in self.skipped],
            required=lambda: n // 2 + 1,
            departures=self.departures,
            skip_reason=lambda peer: self.skipped.get(peer, ""),
        )
        server: Any = SimpleNamespace(local=1, maybe_close=self.maybe_close, quorum=quorum)
        lag_detector: Any = SimpleNamespace(
            is_passed=lambda round_id: self.passed, on_refusal=lambda: None, forked={}
        )
        view: Any = SimpleNamespace(is_gone=self.is_gone, met=lambda: {*range(16)} - self.unknown)
        self.trust = self.agreed.trust
        self.result_validator = ResultValidator(
            self.agreed, lag_detector, server, view, self.advance
        )

    def is_gone(self, peer: int) -> bool:
        return self.skipped.get(peer) == "dead"

    def maybe_close(self, shard: ShardRound, now: float) -> list[Effect]:
        self.closed += 1
        return []

    def advance(self, shard: ShardRound, reason: str, now: float) -> list[Effect]:
        shard.attempt += 1
        self.handed_on.append(reason)
        return []

    def judge(
        self,
        sender: int,
        similarity: ResultSimilarity | None,
        maker: int = 0,
        round_id: int = 0,
        samples: int = 8,
        own: int = 0,
    ) -> list[Effect] | None:
        """``samples``: of the result, as its server says; ``own``:
        that this peer has given to it."""
        commit = replace(
            self.commit(samples), round_id=round_id, attempt=self.shard.attempt, server=maker
        )
        return self.judge_commit(sender, commit, similarity, Contributed(round_id, own, ()))

    def judge_commit(
        self,
        sender: int,
        commit: Commit,
        similarity: ResultSimilarity | None,
        own: Contributed | None = None,
    ) -> list[Effect] | None:
        handed = Received(sender, 1, commit, similarity=similarity)
        against = self.result_validator.judge(handed, self.shard, commit, own)
        if against is None:
            return None
        return self.result_validator.refuse(sender, self.shard, commit, against, 1.0)

    def commit(self, samples: int = 8, **claims: Any) -> Commit:
        of, everybody = (Contribution(4, samples, 1.0, 1.0),), self.agreed.roster.peers
        return replace(
            Commit(b"l", 0, 0, 0, 0, 0, b"", b"d" * 16, of, (), everybody, None, ""), **claims
        )

    def why(self, own: tuple[float, ...] = (), **claims: Any) -> str:
        """Why a result of peer 0 with such claims is doubted by this one,
        which would step with ``own``."""
        return self.result_validator.result_checks.objection(
            self.commit(**claims), Contributed(0, 1, (), rates=own)
        ).why


@pytest.mark.parametrize(
    ("sent", "named", "doubted"),
    [
        (b"", True, True),  # it has sent no digests
        (b"most", True, True),  # it has sent those that most have
        (b"other", True, False),
        (b"most", False, False),
    ],
)
def test_a_result_that_names_this_replica_as_different_without_reason_is_doubted(
    sent: bytes, named: bool, doubted: bool
) -> None:
    desk = ResultBench()
    local = desk.result_validator.result_checks.quorum.local
    commit = desk.commit(replica=b"most", diverged=(local,) if named else (0,))
    own = Contributed(0, 1, (), replica=sent)
    assert bool(desk.result_validator.result_checks.objection(commit, own).why) == doubted


@pytest.mark.parametrize(
    ("skipped", "reason", "doubted"),
    [(False, "skipped", True), (True, "skipped", False), (False, "non_finite", False)],
)
def test_a_result_that_says_falsely_that_this_peer_skipped_its_samples_is_doubted(
    skipped: bool, reason: str, doubted: bool
) -> None:
    """Its samples would not come again."""
    desk = ResultBench()
    local = desk.result_validator.result_checks.quorum.local
    commit = desk.commit(contributors=(), rejected=(Rejection(local, reason),))
    own = Contributed(0, 0 if skipped else 1, (), skipped=skipped)
    assert bool(desk.result_validator.result_checks.objection(commit, own).why) == doubted


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize(("kind", "doubted"), [(2, False), (5, True), (0, True)])
def test_a_result_for_another_kind_of_step_than_the_own_one_is_doubted(
    kind: int, doubted: bool, counted: bool
) -> None:
    """It would step other optimizers, or use up no samples, and nobody could compare it."""
    desk = ResultBench()
    local = desk.result_validator.result_checks.quorum.local
    who = local if counted else local + 1
    commit = desk.commit(contributors=(Contribution(who, 1, 1.0, 1.0),), kind=kind)
    objection = desk.result_validator.result_checks.objection(commit, Contributed(0, 1, (), kind=2))
    assert bool(objection.why) == doubted
    assert not doubted or objection.is_evidence == counted
    elsewhere = Contributed(0, 0, (), kind=2)  # it waits for its own kind
    assert not desk.result_validator.result_checks.objection(commit, elsewhere).why


def test_a_rejection_for_a_reason_that_no_peer_of_ours_gives_is_not_sound() -> None:
    desk = ResultBench()
    roster = frozenset(desk.agreed.roster.peers)
    for reason, is_sound in (("non_finite", True), ("skipped", True), ("{bad}", False)):
        assert (
            may_have_contributed(desk.commit(rejected=(Rejection(0, reason),)), roster) == is_sound
        )


def test_a_result_that_opposes_the_own_update_is_refused_and_the_next_server_asked() -> None:
    desk = ResultBench()
    refused = desk.judge(0, OPPOSED)
    [report] = refused
    assert isinstance(report, Report)
    assert (report.event, report.fields["server"]) == ("refused_result", 0)
    assert "cosine of -0.90" in report.fields["reason"]
    assert desk.shard.attempt == 1
    assert desk.judge(1, ALIKE) is None


@pytest.mark.parametrize(
    ("made_at", "remembered"), [(3, True), (11, True), (4, False), (19, False)]
)
def test_only_what_is_handed_over_in_a_turn_of_its_server_is_remembered(
    made_at: int, remembered: bool
) -> None:
    desk = ResultBench()
    lineage = desk.agreed.lineage
    lineage.restart(7, b"h" * 16)
    said = desk.commit(server=3, made_at=made_at, round_id=7, parent=lineage.head)
    for claims in (
        {},
        {"digest": b"e" * 16},
        {"shard": 1},
        {"round_id": 6},
        {"round_id": 8},
        {"parent": b"g" * 16},
    ):
        desk.result_validator.saw(Received(3, 0, replace(said, **claims)))
    assert len(desk.result_validator.witness.statements(desk.agreed.equivocations, 7)) == remembered


def test_what_more_than_f_have_handed_over_is_taken() -> None:
    desk = ResultBench(f=2)
    assert desk.judge(0, OPPOSED) is not None
    assert desk.judge(0, OPPOSED) is not None  # the same peer again is one voice
    assert desk.judge(2, OPPOSED) is not None
    assert desk.judge(3, OPPOSED) is None


def test_who_serves_the_attempt_itself_closes_without_those_who_hold_what_it_refuses() -> None:
    desk = ResultBench()
    desk.shard.attempt = 1
    assert desk.judge(0, OPPOSED) is not None
    assert (desk.closed, desk.handed_on, desk.shard.doubted) == (1, [], {0})


def test_who_serves_an_attempt_that_others_have_left_makes_no_second_result() -> None:
    desk = ResultBench()
    # which this peer serves; those who have updates with it may have given them to peer 3, too
    desk.shard.attempt = 1
    later = replace(desk.commit(), attempt=3, made_at=3, server=3)
    assert desk.judge_commit(3, later, OPPOSED, Contributed(0, 0, ())) is not None
    assert (desk.closed, len(desk.handed_on), desk.shard.attempt) == (0, 1, 2)
    desk.shard.attempt = 1  # in another's name, it is a word that any liar could say
    assert desk.judge_commit(4, later, OPPOSED, Contributed(0, 0, ())) is not None
    assert (desk.closed, desk.shard.attempt) == (1, 1)


def test_what_is_no_result_of_a_later_attempt_takes_no_servers_turn() -> None:
    desk = ResultBench()
    desk.shard.attempt = 1
    bad = replace(desk.commit(), attempt=3, made_at=3, server=3)
    desk.result_validator.refuse(3, desk.shard, bad, BAD_COMMIT, 1.0)
    assert (desk.closed, desk.handed_on, desk.shard.attempt) == (1, [], 1)


def test_a_doubtful_result_of_another_attempt_hands_nothing_on() -> None:
    desk = ResultBench()
    desk.shard.attempt = 3
    assert desk.judge(0, OPPOSED) is not None
    assert desk.handed_on == []


def test_what_somebody_hands_over_in_the_name_of_who_serves_hands_nothing_on() -> None:
    desk = ResultBench()
    assert desk.judge(5, OPPOSED, maker=0) is not None
    assert desk.handed_on == []
    assert desk.judge(0, OPPOSED) is not None
    assert len(desk.handed_on) == 1


def test_nobody_goes_round_the_order_twice_at_the_speed_of_the_network() -> None:
    desk = ResultBench()
    desk.shard.attempt = 8  # peer 0 again
    assert desk.judge(0, OPPOSED) is not None
    assert desk.handed_on == []


def test_a_result_may_be_as_long_as_the_own_update_or_as_those_that_more_than_f_servers_have_made():
    assert ResultBench().judge(0, ResultSimilarity(2.9, 1.0, 1.0)) is None
    assert ResultBench().judge(0, ResultSimilarity(3.1, 1.0, 1.0)) is not None
    assert ResultBench().judge(0, ResultSimilarity(float("inf"), 1.0, float("nan"))) is not None
    # nothing is known that it could be compared with
    assert ResultBench().judge(0, ResultSimilarity(5.0)) is None
    desk = ResultBench(f=2)
    for server in (3, 4):  # two liars, each a little longer every time
        for round_id in range(10):
            assert (
                desk.judge(
                    server, ResultSimilarity(2.0 * round_id, 100.0), server, 10 * server + round_id
                )
                is None
            )
    assert desk.judge(0, ResultSimilarity(9.0, 1.0, 1.0)) is not None
    desk = ResultBench(f=2)
    for server in (3, 4, 5):
        assert desk.judge(server, ResultSimilarity(4.0, 100.0), server, server) is None
    assert desk.judge(0, ResultSimilarity(9.0, 1.0, 1.0)) is None
    assert desk.judge(0, ResultSimilarity(12.1, 1.0, 1.0)) is not None


def _with_known_lengths() -> ResultBench:
    """Its servers have made results of length 1."""
    desk = ResultBench(f=1)
    for server in (3, 4):
        assert desk.judge(server, ResultSimilarity(1.0), server, server) is None
    return desk


@pytest.mark.parametrize(
    ("similarity", "refused"),
    [
        (ResultSimilarity(1.0, 0.29, -0.29, even=1.0), False),
        (ResultSimilarity(1.0, 0.31, -0.31, even=1.0), True),
        (ResultSimilarity(1.0, 0.29, -0.29), True),  # there is no other shard
        # What is just not opposed, and as long as may be, goes back by 1.5.
        (ResultSimilarity(1.49, 0.29, -1.49 * 0.29, even=1.0), False),
        (ResultSimilarity(1.51, 0.29, -1.51 * 0.29, even=1.0), True),
        (ResultSimilarity(2.9, 0.29, -2.9 * 0.29 * 0.51, even=1.0), False),
        (ResultSimilarity(2.9, 0.29, -2.9 * 0.29 * 0.53, even=1.0), True),
        (ResultSimilarity(3.1, 0.29, -3.1 * 0.29 * 0.1, even=1.0), True),
    ],
)
def test_a_result_may_oppose_an_own_update_that_is_faint_in_its_shard_by_as_much_as_any_may_go_back(
    similarity: ResultSimilarity, refused: bool
) -> None:
    assert (_with_known_lengths().judge(0, similarity, round_id=9) is not None) == refused


@pytest.mark.parametrize(
    ("similarity", "refused"),
    [
        # A shard of 0.3 is just not faint; results may go back by 1.5 times that.
        (ResultSimilarity(0.44, 0.1, -0.44 * 0.1, even=1.0), False),
        (ResultSimilarity(0.46, 0.1, -0.46 * 0.1, even=1.0), True),
        (ResultSimilarity(0.89, 0.1, -0.89 * 0.1 * 0.49, even=1.0), False),
        (ResultSimilarity(0.91, 0.1, -0.91 * 0.1 * 0.49, even=1.0), True),
        (ResultSimilarity(0.44, 0.31, -0.44 * 0.31, even=1.0), True),
        (ResultSimilarity(0.31, 0.1, 0.31 * 0.1), True),  # there is no other shard
    ],
)
def test_in_the_first_rounds_a_faint_result_may_be_as_long_as_a_faint_shard_is_at_most(
    similarity: ResultSimilarity, refused: bool
) -> None:
    assert (ResultBench(f=1).judge(0, similarity) is not None) == refused


def test_lengths_of_all_shards_are_known_however_many_there_are() -> None:
    """As it was: with more than 16 shards each was forgotten before its next round."""
    desk = ResultBench(f=1)
    desk.result_validator.quorum.present.entered = [desk.shard] * 17
    for server in (3, 4):
        for shard in range(17):
            commit = replace(desk.commit(), round_id=server, shard=shard, server=server)
            desk.result_validator.learn(commit, ResultSimilarity(0.01))
    back = ResultSimilarity(0.44, 0.1, -0.44 * 0.1, even=1.0)
    assert desk.judge(0, back, round_id=9) is not None


def test_a_result_of_few_samples_may_be_longer() -> None:
    desk = ResultBench(f=1)
    for server in (3, 4):
        assert desk.judge(server, ResultSimilarity(1.0), server, server, samples=64) is None
    assert desk.judge(0, ResultSimilarity(3.1), samples=64) is not None
    assert desk.judge(0, ResultSimilarity(23.9), round_id=8, samples=1) is None
    desk = ResultBench(f=1)
    for server in (3, 4):
        assert desk.judge(server, ResultSimilarity(1.0), server, server, samples=64) is None
    assert desk.judge(0, ResultSimilarity(24.1), samples=1) is not None


def test_a_server_cannot_leave_out_the_own_samples_to_make_its_result_longer() -> None:
    desk = ResultBench(f=1)
    for server in (3, 4):
        assert desk.judge(server, ResultSimilarity(1.0), server, server, samples=64) is None
    assert desk.judge(0, ResultSimilarity(12.1), samples=1, own=4) is not None
    desk.shard.attempt = 0
    assert desk.judge(2, ResultSimilarity(11.9), maker=2, round_id=9, samples=1, own=4) is None


def test_results_of_more_samples_are_not_expected_to_be_shorter() -> None:
    desk = ResultBench(f=1)
    for server in (3, 4):
        assert desk.judge(server, ResultSimilarity(1.0), server, server, samples=1) is None
    assert desk.judge(0, ResultSimilarity(2.9), samples=64) is None


def test_lengths_are_forgotten() -> None:
    desk = ResultBench(f=1)
    for round_id in range(LENGTH_ROUNDS + 2):
        length = 50.0 if round_id < 2 else 1.0
        assert (
            desk.judge(round_id % 4, ResultSimilarity(length, 100.0), round_id % 4, round_id)
            is None
        )
    assert desk.judge(0, ResultSimilarity(10.0, 1.0)) is not None


def payload(*numbers: float) -> Payload:
    data = np.array(numbers, np.float32)
    return Payload(data, data.nbytes)


def test_the_own_update_is_compared_with_results_of_its_round_and_shard_only() -> None:
    desk, own = ResultBench(), Contributed(4, 2, (payload(1.0), payload(2.0)))
    commit = Commit(b"l", 4, 1, 0, 0, 0, b"", b"d" * 16, (), (), (), None, "")
    first, second = own.payloads
    assert desk.result_validator.compared_with(commit, 4, own) == (second, first)
    assert desk.result_validator.compared_with(replace(commit, shard=2), 4, own) == ()
    assert desk.result_validator.compared_with(commit, 3, own) == ()
    assert desk.result_validator.compared_with(commit, 4, None) == ()
    assert desk.result_validator.compared_with(UpdateRequest(b"l", 4, 0, 0, b""), 4, own) is None
    truth = payload(-1.0)
    assert desk.result_validator.compared_with(
        commit, 4, Contributed(4, 2, (payload(1.0),), own=truth)
    ) == (truth,)


@pytest.mark.parametrize(("n", "f"), [(4, 0), (3, 1), (5, 2)])
def test_among_too_few_to_vouch_for_an_honest_server_nothing_is_compared(n: int, f: int) -> None:
    commit = Commit(b"l", 4, 0, 0, 0, 0, b"", b"d" * 16, (), (), (), None, "")
    assert ResultBench(n, f).result_validator.compared_with(commit, 4, None) is None
    assert ResultBench(2 * f + 2, f or 1).result_validator.compared_with(commit, 4, None) == (
        () if f else None
    )


def test_likeness_is_lengths_and_product() -> None:
    found = similarity_of(payload(3.0, 4.0), (payload(-6.0, -8.0),))
    assert found == ResultSimilarity(5.0, 10.0, -50.0)
    assert found.cosine == -1.0
    assert similarity_of(payload(3.0, 4.0), ()) == ResultSimilarity(5.0)
    assert similarity_of(payload(1e30), (payload(1.0),)).length == float("inf")
    assert ResultSimilarity(1.0).cosine == 0.0
    assert ResultSimilarity(float("inf"), 1.0, float("nan")).cosine == 0.0


def test_how_long_a_part_would_be_if_all_were_alike_is_told_where_the_result_points_away() -> None:
    own = payload(0.3, 0.4), payload(4.0), payload(3.0, 0.0)
    even = (25.25 * 2 / 5) ** 0.5
    assert similarity_of(payload(-3.0, -4.0), own).even == pytest.approx(even)
    assert similarity_of(payload(3.0, 4.0), own).even == 0.0
    assert similarity_of(payload(-3.0, -4.0), own[:1]).even == 0.0
    for number in (float("inf"), float("nan"), 1e30):
        assert similarity_of(payload(-3.0, -4.0), (own[0], payload(number))).even == 0.0


@pytest.mark.parametrize("numbers", [BLOCK_NUMBERS, 2 * BLOCK_NUMBERS + 1])
def test_likeness_is_of_all_blocks(numbers: int) -> None:
    draw = np.random.default_rng(1)
    result, own = (draw.standard_normal(numbers).astype(np.float32) for _ in range(2))
    found = similarity_of(Payload(result, 4 * numbers), (Payload(own, 4 * numbers),))
    exact = (result.astype(float), own.astype(float))
    assert found.length == pytest.approx(np.linalg.norm(exact[0]), rel=1e-6)
    assert found.own == pytest.approx(np.linalg.norm(exact[1]), rel=1e-6)
    assert found.product == pytest.approx(float(exact[0] @ exact[1]), abs=1e-2)


def test_who_has_refused_a_result_says_so_until_it_is_in_the_history() -> None:
    desk = ResultBench()
    assert desk.result_validator.accusations() == ()
    desk.judge(0, OPPOSED, round_id=6)
    desk.judge(2, OPPOSED, maker=3, round_id=6)  # that peer 3 has made it is peer 2's word
    assert (
        desk.result_validator.accusations()
        == (Accusation(0, 6),)
        == desk.result_validator.accusations()
    )
    where = b"l", 7, 0, 0, 0, 1, b"", b"d" * 16, (), (), tuple(range(8))
    commit = Commit(*where, None, "", accusations=desk.result_validator.accusations())
    desk.trust.observe_round([commit])
    assert desk.result_validator.accusations() == ()


def test_a_commit_has_room_for_a_few_charges_the_latest_first() -> None:
    desk = ResultBench(f=3)
    for round_id in range(12):
        desk.judge(0, OPPOSED, round_id=round_id)
    assert desk.result_validator.accusations() == tuple(
        [Accusation(0, at) for at in range(12 - ACCUSATIONS_MAX, 12)]
    )


def test_with_no_liars_to_bear_a_damaged_result_hands_nothing_on() -> None:
    desk = ResultBench(4, f=0)
    commit = Commit(b"l", 0, 0, 0, 0, 0, b"", b"d" * 16, (), (), (), None, "")
    assert [
        type(effect)
        for effect in desk.result_validator.refuse(0, desk.shard, commit, BAD_COMMIT, 1.0)
    ] == [Report]
    assert (desk.handed_on, desk.result_validator.accusations()) == ([], ())


# --- what a result says beside its numbers --------------------------------------------------------


def test_rates_far_above_the_own_and_the_last_are_doubted_and_far_below_as_well() -> None:
    desk = ResultBench()
    desk.agreed.rates = (0.1, 1.0)
    assert "setting of 31 is far above" in desk.why((0.2, 10.0), rates=(0.2, 31.0))
    assert desk.why((0.2, 10.0), rates=(0.59, 29.0)) == ""
    # a step down that only the own scheduler has made
    assert desk.why((0.01, 1.0), rates=(0.29, 1.0)) == ""
    assert "setting of 0.0009 is far below" in desk.why((0.2, 1.0), rates=(0.0009, 1.0))
    assert desk.why((0.0, 1.0), rates=(0.0, 1.0)) == ""


def test_rates_are_compared_with_what_is_known() -> None:
    desk = ResultBench()
    assert desk.why((), rates=(1e9,)) == "", "nothing is"
    assert "far above" in desk.why((0.1,), rates=(1e9,))
    assert "it has 0 optimizer settings, this peer's optimizer 1" in desk.why((0.1,), rates=())
    assert desk.why((0.1,), rates=(), digest=b"") == "", "nothing is stepped"
    assert desk.why((0.1,), rates=(1e9,), shard=1) == "", "the first shard speaks for all"
    desk.agreed.rates = (0.1,)
    assert "far above" in desk.why((), rates=(1e9,))
    both = [
        desk.result_validator.result_checks.objection(
            desk.commit(rates=(1e9,)), Contributed(0, 1, (), rates=own)
        )
        for own in ((0.1,), ())
    ]
    assert [objection.is_evidence for objection in both] == [True, False], (
        "who has nothing of its own to compare with accuses nobody"
    )


def test_a_roster_without_those_who_are_here_is_doubted() -> None:
    desk = ResultBench(8, f=2)
    everybody = set(range(8))
    assert "leaves out [3], which are present" in desk.why(roster=tuple(everybody - {3}))
    assert desk.why(roster=tuple(everybody - {1})) == "", "nobody knows of itself how others see it"
    desk.skipped[3] = "suspect"
    assert desk.why(roster=tuple(everybody - {3})) == ""
    desk.departures.record_departure(4, Hello(b"l", b"", b"", 5, "leaving", "", ""))
    assert desk.why(roster=tuple(everybody - {3, 4})) == ""
    assert "leaves out [1, 2, 5, 6, 7], which are present" in desk.why(roster=(0,))
    desk.passed = True
    assert desk.why(roster=(0,)) == "", "who has been away cannot tell who was here"


def test_a_roster_with_those_who_are_not_here_is_doubted() -> None:
    desk = ResultBench(8, f=2)
    desk.unknown, desk.skipped = {12}, {11: "dead", 10: "connecting"}
    assert desk.why(roster=(*range(8), 9, 10)) == ""
    assert "adds [11, 12], which are not" in desk.why(roster=(*range(8), 11, 12))


def test_among_few_a_roster_is_doubted_for_more_than_f_alone_and_never_with_no_liars_to_bear():
    assert ResultBench(3, f=1).why(roster=(0, 2)) == ""
    assert ResultBench(3, f=1).why(roster=(0, 1)) == ""
    assert "leaves out [1, 2]" in ResultBench(3, f=1).why(roster=(0,))
    assert ResultBench(3, f=0).why((0.1,), roster=(0,), rates=(9.9,)) == ""


def test_what_more_than_f_hand_over_is_taken_whatever_it_claims() -> None:
    desk = ResultBench(8, f=2)
    commit = desk.commit(roster=(0,))
    taken = [desk.judge_commit(sender, commit, ALIKE) is None for sender in (0, 2, 3)]
    assert taken == [False, False, True]


# --- what does not come ---------------------------------------------------------------------------


def test_who_has_waited_for_a_result_in_vain_says_so() -> None:
    desk = ResultBench(8, f=2)
    desk.result_validator.on_server_timeout(desk.shard, 1.0)
    assert desk.handed_on == ["no commit from 0 in time"]
    assert desk.result_validator.accusations() == (Accusation(0, 7, silent=True),)
    desk.result_validator.on_server_timeout(desk.shard, 1.0)  # of attempt 1, which it serves itself
    assert desk.result_validator.accusations() == (Accusation(0, 7, silent=True),)


def test_a_server_with_no_majority_in_reach_is_not_blamed_nor_anybody_where_f_is_zero():
    desk = ResultBench(8, f=2)
    # six are there, five are needed, and two of the six may be liars
    desk.skipped = dict.fromkeys((2, 3), "disconnected")
    desk.result_validator.on_server_timeout(desk.shard, 1.0)
    trusting = ResultBench(8, f=0)
    trusting.result_validator.on_server_timeout(trusting.shard, 1.0)
    assert (desk.result_validator.accusations(), trusting.result_validator.accusations()) == (
        (),
        (),
    )
