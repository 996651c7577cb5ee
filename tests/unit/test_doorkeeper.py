"""What doors agree on: which entry counts, who gets which id,
and what becomes of two that were given the same."""

from __future__ import annotations

import pytest

from gossip.launch.registry.registry import (
    CLAIM_S,
    CLAIMED,
    GRANT_S,
    JOIN_SERVERS_MAX,
    JUMP_MAX,
    LEASE_S,
    LET_IN,
    LISTENING,
    UNMET_MAX,
    IdProposal,
    PeerEntry,
    Registry,
    ServerEntry,
)
from gossip.run.rendezvous import Seed

A, B, C, JOINER = b"door---a", b"door---b", b"door---c", b"joiner--"
FIRST, IDS = 2, 6


def entry_of(join_server: bytes) -> ServerEntry:
    return ServerEntry(join_server, f"10.0.0.{join_server[-1]}:7000", join_server)


def keeper(join_server: bytes = A, own: tuple[int, ...] = (), ids: int = IDS) -> Registry:
    return Registry(entry_of(join_server), dict.fromkeys(own, 0), FIRST, ids)


def seed(peer: int, incarnation: int = 0) -> Seed:
    return Seed(peer, f"tcp://10.0.0.1:{peer}1", f"tcp://10.0.0.1:{peer}2", incarnation)


def exchange(*keepers: Registry) -> None:
    for one in keepers:
        for other in keepers:
            other.merge(one.entries.values())
            for join_server in one.join_servers.values():
                other.meet(join_server)


def give(
    keepers: list[Registry], at: Registry, owner: bytes, count: int = 1, now: float = 0.0
) -> list[int]:
    """One door gives ids away after asking the others."""
    proposal = at.propose(owner, count, now)
    assert proposal is not None
    assert at.agreed(
        proposal, [other.consider(proposal, now) for other in keepers if other is not at]
    )
    news = at.assign_ids(proposal, now)
    return [entry.peer for entry in news.entries]


def test_the_later_life_counts_and_an_end_is_kept() -> None:
    join_server = keeper(own=(0,))
    assert join_server.publish(seed(0, 0)).entries[0].progress == LISTENING
    assert join_server.publish(seed(0, 1)).entries[0].incarnation == 1
    assert not join_server.publish(seed(0, 0)), "an older life is no news"
    ended = join_server.publish(Seed(0, "", "", 1, ended=True))
    assert ended.entries[0].ended
    assert not join_server.merge(
        [PeerEntry(0, 1, LISTENING, A, False, "tcp://late:1", "tcp://late:2")]
    )
    assert join_server.entries[0].ended


def test_how_far_a_peer_has_come_is_not_forgotten_at_its_end() -> None:
    join_server = keeper(own=(0,))
    join_server.publish(seed(0), let_in=True)
    join_server.publish(seed(0))
    join_server.publish(Seed(0, "", "", 0, ended=True))
    assert (join_server.entries[0].progress, join_server.entries[0].ended) == (LET_IN, True)


def test_a_file_about_somebody_elses_peer_is_not_believed_against_its_door() -> None:
    join_server, other = keeper(), keeper(B, own=(1,))
    other.publish(seed(1), let_in=True)
    exchange(join_server, other)
    assert not join_server.publish(Seed(1, "tcp://stale:1", "tcp://stale:2", 0))
    assert join_server.entries[1].owner == B


def test_ids_that_nobody_has_had_are_given_first_and_then_those_of_the_ended() -> None:
    join_server = keeper(own=(0, 1))
    assert [give([join_server], join_server, JOINER, now=0.0)[0] for _ in range(4)] == [2, 3, 4, 5]
    assert join_server.propose(JOINER, 1, 0.0) is None
    join_server.publish(seed(1, 3))
    join_server.publish(Seed(1, "", "", 3, ended=True))
    given = join_server.propose(JOINER, 1, 0.0)
    assert given is not None
    assert (given[0].peer, given[0].incarnation) == (1, 4)


def test_what_is_about_to_be_given_away_is_not_offered_again() -> None:
    join_server = keeper()
    first, second = join_server.propose(JOINER, 1, 0.0), join_server.propose(b"another-", 1, 0.0)
    assert first is not None
    assert second is not None
    assert first[0].peer != second[0].peer


def proposals(one: Registry, other: Registry) -> tuple[IdProposal, IdProposal]:
    first, second = one.propose(b"joiner-1", 1, 0.0), other.propose(b"joiner-2", 1, 0.0)
    assert first is not None
    assert second is not None
    assert first[0].peer == second[0].peer
    return first, second


def test_of_two_doors_that_want_the_same_id_at_once_one_yields() -> None:
    for a, b in ((keeper(A), keeper(B)), (keeper(B), keeper(A))):
        first, second = proposals(a, b)
        to_first, to_second = b.consider(first, 0.0), a.consider(second, 0.0)
        assert sorted([a.agreed(first, [to_first]), b.agreed(second, [to_second])]) == [False, True]


def test_a_door_between_two_that_do_not_know_each_other_grants_an_id_once() -> None:
    a, b, between = keeper(A), keeper(B), keeper(C)
    first, second = proposals(a, b)
    to_first, to_second = (
        between.consider(first, 0.0),
        between.consider(second, 0.0),
    )
    assert a.agreed(first, [to_first])
    assert not b.agreed(second, [to_second])
    assert between.consider(second, GRANT_S) == [2], (
        "who was granted it and has not taken it by then does not"
    )


def test_the_same_question_again_gets_the_same_answer() -> None:
    a, b = keeper(A), keeper(B)
    proposal = a.propose(JOINER, 1, 0.0)
    assert proposal is not None
    assert b.consider(proposal, 0.0) == b.consider(proposal, 1.0) == [2]


def test_an_id_that_somebody_has_is_not_granted_and_nor_is_one_of_the_first_peers() -> None:
    join_server = keeper(own=(0,))
    assert (
        join_server.consider(
            [
                PeerEntry(0, 1, CLAIMED, B),
                PeerEntry(1, 0, CLAIMED, B),
                PeerEntry(IDS, 0, CLAIMED, B),
            ],
            0.0,
        )
        == []
    )
    join_server.publish(Seed(0, "", "", 0, ended=True))
    assert join_server.consider([PeerEntry(0, 0, CLAIMED, B)], 0.0) == []
    assert join_server.consider([PeerEntry(0, 1, CLAIMED, B)], 0.0) == [0]


def given_twice() -> tuple[Registry, Registry]:
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
    assert not one.publish(Seed(2, "", "", 0, ended=True)), (
        "it speaks of its own life, and that counts no more"
    )
    assert not one.entries[2].ended
    assert one.entries[2].owner == b"zzzzzzzz"


def test_an_id_goes_back_when_its_launcher_never_opens_a_door() -> None:
    join_server = keeper()
    give([join_server], join_server, JOINER)
    assert not join_server.expire(LEASE_S - 1)
    assert join_server.expire(LEASE_S).entries[0].ended
    assert join_server.propose(b"another-", 4, LEASE_S + 1) is not None


def test_an_id_stays_with_a_launcher_that_has_come() -> None:
    join_server = keeper()
    give([join_server], join_server, JOINER)
    join_server.meet(entry_of(JOINER))
    assert not join_server.expire(LEASE_S)
    assert not join_server.entries[2].ended


def test_ids_that_came_with_a_lost_answer_go_back() -> None:
    join_server, joiner = keeper(), keeper(JOINER, own=(3,))
    give([join_server], join_server, JOINER)  # id 2, of which the joiner never hears
    exchange(join_server, joiner)
    assert join_server.entries[2].ended
    assert not join_server.entries[3].ended


def test_a_door_takes_ids_for_its_own_launcher() -> None:
    join_server = keeper()
    assert give([join_server], join_server, A) == [2]
    assert join_server.publish(seed(2)).entries[0].owner == A
    assert not join_server.expire(LEASE_S)


def test_the_first_peers_are_missing_until_they_have_an_address_or_have_ended() -> None:
    join_server = keeper(own=(0,))
    assert join_server.missing() == [0, 1]
    join_server.publish(seed(0))
    assert join_server.missing() == [1]
    join_server.publish(Seed(1, "", "", 0, ended=True))
    assert join_server.missing() == []


def test_a_run_is_over_when_all_who_came_have_ended() -> None:
    join_server = keeper(own=(0,))
    assert keeper().state == join_server.state == "not begun"
    join_server.publish(seed(0))
    assert join_server.state == "running"
    join_server.publish(Seed(0, "", "", 0, ended=True))
    assert join_server.state == "over"


def test_ids_beyond_the_room_and_doors_beyond_the_limit_are_not_taken() -> None:
    join_server = keeper()
    assert not join_server.merge([PeerEntry(IDS, 0, LISTENING, B), PeerEntry(-1, 0, LISTENING, B)])
    join_servers = [
        ServerEntry(number.to_bytes(8, "big"), f"10.0.0.1:{number}", B)
        for number in range(JOIN_SERVERS_MAX + 10)
    ]
    for other in join_servers:
        join_server.meet(other)
    assert len(join_server.join_servers) == JOIN_SERVERS_MAX
    join_server.forget(join_servers[0].join_server)
    assert join_server.meet(join_servers[-1]), "the place of one that has closed is free"
    assert len(join_server.join_servers) == JOIN_SERVERS_MAX


def test_nobody_tells_a_door_about_itself() -> None:
    join_server = keeper()
    lie = ServerEntry(A, "10.6.6.6:1", A, ended=True)
    assert not join_server.merge_claims([], [lie], b"", all_answer)
    assert join_server.join_servers[A] == entry_of(A)


def test_a_door_that_has_all_answers_still_yields_to_one_that_it_did_not_ask() -> None:
    a, stranger = keeper(A), keeper(B)
    first, second = a.propose(b"joiner-1", 1, 0.0), stranger.propose(b"joiner-2", 1, 0.0)
    assert first is not None
    assert second is not None
    assert a.consider(second, 0.0) == [2]
    assert not a.agreed(first, []), "it has granted it to the other"


def test_what_was_given_away_elsewhere_in_the_meantime_is_not_given_away() -> None:
    join_server = keeper()
    proposal = join_server.propose(JOINER, 1, 0.0)
    assert proposal is not None
    join_server.merge([PeerEntry(2, 0, CLAIMED, b"another-")])
    assert not join_server.agreed(proposal, [])


# --- who is believed ------------------------------------------------------------------------------


def all_answer(join_server: bytes) -> bool:
    return True


def nobody_answers(join_server: bytes) -> bool:
    return False


def met(own: tuple[int, ...] = ()) -> Registry:
    """Door A, which has heard of peer 1 and of newcomer 3 from their door B itself."""
    join_server, other = keeper(A, own), keeper(B, own=(1, 3))
    other.publish(seed(1))
    other.publish(seed(3), let_in=True)
    assert join_server.meet(other.local)
    join_server.merge_claims(other.entries.values(), [other.local], B, all_answer)
    assert {1, 3} <= join_server.entries.keys()
    return join_server


LIES = [
    PeerEntry(1, 0, LET_IN, B, ended=True),
    PeerEntry(1, 0, LET_IN, B, False, "tcp://10.6.6.6:1", "tcp://10.6.6.6:2", "k" * 40),
    PeerEntry(1, 9, LISTENING, B, False, "tcp://10.6.6.6:1"),
    PeerEntry(1, 9, LISTENING, C, False, "tcp://10.6.6.6:1"),
    PeerEntry(1, 9, LISTENING, b"", False, "tcp://10.6.6.6:1"),
]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("source", [b"", C])
def test_what_others_say_of_a_peer_with_an_open_door_is_void(lie: PeerEntry, source: bytes) -> None:
    join_server = met()
    before = join_server.entries[1]
    assert not join_server.merge_claims([lie], [], source, all_answer).entries
    assert join_server.entries[1] == before


@pytest.mark.parametrize("lie", LIES)
def test_what_others_say_of_a_peer_whose_door_does_not_answer_is(lie: PeerEntry) -> None:
    join_server = met()
    assert join_server.merge_claims([lie], [], b"", nobody_answers).entries == (lie,)


def test_a_door_is_believed_about_its_own_peers_before_all_who_spoke_of_them_first() -> None:
    join_server, true = keeper(), PeerEntry(1, 0, LISTENING, B, False, "tcp://10.0.0.1:1")
    for lie in LIES:
        join_server.merge_claims([lie], [], b"", all_answer)
    assert join_server.merge_claims([true], [], B, all_answer).entries == (true,)
    assert not join_server.merge_claims(LIES, [], C, all_answer)
    later = PeerEntry(1, 1, CLAIMED, B)
    assert join_server.merge_claims([later], [], B, all_answer).entries == (later,)


def test_of_its_own_peers_a_door_believes_nobody() -> None:
    join_server = keeper(own=(0, 2))
    join_server.publish(seed(0))
    join_server.publish(seed(2))
    lies = [
        PeerEntry(0, 0, LET_IN, A, ended=True),
        PeerEntry(0, 3, LET_IN, C),
        PeerEntry(0, 0, LET_IN, b"zzzzzzzz"),
    ]
    lies += [PeerEntry(2, 0, LET_IN, A, ended=True), PeerEntry(2, 3, LET_IN, C)]
    for source in (b"", C, b"zzzzzzzz"):
        assert not join_server.merge_claims(lies, [], source, all_answer)
    assert not join_server.merge_claims(
        [PeerEntry(2, 0, LET_IN, b"zzzzzzzz")], [], b"", all_answer
    ), "it has to say so itself"
    assert join_server.merge_claims(
        [PeerEntry(2, 0, LET_IN, b"zzzzzzzz")], [], b"zzzzzzzz", all_answer
    ).lost == (2,)


def test_who_has_ended_may_be_followed_by_any_life_that_leaves_room_for_the_next():
    join_server = met()
    join_server.merge_claims([PeerEntry(3, 0, LET_IN, B, ended=True)], [], B, all_answer)
    assert join_server.entries[3].ended
    for much in (JUMP_MAX + 1, 2**63 - 1):
        assert not join_server.merge_claims(
            [PeerEntry(3, much, CLAIMED, C), PeerEntry(4, much, CLAIMED, C)], [], C, all_answer
        )
    assert join_server.merge_claims([PeerEntry(3, 1, CLAIMED, JOINER)], [], b"", all_answer).entries


def test_an_id_that_was_claimed_and_is_not_used_goes_back_whoever_has_claimed_it() -> None:
    join_server = keeper()
    join_server.meet(entry_of(C))
    join_server.merge_claims(
        [PeerEntry(peer, 0, CLAIMED, C) for peer in range(FIRST, IDS)], [], C, all_answer
    )
    assert join_server.free(0.0) == []
    assert not join_server.expire(0.0)
    assert not join_server.expire(CLAIM_S - 1)
    assert {entry.peer for entry in join_server.expire(CLAIM_S).entries} == set(range(FIRST, IDS))
    assert join_server.free(CLAIM_S) == list(range(FIRST, IDS))


def test_who_has_claimed_an_id_and_uses_it_keeps_it() -> None:
    join_server = keeper()
    join_server.merge_claims([PeerEntry(2, 0, CLAIMED, C)], [], C, all_answer)
    join_server.expire(0.0)
    join_server.merge_claims(
        [PeerEntry(2, 0, LISTENING, C, False, "tcp://10.0.0.3:1")], [], C, all_answer
    )
    assert not join_server.expire(CLAIM_S)


def test_a_door_keeps_its_address_and_only_who_visits_it_finds_it_closed() -> None:
    join_server = met()
    (there,) = [other for other in join_server.join_servers.values() if other.join_server == B]
    moved, closed = ServerEntry(B, "10.6.6.6:1", B), ServerEntry(B, there.address, B, ended=True)
    assert not join_server.meet(moved), "somebody else answers under its number"
    heard = join_server.merge_claims([], [moved, closed], b"", all_answer)
    assert (heard.join_servers, heard.closed) == ((), (closed,))
    assert join_server.join_servers[B] == there
    join_server.forget(B)
    assert join_server.join_servers[B].ended
    assert join_server.merge_claims([], [there], b"", all_answer).join_servers == (there,), (
        "it lives after all"
    )


def test_doors_that_are_made_up_fill_little_and_nobody_is_told_of_them() -> None:
    join_server = met()
    made_up = [
        ServerEntry(number.to_bytes(8, "big"), f"10.6.6.6:{number}", C)
        for number in range(10 * UNMET_MAX)
    ]
    join_server.merge_claims([], made_up, C, all_answer)
    assert len(join_server.join_servers) <= UNMET_MAX + 3
    assert {other.join_server for other in join_server.announced_servers} == {A, B}
    join_server.forget(made_up[0].join_server)
    assert made_up[0].join_server not in join_server.join_servers
