"""Scores, quarantine and parole, from the evidence in commits."""

import json
from pathlib import Path
from random import Random

import pytest

from gossip.core.ledger.trust import TrustTable, TrustTransition
from gossip.core.messages import Accusation, Commit, Contribution, Rejection
from gossip.core.settings import TrustSettings

PEERS = tuple(range(8))
SETTINGS = TrustSettings(quarantine_rounds=30, parole_rounds=10)


def contributions(far: dict[int, float], absent: tuple[int, ...] = ()) -> list[Contribution]:
    return [
        Contribution(peer, 32, 0.125, far.get(peer, 1.0)) for peer in PEERS if peer not in absent
    ]


def run(
    table: TrustTable, rounds: range, far: dict[int, float], rejected: dict[int, str] | None = None
) -> list[TrustTransition]:
    rejections = [Rejection(peer, reason) for peer, reason in (rejected or {}).items()]
    changes = []
    for round_id in rounds:
        absent = tuple(rejected or ()) + tuple(table.quarantined())
        changes += table.observe_commit(
            round_id, contributions(far, absent), rejections, roster=PEERS
        )
    return changes


def names(changes: list[TrustTransition]) -> list[tuple[int, str]]:
    return [(change.peer, change.change) for change in changes]


def test_a_peer_that_stands_out_is_suspected_then_quarantined_and_nobody_else() -> None:
    table = TrustTable(SETTINGS, f=2)
    changes = run(table, range(20), {5: 11.2})
    assert names(changes) == [(5, "suspected"), (5, "quarantined")]
    assert changes[0].reasons == (
        "7 of the last 7 updates were outliers (11.2 times the median distance)",
    )
    assert table.score(0) == 1.0
    assert table.suspected() == (5,)


def test_a_peer_that_sends_no_numbers_or_the_wrong_size_is_told_apart() -> None:
    table = TrustTable(SETTINGS, f=2)
    run(table, range(8), {}, {3: "non_finite"})
    run(table, range(8, 11), {}, {3: "wrong_size"})
    assert table.reasons(3) == (
        "8 of the last 11 updates were not finite",
        "3 of the last 11 updates had the wrong size",
    )


@pytest.mark.parametrize(("broken", "blamed"), [(4, (0, 1, 2, 3)), (5, ())])
def test_nobody_is_blamed_when_most_are_not_finite(broken: int, blamed: tuple[int, ...]) -> None:
    """The model has diverged then."""
    table = TrustTable(SETTINGS, f=2)
    run(table, range(10), {}, dict.fromkeys(range(broken), "non_finite"))
    assert tuple(peer for peer in PEERS if table.score(peer) < 1.0) == blamed


def test_so_many_as_may_lie_are_blamed_though_most_updates_are_theirs() -> None:
    """The others are late."""
    table = TrustTable(SETTINGS, f=2)
    broken = [Rejection(peer, "non_finite") for peer in (1, 2)]
    table.observe_commit(0, contributions({}, tuple(PEERS[1:])), broken, roster=PEERS)
    assert [peer for peer in PEERS if table.score(peer) < 1.0] == [1, 2]


def test_crashes_lateness_and_the_quarantine_itself_are_no_evidence() -> None:
    table = TrustTable(SETTINGS, f=2)
    changes = run(table, range(50), {}, {3: "late", 4: "quarantined"})
    assert changes == []
    assert table.score(3) == table.score(4) == table.score(99) == 1.0
    assert table.reasons(3) == ()


def test_a_verdict_that_is_no_number_accuses_nobody() -> None:
    table = TrustTable(SETTINGS, f=2)
    assert run(table, range(50), {3: float("nan")}) == []


def converged() -> list[list[float]]:
    """How far out each of eight honest peers was, a row a round: rounds 740 to 859 of the digits
    (seed 0, f = 2, batches of 32).

    The model fits its data by then. In most rounds one or two peers have a batch with a sample
    that it gets wrong.
    """
    rows: list[list[float]] = json.loads(
        Path(__file__).with_name("converged_outlyingness.json").read_text()
    )
    return rows


def test_honest_peers_of_a_converged_model_are_not_suspected_though_some_stand_out_in_most_rounds():
    table, rows = TrustTable(SETTINGS, f=2), converged()
    for round_id, row in enumerate(rows):
        assert run(table, range(round_id, round_id + 1), dict(enumerate(row))) == []
    assert sum(value > SETTINGS.outlying for row in rows for value in row) > 0.15 * len(rows) * len(
        PEERS
    )
    assert min(table.scores().values()) > 0.85


def test_a_liar_among_the_honest_of_a_converged_model_is_found() -> None:
    table = TrustTable(SETTINGS, f=2)
    changes: list[TrustTransition] = []
    for round_id, row in enumerate(converged()):
        # It sends its own update ten times as large, or 25 times: sign_flip and its kin.
        far = {peer: value * {2: 10.0, 6: 25.0}.get(peer, 1.0) for peer, value in enumerate(row)}
        changes += run(table, range(round_id, round_id + 1), far)
    suspected = {change.peer: change.round_id for change in changes if change.change == "suspected"}
    assert sorted(suspected) == [2, 6]
    assert max(suspected.values()) < 40


def test_one_absurd_update_in_a_quiet_history_is_no_evidence() -> None:
    table = TrustTable(SETTINGS, f=2)
    run(table, range(20), {})
    run(table, range(20, 21), {5: 3e38})
    assert table.score(5) == 1.0


def test_quarantine_ends_in_parole_and_parole_in_a_middling_score() -> None:
    table = TrustTable(SETTINGS, f=2)
    start = run(table, range(20), {5: 9.0})[-1]
    assert (start.change, start.round_id) == ("quarantined", 15)
    # Its own updates are not looked at meanwhile, and it does not get out early.
    for round_id in range(20, 46):
        assert 5 in table.quarantined()
        assert not table.may_serve(5)
        changes = run(table, range(round_id, round_id + 1), {5: 9.0})
    assert names(changes) == [(5, "parole")]
    assert table.quarantined() == frozenset()
    # It was trusted again on the way, yet begins its new life with no more than a middling score.
    assert names(run(table, range(46, 55), {})) == [(5, "trusted")]
    assert not table.may_serve(5)
    assert names(run(table, range(55, 56), {})) == [(5, "cleared")]
    assert table.score(5) == SETTINGS.suspect_below
    assert table.may_serve(5)


def test_a_leap_over_rounds_sets_nobody_free() -> None:
    """A peer may go on from a round that is far away, or behind: it took over a state, of which it
    has a liar's word only."""
    table, far, back = TrustTable(SETTINGS, f=2), 1_000_000, 7
    run(table, range(20), {5: 9.0})  # locked up with round 15, for 30 rounds
    assert run(table, range(far, far + 25), {}) == []
    assert table.quarantined() == {5}
    assert names(run(table, range(back, back + 1), {})) == [(5, "parole")]
    run(table, range(2 * far, 2 * far + 9), {})
    assert not table.may_serve(5)
    assert names(run(table, range(back, back + 1), {})) == [(5, "cleared")]


def test_a_liar_on_parole_goes_back_sooner_than_it_came() -> None:
    table = TrustTable(SETTINGS, f=2)
    first = run(table, range(60), {5: 9.0})
    assert names(first)[:4] == [
        (5, "suspected"),
        (5, "quarantined"),
        (5, "parole"),
        (5, "quarantined"),
    ]
    assert first[3].round_id - first[2].round_id < first[1].round_id


def test_a_peer_between_the_thresholds_does_not_flutter() -> None:
    table = TrustTable(SETTINGS, f=2)
    run(table, range(7), {5: 9.0})
    changes = []
    for round_id in range(7, 200):
        changes += run(table, range(round_id, round_id + 1), {5: 9.0 if round_id % 2 else 1.0})
    assert len(changes) <= 1


def test_with_f_zero_peers_are_suspected_but_never_quarantined() -> None:
    table = TrustTable(SETTINGS, f=0)
    assert names(run(table, range(100), {5: 9.0})) == [(5, "suspected")]


def test_at_most_f_are_quarantined_the_least_trusted_first() -> None:
    table = TrustTable(SETTINGS, f=2)
    run(table, range(6), {}, {7: "non_finite"})
    faulty = dict.fromkeys((5, 6, 7), "non_finite")
    changes = run(table, range(6, 31), {}, faulty)
    locked = [change.peer for change in changes if change.change == "quarantined"]
    assert locked == [7, 5]
    assert table.quarantined() == {5, 7}


def test_more_than_f_that_stand_out_alike_are_different_and_nobody_is_suspected() -> None:
    """One of them is honest, and so is whoever is no farther out."""
    table = TrustTable(SETTINGS, f=2)
    assert run(table, range(100), {1: 4.0, 5: 9.0, 6: 9.0}) == []
    # Who lies beyond what is usual among the honest stands out all the same.
    assert names(run(table, range(100, 160), {1: 2.0, 5: 2.0, 6: 60.0}))[:2] == [
        (6, "suspected"),
        (6, "quarantined"),
    ]


# --- unequal data ---------------------------------------------------------------------------------


def test_for_a_judge_different_data_are_no_excuse() -> None:
    """It finds nobody far out for being different."""
    far = {0: 2.0, 1: 1.6, 2: 2.0, 3: 1.4, 6: 4.5}
    assert run(TrustTable(SETTINGS, f=2), range(40), far) == []
    found = run(TrustTable(SETTINGS, f=2, judged=True), range(40), far)
    assert names(found)[:2] == [(6, "suspected"), (6, "quarantined")]


def test_f_liars_cannot_make_themselves_ordinary_nor_the_honest_stand_out() -> None:
    """They may be as far out or as near as they like."""
    for lies in (0.0, 1.0, 3.1, 11.0, 13.0, 1e30):
        table = TrustTable(SETTINGS, f=2)
        changes = run(table, range(60), {0: 1.3, 1: 0.7, 2: 2.0, 3: 1.6, 6: lies, 7: lies})
        assert {peer for peer, _ in names(changes)} == ({6, 7} if lies > 12.0 else set())


def test_who_lies_much_farther_out_takes_the_place_of_one_in_quarantine() -> None:
    """An honest peer whose data differ is locked up; then sleepers begin to lie."""
    table = TrustTable(TrustSettings(quarantine_rounds=300), f=2)
    run(table, range(20), {2: 4.0})
    assert table.quarantined() == {2}
    changes = run(table, range(20, 60), {6: 20.0, 7: 25.0})
    assert table.quarantined() == {6, 7}
    assert (2, "parole") in names(changes)


def test_two_who_stand_out_alike_do_not_take_turns() -> None:
    table = TrustTable(TrustSettings(quarantine_rounds=300), f=1)
    run(table, range(20), {2: 9.0})
    assert run(table, range(20, 200), {5: 9.0})[1:] == []
    assert table.quarantined() == {2}


def test_nobody_is_locked_up_where_the_rule_would_have_too_few_updates() -> None:
    for updates_for, locked in (((1, 3, 5), {5, 6}), ((1, 4, 7), {5}), ((1, 4, 8), set())):
        table = TrustTable(SETTINGS, f=2, updates_for=updates_for)
        run(table, range(25), {5: 40.0, 6: 9.0})
        assert table.quarantined() == locked, updates_for


def test_the_least_suspicious_are_released_when_too_few_are_left() -> None:
    table = TrustTable(SETTINGS, f=2, updates_for=(1, 3, 5))
    run(table, range(25), {5: 9.0, 6: 40.0})
    assert table.quarantined() == {5, 6}
    gone = contributions({}, absent=(1, 5, 6))
    changes = table.observe_commit(25, gone, [], roster=(0, 2, 3, 4, 5, 6, 7))
    assert names(changes) == []
    changes = table.observe_commit(26, gone, [], roster=(0, 2, 3, 4, 5, 6))
    assert names(changes) == [(5, "parole")]
    changes = table.observe_commit(27, gone, [], roster=(0, 2, 4, 5, 6))
    assert names(changes) == [(6, "parole")]


def test_one_that_sends_no_numbers_keeps_nobody_else_locked_up() -> None:
    """A liar that lies far out takes the place of the honest peer, not of the other liar."""
    table = TrustTable(TrustSettings(quarantine_rounds=300), f=2)
    for round_id in range(20):
        table.observe_commit(
            round_id,
            contributions({2: 4.0}, absent=(6,)),
            [Rejection(6, "non_finite")],
            roster=PEERS,
        )
    assert table.quarantined() == {2, 6}
    run(table, range(20, 60), {7: 1000.0})
    assert table.quarantined() == {6, 7}


def test_who_is_different_is_different_after_its_release_too() -> None:
    """Framed once, an honest peer is not locked up again and again."""
    table, chance = TrustTable(SETTINGS, f=1), Random(4)
    honest = [0.5, 0.7, 0.9, 1.0, 1.1, 1.4, 1.6, 6.0]

    def rounds(first: int, last: int, framed: float) -> list[TrustTransition]:
        changes = []
        for at in range(first, last):
            far = {p: v * chance.lognormvariate(0.0, 0.1) for p, v in enumerate(honest)}
            far[7] *= framed
            absent = tuple(table.quarantined())
            changes += table.observe_commit(at, contributions(far, absent), [], roster=PEERS)
        return changes

    assert rounds(0, 60, 1.0) == []
    assert (7, "quarantined") in names(rounds(60, 100, 30.0))
    after = names(rounds(100, 400, 1.0))
    assert (7, "cleared") in after
    assert (7, "quarantined") not in after


def test_data_stay_different_when_the_model_has_converged() -> None:
    """What was measured in the first rounds counts when all are alike but one, whose data are as
    hard as ever."""
    for first, locked in ((0.0, {7}), (0.5, set())):
        table, chance = TrustTable(SETTINGS, f=1), Random(1)
        for at in range(80):
            apart = first if at < 40 else 0.0
            far = {p: 1.0 + apart * p + 0.05 * chance.random() for p in range(7)}
            far[7] = 1.0 + apart * 7 if at < 40 else 8.0
            absent = tuple(table.quarantined())
            table.observe_commit(at, contributions(far, absent), [], roster=PEERS)
        assert table.quarantined() == locked, first


def test_in_which_order_peers_were_met_makes_no_difference() -> None:
    """Medians tie, and those left out at the ends are others where the order counts: a peer that
    took the table over has met all in the order of their numbers."""
    chance = Random(3)
    rows = [[float(chance.randrange(1, 4)) for _ in range(6)] for _ in range(10)]
    found = set()
    for order in ((0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (3, 5, 0, 1, 4, 2)):
        table = TrustTable(SETTINGS, f=1)
        for at, row in enumerate(rows):
            table.observe_commit(at, [Contribution(p, 32, 0.1, row[p]) for p in order], [])
        found.add(table.spread.beyond_chance)
    assert len(found) == 1
    assert None not in found


def test_suspicion_is_no_proof() -> None:
    table = TrustTable(SETTINGS, f=2)
    run(table, range(20), {5: 40.0}, {6: "non_finite"})
    assert table.quarantined() == {5, 6}
    assert table.proven() == frozenset()


def measure(table: TrustTable, rounds: range, far: float) -> list[TrustTransition]:
    """Peer 5 is said to be in quarantine, and so far out."""
    changes = []
    for round_id in rounds:
        measured = [Rejection(5, "quarantined", far)]
        others = contributions({}, absent=(5,))
        changes += table.observe_commit(round_id, others, measured, roster=PEERS)
    return changes


def locked_up(settings: TrustSettings) -> TrustTable:
    """Peer 5 is in quarantine since round 15."""
    table = TrustTable(settings, f=2)
    assert (5, "quarantined") in names(run(table, range(16), {5: 9.0}))
    return table


def test_what_a_peer_sends_in_quarantine_is_measured_and_tells_for_and_against_it() -> None:
    table = locked_up(SETTINGS)
    before = table.score(5)
    table.observe_commit(16, contributions({}, (5,)), [Rejection(5, "non_finite")], roster=PEERS)
    assert table.score(5) == pytest.approx(0.9 * before)
    measure(table, range(17, 18), 9.0)
    assert table.score(5) == pytest.approx(0.81 * before)
    measure(table, range(18, 19), 1.0)
    assert table.score(5) == pytest.approx(0.9 * 0.81 * before + 0.1)


@pytest.mark.parametrize("lies", [0, 1, 30, 80])
def test_who_is_locked_up_comes_back_within_a_bound_of_ordinary_updates(lies: int) -> None:
    settings = TrustSettings()
    table = locked_up(settings)
    assert measure(table, range(16, 16 + lies), 9.0) == []
    changes = measure(table, range(100, 100 + settings.updates_to_return), 1.0)
    assert names(changes) == [(5, "parole")]
    assert changes[0].round_id >= 107  # one that lied has to do without for some
    assert settings.updates_to_return == 10


def test_a_liar_that_serves_a_fifth_of_the_rounds_frees_no_other_and_keeps_none_in() -> None:
    settings = TrustSettings(quarantine_rounds=1000)
    lying, honest = locked_up(settings), locked_up(settings)
    changes: list[TrustTransition] = []
    for round_id in range(16, 200):
        by_liar = round_id % 5 == 0
        now = range(round_id, round_id + 1)
        assert measure(lying, now, 1.0 if by_liar else 9.0) == []
        if not changes:
            changes += measure(honest, now, 9.0 if by_liar else 1.0)
    assert names(changes) == [(5, "parole")]
    assert changes[0].round_id < 16 + 3 * settings.updates_to_return


def test_in_quarantine_for_its_results_nobody_is_freed_by_its_updates() -> None:
    table = TrustTable(SETTINGS, f=2)
    for round_id in range(2):
        commit = Commit(b"l" * 8, round_id, 0, 0, 0, 1, b"", b"d", (), (), PEERS, None, "")
        table.observe_round([commit], (5,))
    assert table.quarantined() == {5}
    assert measure(table, range(2, 1 + SETTINGS.quarantine_rounds), 1.0) == []
    assert names(measure(table, range(40, 41), 1.0)) == [(5, "parole")]


def test_what_is_said_to_be_measured_of_a_peer_that_is_free_is_no_evidence() -> None:
    table = TrustTable(SETTINGS, f=2)
    assert measure(table, range(50), 9.0) == []
    assert table.score(5) == 1.0


def test_reasons_speak_of_the_recent_past_and_begin_anew_on_parole() -> None:
    table = TrustTable(SETTINGS, f=0)
    run(table, range(20), {5: 9.0})
    run(table, range(20, 26), {})
    assert table.reasons(5) == (
        "14 of the last 20 updates were outliers (9.0 times the median distance)",
    )
    table = TrustTable(SETTINGS, f=1)
    run(table, range(16), {5: 9.0})
    (parole,) = run(table, range(16, 50), {})[:1]
    assert (parole.change, parole.reasons) == ("parole", ())


def test_a_majority_of_the_roster_always_stays() -> None:
    table = TrustTable(SETTINGS, f=4)
    for round_id in range(20):
        table.observe_commit(
            round_id, contributions(dict.fromkeys(range(1, 5), 9.0)), [], roster=(0, 1, 2, 3, 4)
        )
    assert len(table.quarantined()) == 2


def test_absurd_distances_stay_readable() -> None:
    table = TrustTable(SETTINGS, f=2)
    run(table, range(3), {4: 3.4e38})
    assert table.reasons(4) == (
        "3 of the last 3 updates were outliers (over 1000 times the median distance)",
    )


# --- results --------------------------------------------------------------------------------------


def served(
    table: TrustTable, round_id: int, server: int, *accusations: tuple[int, int]
) -> list[tuple[int, str]]:
    """``server`` commits a round, and says of these peers that it has refused their results
    of these rounds."""
    said = tuple(Accusation(*accusation) for accusation in accusations)
    where = b"l", round_id, 0, 0, 0, server, b"", b"d" * 16, (), (), tuple(range(8))
    commit = Commit(*where, None, "", accusations=said)
    return names(table.observe_round([commit]))


def test_who_has_one_result_after_the_other_refused_by_more_than_f_is_locked_up() -> None:
    table = TrustTable(TrustSettings(), f=2)
    assert [served(table, 10 + i, i, (5, 9)) for i in range(2)] == [[], []]
    assert table.score(5) == 1.0
    assert served(table, 12, 2, (5, 9)) == []  # one may be an accident
    assert table.score(5) == pytest.approx(0.75)
    assert table.reasons(5) == ("a result of it was rejected by more than 2 peers",)
    assert served(table, 13, 3, (5, 9)) == []  # it is known
    assert table.score(5) == pytest.approx(0.75)
    told = [
        [change for i in range(3) for change in served(table, at + i, i, (5, at - 1))]
        for at in range(20, 70, 10)
    ]
    assert told == [[], [(5, "suspected")], [], [], [(5, "quarantined")]]
    assert not table.may_serve(5)
    assert table.reasons(5) == ("6 of its results were rejected by more than 2 peers",)


def test_who_has_a_result_refused_now_and_then_is_not_suspected() -> None:
    """Near its optimum a swarm of six refuses one of 200 results of a server; this is one of ten,
    and always by two."""
    table = TrustTable(TrustSettings(), f=1)
    for round_id in range(10, 4010):
        charged = [(5, round_id - 1)] if round_id % 60 == 0 else []
        assert served(table, round_id, round_id % 6, *charged) == []
        assert served(table, round_id, (round_id + 1) % 6, *charged) == []
    assert table.score(5) > 0.7


def test_f_liars_can_charge_whom_and_as_often_as_they_like() -> None:
    table = TrustTable(TrustSettings(), f=2)
    for round_id in range(100):
        charged = [(5, at) for at in range(max(0, round_id - 8), round_id)]
        assert served(table, round_id, 6 + round_id % 2, *charged) == []
    assert table.score(5) == 1.0
    # Nor can they push out what honest peers have begun to say.
    for accuser in (0, 6, 1):
        served(table, 100, accuser, (4, 99))
    assert table.score(4) == pytest.approx(0.75)


def test_nobody_charges_itself_and_no_charge_is_kept_for_ever() -> None:
    table = TrustTable(TrustSettings(), f=1)
    served(table, 10, 5, (5, 9))
    served(table, 11, 0, (5, 9))
    assert table.score(5) == 1.0
    served(table, 500, 1, (5, 9))
    assert table.score(5) == 1.0
    served(table, 501, 1, (5, 500))
    served(table, 700, 0, (5, 699))
    assert [at for at, _ in table.pack()[0][0][-1]] == [699]


def test_trust_in_a_server_comes_back_with_results_that_are_taken() -> None:
    table = TrustTable(TrustSettings(), f=0)
    served(table, 10, 0, (5, 9))
    before = table.score(5)
    assert before == pytest.approx(0.75)
    for round_id in range(11, 15):
        served(table, round_id, 5)
    assert table.score(5) == pytest.approx(1.0 - 0.25 * 0.96**4)


def test_charges_travel_with_the_table() -> None:
    table = TrustTable(TrustSettings(), f=2)
    for accuser in range(2):
        served(table, 10, accuser, (5, 9))
    other = TrustTable(TrustSettings(), f=2)
    other.unpack(table.pack())
    served(other, 12, 3, (5, 9))
    assert other.score(5) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "accusations",
    [3, ((1,),), ((-1, ()),), ((1, (True,)),), ((1, 2),), tuple((i, ()) for i in range(17))],
)
def test_what_are_no_charges_is_refused(accusations: object) -> None:
    with pytest.raises(ValueError, match="trust"):
        TrustTable(TrustSettings(), f=2).unpack(
            (((5, 1.0, False, "normal", 0, (), 1.0, 0, 0, accusations),), 0, 0, 0)
        )
