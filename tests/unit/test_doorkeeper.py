"""What doors agree on: which entry counts, who gets which id, and what becomes of two that were given the same."""

from __future__ import annotations

import pytest

from gossip.launch.registry.doorkeeper import (
    CLAIM_S,
    CLAIMED,
    DOORS_MAX,
    GRANT_S,
    JUMP_MAX,
    LEASE_S,
    LET_IN,
    LISTENING,
    UNMET_MAX,
    DoorEntry,
    Doorkeeper,
    Entry,
    Proposal,
)
from gossip.run.rendezvous import Seed

A, B, C, JOINER = b"door---a", b"door---b", b"door---c", b"joiner--"
FIRST, IDS = 2, 6


def entry_of(door: bytes) -> DoorEntry:
    return DoorEntry(door, f"10.0.0.{door[-1]}:7000", door)


def keeper(door: bytes = A, own: tuple[int, ...] = (), ids: int = IDS) -> Doorkeeper:
    return Doorkeeper(entry_of(door), dict.fromkeys(own, 0), FIRST, ids)


def seed(peer: int, incarnation: int = 0) -> Seed:
    return Seed(peer, f"tcp://10.0.0.1:{peer}1", f"tcp://10.0.0.1:{peer}2", incarnation)


def exchange(*keepers: Doorkeeper) -> None:
    for one in keepers:
        for other in keepers:
            other.merge(list(one.entries.values()), list(one.doors.values()))


def give(keepers: list[Doorkeeper], at: Doorkeeper, owner: bytes, count: int = 1, now: float = 0.0) -> list[int]:
    """One door gives ids away after asking the others."""
    proposal = at.propose(owner, count, now)
    assert proposal is not None
    assert at.agreed(proposal, [other.consider(proposal.entries, now) for other in keepers if other is not at])
    news = at.give(proposal, now)
    return [entry.peer for entry in news.entries]


def test_the_later_life_counts_and_an_end_is_kept() -> None:
    door = keeper(own=(0,))
    assert door.publish(seed(0, 0)).entries[0].progress == LISTENING
    assert door.publish(seed(0, 1)).entries[0].incarnation == 1
    assert not door.publish(seed(0, 0)), "an older life is no news"
    ended = door.publish(Seed(0, "", "", 1, ended=True))
    assert ended.entries[0].ended
    assert not door.merge([Entry(0, 1, LISTENING, A, False, "tcp://late:1", "tcp://late:2")])
    assert door.entries[0].ended


def test_how_far_a_peer_has_come_is_not_forgotten_at_its_end() -> None:
    door = keeper(own=(0,))
    door.publish(seed(0), let_in=True)
    door.publish(seed(0))
    door.publish(Seed(0, "", "", 0, ended=True))
    assert (door.entries[0].progress, door.entries[0].ended) == (LET_IN, True)


def test_a_file_about_somebody_elses_peer_is_not_believed_against_its_door() -> None:
    door, other = keeper(), keeper(B, own=(1,))
    other.publish(seed(1), let_in=True)
    exchange(door, other)
    assert not door.publish(Seed(1, "tcp://stale:1", "tcp://stale:2", 0))
    assert door.entries[1].owner == B


def test_ids_that_nobody_has_had_are_given_first_and_then_those_of_the_ended() -> None:
    door = keeper(own=(0, 1))
    assert [give([door], door, JOINER, now=0.0)[0] for _ in range(4)] == [2, 3, 4, 5]
    assert door.propose(JOINER, 1, 0.0) is None
    door.publish(seed(1, 3))
    door.publish(Seed(1, "", "", 3, ended=True))
    given = door.propose(JOINER, 1, 0.0)
    assert given is not None
    assert (given.entries[0].peer, given.entries[0].incarnation) == (1, 4)


def test_what_is_about_to_be_given_away_is_not_offered_again() -> None:
    door = keeper()
    first, second = door.propose(JOINER, 1, 0.0), door.propose(b"another-", 1, 0.0)
    assert first is not None
    assert second is not None
    assert first.entries[0].peer != second.entries[0].peer


def proposals(one: Doorkeeper, other: Doorkeeper) -> tuple[Proposal, Proposal]:
    first, second = one.propose(b"joiner-1", 1, 0.0), other.propose(b"joiner-2", 1, 0.0)
    assert first is not None
    assert second is not None
    assert first.entries[0].peer == second.entries[0].peer
    return first, second


def test_of_two_doors_that_want_the_same_id_at_once_one_yields() -> None:
    for a, b in ((keeper(A), keeper(B)), (keeper(B), keeper(A))):
        first, second = proposals(a, b)
        to_first, to_second = b.consider(first.entries, 0.0), a.consider(second.entries, 0.0)
        assert sorted([a.agreed(first, [to_first]), b.agreed(second, [to_second])]) == [False, True]


def test_a_door_between_two_that_do_not_know_each_other_grants_an_id_once() -> None:
    a, b, between = keeper(A), keeper(B), keeper(C)
    first, second = proposals(a, b)
    to_first, to_second = between.consider(first.entries, 0.0), between.consider(second.entries, 0.0)
    assert a.agreed(first, [to_first])
    assert not b.agreed(second, [to_second])
    assert between.consider(second.entries, GRANT_S) == [2], "who was granted it and has not taken it by then does not"


def test_the_same_question_again_gets_the_same_answer() -> None:
    a, b = keeper(A), keeper(B)
    proposal = a.propose(JOINER, 1, 0.0)
    assert proposal is not None
    assert b.consider(proposal.entries, 0.0) == b.consider(proposal.entries, 1.0) == [2]


def test_an_id_that_somebody_has_is_not_granted_and_nor_is_one_of_the_first_peers() -> None:
    door = keeper(own=(0,))
    assert door.consider([Entry(0, 1, CLAIMED, B), Entry(1, 0, CLAIMED, B), Entry(IDS, 0, CLAIMED, B)], 0.0) == []
    door.publish(Seed(0, "", "", 0, ended=True))
    assert door.consider([Entry(0, 0, CLAIMED, B)], 0.0) == []
    assert door.consider([Entry(0, 1, CLAIMED, B)], 0.0) == [0]


def given_twice() -> tuple[Doorkeeper, Doorkeeper]:
    """Two launchers whose peer has the same id, given by doors that could not reach each other."""
    one, other = keeper(b"aaaaaaaa", own=(2,)), keeper(b"zzzzzzzz", own=(2,))
    one.publish(seed(2))
    other.publish(seed(2))
    return one, other


def test_of_two_with_the_same_id_one_has_lost_it_when_they_meet() -> None:
    one, other = given_twice()
    assert one.merge(list(other.entries.values())).lost == (2,)
    assert not other.merge(list(one.entries.values())).lost
    assert (one.own, other.own) == (set(), {2})
    exchange(one, other)
    assert one.digest() != other.digest() or one.entries == other.entries


def test_who_has_been_let_in_keeps_the_id() -> None:
    one, other = given_twice()
    one.publish(seed(2), let_in=True)
    assert not one.merge(list(other.entries.values())).lost
    assert other.merge(list(one.entries.values())).lost == (2,)


def test_the_end_of_who_has_lost_an_id_is_not_the_end_of_who_has_it() -> None:
    one, other = given_twice()
    one.merge(list(other.entries.values()))
    assert not one.publish(Seed(2, "", "", 0, ended=True)), "it speaks of its own life, and that counts no more"
    assert not one.entries[2].ended
    assert one.entries[2].owner == b"zzzzzzzz"


def test_an_id_goes_back_when_its_launcher_never_opens_a_door() -> None:
    door = keeper()
    give([door], door, JOINER)
    assert not door.expire(LEASE_S - 1)
    assert door.expire(LEASE_S).entries[0].ended
    assert door.propose(b"another-", 4, LEASE_S + 1) is not None


def test_an_id_stays_with_a_launcher_that_has_come() -> None:
    door = keeper()
    give([door], door, JOINER)
    door.merge([], [entry_of(JOINER)])
    assert not door.expire(LEASE_S)
    assert not door.entries[2].ended


def test_ids_that_came_with_a_lost_answer_go_back() -> None:
    door, joiner = keeper(), keeper(JOINER, own=(3,))
    give([door], door, JOINER)  # id 2, of which the joiner never hears
    exchange(door, joiner)
    assert door.entries[2].ended
    assert not door.entries[3].ended


def test_a_door_takes_ids_for_its_own_launcher() -> None:
    door = keeper()
    assert give([door], door, A) == [2]
    assert door.publish(seed(2)).entries[0].owner == A
    assert not door.expire(LEASE_S)


def test_the_first_peers_are_missing_until_they_have_an_address_or_have_ended() -> None:
    door = keeper(own=(0,))
    assert door.missing() == [0, 1]
    door.publish(seed(0))
    assert door.missing() == [1]
    door.publish(Seed(1, "", "", 0, ended=True))
    assert door.missing() == []


def test_a_run_is_over_when_all_who_came_have_ended() -> None:
    door = keeper(own=(0,))
    assert keeper().state == door.state == "not begun"
    door.publish(seed(0))
    assert door.state == "running"
    door.publish(Seed(0, "", "", 0, ended=True))
    assert door.state == "over"


def test_ids_beyond_the_room_and_doors_beyond_the_limit_are_not_taken() -> None:
    door = keeper()
    assert not door.merge([Entry(IDS, 0, LISTENING, B), Entry(-1, 0, LISTENING, B)])
    doors = [DoorEntry(number.to_bytes(8, "big"), f"10.0.0.1:{number}", B) for number in range(DOORS_MAX + 10)]
    door.merge([], doors)
    assert len(door.doors) == DOORS_MAX
    door.merge([], [DoorEntry(doors[0].door, doors[0].address, B, ended=True)])
    assert door.merge([], [doors[-1]]).doors, "the place of one that has closed is free"
    assert len(door.doors) == DOORS_MAX


def test_nobody_tells_a_door_about_itself() -> None:
    door = keeper()
    assert not door.merge([], [DoorEntry(A, "10.6.6.6:1", A, ended=True)])
    assert door.doors[A] == entry_of(A)


def test_a_door_that_has_all_answers_still_yields_to_one_that_it_did_not_ask() -> None:
    a, stranger = keeper(A), keeper(B)
    first, second = a.propose(b"joiner-1", 1, 0.0), stranger.propose(b"joiner-2", 1, 0.0)
    assert first is not None
    assert second is not None
    assert a.consider(second.entries, 0.0) == [2]
    assert not a.agreed(first, []), "it has granted it to the other"


def test_what_was_given_away_elsewhere_in_the_meantime_is_not_given_away() -> None:
    door = keeper()
    proposal = door.propose(JOINER, 1, 0.0)
    assert proposal is not None
    door.merge([Entry(2, 0, CLAIMED, b"another-")])
    assert not door.agreed(proposal, [])


# --- who is believed ------------------------------------------------------------------------------------------------------


def all_answer(door: bytes) -> bool:
    return True


def nobody_answers(door: bytes) -> bool:
    return False


def met(own: tuple[int, ...] = ()) -> Doorkeeper:
    """Door A, which has heard of peer 1 and of newcomer 3 from their door B itself."""
    door, other = keeper(A, own), keeper(B, own=(1, 3))
    other.publish(seed(1))
    other.publish(seed(3), let_in=True)
    assert door.meet(other.local)
    door.hear(other.entries.values(), [other.local], B, all_answer)
    assert {1, 3} <= door.entries.keys()
    return door


LIES = [
    Entry(1, 0, LET_IN, B, ended=True),
    Entry(1, 0, LET_IN, B, False, "tcp://10.6.6.6:1", "tcp://10.6.6.6:2", "k" * 40),
    Entry(1, 9, LISTENING, B, False, "tcp://10.6.6.6:1"),
    Entry(1, 9, LISTENING, C, False, "tcp://10.6.6.6:1"),
    Entry(1, 9, LISTENING, b"", False, "tcp://10.6.6.6:1"),
]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("source", [b"", C])
def test_what_others_say_of_a_peer_whose_door_answers_is_not_believed(lie: Entry, source: bytes) -> None:
    door = met()
    before = door.entries[1]
    assert not door.hear([lie], [], source, all_answer).entries
    assert door.entries[1] == before


@pytest.mark.parametrize("lie", LIES)
def test_what_others_say_of_a_peer_whose_door_does_not_answer_is(lie: Entry) -> None:
    door = met()
    assert door.hear([lie], [], b"", nobody_answers).entries == (lie,)


def test_a_door_is_believed_about_its_own_peers_before_all_who_spoke_of_them_first() -> None:
    door, true = keeper(), Entry(1, 0, LISTENING, B, False, "tcp://10.0.0.1:1")
    for lie in LIES:
        door.hear([lie], [], b"", all_answer)
    assert door.hear([true], [], B, all_answer).entries == (true,)
    assert not door.hear(LIES, [], C, all_answer)
    later = Entry(1, 1, CLAIMED, B)
    assert door.hear([later], [], B, all_answer).entries == (later,)


def test_of_its_own_peers_a_door_believes_nobody() -> None:
    door = keeper(own=(0, 2))
    door.publish(seed(0))
    door.publish(seed(2))
    lies = [Entry(0, 0, LET_IN, A, ended=True), Entry(0, 3, LET_IN, C), Entry(0, 0, LET_IN, b"zzzzzzzz")]
    lies += [Entry(2, 0, LET_IN, A, ended=True), Entry(2, 3, LET_IN, C)]
    for source in (b"", C, b"zzzzzzzz"):
        assert not door.hear(lies, [], source, all_answer)
    assert not door.hear([Entry(2, 0, LET_IN, b"zzzzzzzz")], [], b"", all_answer), "it has to say so itself"
    assert door.hear([Entry(2, 0, LET_IN, b"zzzzzzzz")], [], b"zzzzzzzz", all_answer).lost == (2,)


def test_who_has_ended_may_be_followed_by_anybody_but_not_by_a_life_that_leaves_no_room_for_the_next() -> None:
    door = met()
    door.hear([Entry(3, 0, LET_IN, B, ended=True)], [], B, all_answer)
    assert door.entries[3].ended
    for much in (JUMP_MAX + 1, 2**63 - 1):
        assert not door.hear([Entry(3, much, CLAIMED, C), Entry(4, much, CLAIMED, C)], [], C, all_answer)
    assert door.hear([Entry(3, 1, CLAIMED, JOINER)], [], b"", all_answer).entries


def test_an_id_that_was_claimed_and_is_not_used_goes_back_whoever_has_claimed_it() -> None:
    door = keeper()
    door.meet(entry_of(C))
    door.hear([Entry(peer, 0, CLAIMED, C) for peer in range(FIRST, IDS)], [], C, all_answer)
    assert door.free(0.0) == []
    assert not door.expire(0.0)
    assert not door.expire(CLAIM_S - 1)
    assert {entry.peer for entry in door.expire(CLAIM_S).entries} == set(range(FIRST, IDS))
    assert door.free(CLAIM_S) == list(range(FIRST, IDS))


def test_who_has_claimed_an_id_and_uses_it_keeps_it() -> None:
    door = keeper()
    door.hear([Entry(2, 0, CLAIMED, C)], [], C, all_answer)
    door.expire(0.0)
    door.hear([Entry(2, 0, LISTENING, C, False, "tcp://10.0.0.3:1")], [], C, all_answer)
    assert not door.expire(CLAIM_S)


def test_a_door_keeps_its_address_and_only_who_visits_it_finds_it_closed() -> None:
    door = met()
    (there,) = [other for other in door.doors.values() if other.door == B]
    moved, closed = DoorEntry(B, "10.6.6.6:1", B), DoorEntry(B, there.address, B, ended=True)
    assert not door.meet(moved), "somebody else answers under its number"
    heard = door.hear([], [moved, closed], b"", all_answer)
    assert (heard.doors, heard.closed) == ((), (closed,))
    assert door.doors[B] == there
    door.forget(B)
    assert door.doors[B].ended
    assert door.hear([], [there], b"", all_answer).doors == (there,), "it lives after all"


def test_doors_that_are_made_up_fill_little_and_nobody_is_told_of_them() -> None:
    door = met()
    made_up = [DoorEntry(number.to_bytes(8, "big"), f"10.6.6.6:{number}", C) for number in range(10 * UNMET_MAX)]
    door.hear([], made_up, C, all_answer)
    assert len(door.doors) <= UNMET_MAX + 3
    assert {other.door for other in door.told} == {A, B}
    door.forget(made_up[0].door)
    assert made_up[0].door not in door.doors
