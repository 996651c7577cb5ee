"""Doors that have exchanged what they know know the same, in whatever order they heard it; and give
no id away twice."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given, settings, strategies as st

from gossip.launch.registry.registry import PeerEntry, Registry, ServerEntry
from gossip.run.rendezvous import Seed

IDS, FIRST = 5, 2
NAMES = [bytes([letter]) * 8 for letter in b"abc"]
ENTRIES = st.builds(
    PeerEntry,
    peer=st.integers(0, IDS - 1),
    incarnation=st.integers(0, 3),
    progress=st.sampled_from([0, 1, 2]),
    owner=st.sampled_from([b"", b"xxxxxxxx", b"yyyyyyyy"]),
    ended=st.booleans(),
    control=st.sampled_from(["", "tcp://10.0.0.1:1", "tcp://10.0.0.2:1"]),
)


def keepers() -> list[Registry]:
    return [
        Registry(ServerEntry(name, f"10.0.1.{name[0]}:1", name), {}, FIRST, IDS) for name in NAMES
    ]


@given(
    st.lists(st.tuples(st.integers(0, 2), ENTRIES), max_size=30),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=10),
    st.permutations(range(3)),
)
def test_after_all_have_exchanged_all_know_the_same(
    heard: list[tuple[int, PeerEntry]],
    meetings: list[tuple[int, int]],
    order: list[int],
) -> None:
    join_servers = acquainted()
    for number, (at, what) in enumerate(heard):
        join_servers[at].merge([what])
        if number < len(meetings):
            one, other = (join_servers[place] for place in meetings[number])
            other.merge(one.entries.values())
    for _ in range(2):  # what one tells all in the first turn is all there is
        for at in order:
            for join_server in join_servers:
                join_server.merge(join_servers[at].entries.values())
    assert join_servers[0].entries == join_servers[1].entries == join_servers[2].entries
    assert len({join_server.digest() for join_server in join_servers}) == 1
    told = sorted((entry for _, entry in heard), key=lambda entry: entry.order)
    best = {entry.peer: entry for entry in told}
    assert join_servers[0].entries == best, (
        "the greatest entry for each id, and nothing but what was heard"
    )


def acquainted() -> list[Registry]:
    join_servers = keepers()
    for one, other in product(join_servers, repeat=2):
        other.meet(one.local)
    return join_servers


@settings(max_examples=100)
@given(st.data())
def test_doors_that_reach_each_other_give_no_life_of_an_id_away_twice(data: st.DataObject) -> None:
    """Questions and answers of several doors in any order; those that give something away tell the
    others at some time."""
    join_servers = acquainted()
    running: list[dict[str, object]] = []
    given_away: list[tuple[int, int]] = []
    untold: list[tuple[int, tuple[PeerEntry, ...]]] = []
    joiner = 0
    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(["propose", "ask", "finish", "tell"]))
        if what == "propose":
            at = data.draw(st.integers(0, 2))
            joiner += 1
            proposal = join_servers[at].propose(
                joiner.to_bytes(8, "big"), data.draw(st.integers(1, 2)), 0.0
            )
            if proposal is not None:
                running.append(
                    {
                        "at": at,
                        "proposal": proposal,
                        "answers": [],
                        "left": [n for n in range(3) if n != at],
                    }
                )
        elif what == "tell" and untold:
            to, entries = untold.pop(data.draw(st.integers(0, len(untold) - 1)))
            join_servers[to].merge(entries)
        elif running:
            one = running[data.draw(st.integers(0, len(running) - 1))]
            left, proposal = one["left"], one["proposal"]
            if what == "ask" and left:
                place = left.pop(data.draw(st.integers(0, len(left) - 1)))
                one["answers"].append(join_servers[place].consider(proposal, 0.0))
            elif what == "finish" and not left:
                running.remove(one)
                if join_servers[one["at"]].agreed(proposal, one["answers"]):
                    news = join_servers[one["at"]].assign_ids(proposal, 0.0)
                    given_away += [(entry.peer, entry.incarnation) for entry in news.entries]
                    untold += [(n, news.entries) for n in range(3) if n != one["at"]]
    assert not [life for life, times in Counter(given_away).items() if times > 1]


LIES = st.builds(
    PeerEntry,
    peer=st.integers(0, IDS - 1),
    incarnation=st.integers(0, 3),
    progress=st.sampled_from([0, 1, 2]),
    owner=st.sampled_from([b"", b"xxxxxxxx", *NAMES]),
    ended=st.booleans(),
    control=st.sampled_from(["", "tcp://10.6.6.6:1"]),
)

LIES_ABOUT_JOIN_SERVERS = st.builds(
    ServerEntry,
    join_server=st.sampled_from([*NAMES, b"dddddddd"]),
    address=st.sampled_from(["10.6.6.6:1", "10.0.1.97:1"]),
    place=st.sampled_from([b"", b"elsewher"]),
    ended=st.booleans(),
)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.one_of(LIES, LIES_ABOUT_JOIN_SERVERS)), max_size=40),
    st.permutations(range(3)),
    st.integers(0, 40),
)
def test_whatever_somebody_says_doors_that_answer_are_believed_about_their_own_peers(
    lies: list[tuple[int, PeerEntry]], order: list[int], visits_at: int
) -> None:
    """Each door has a peer; a liar sends all of them what he likes, before and after they have
    visited each other."""
    join_servers = [
        Registry(ServerEntry(name, f"10.0.1.{name[0]}:1", b""), {n: 1}, FIRST, IDS)
        for n, name in enumerate(NAMES)
    ]
    for n, join_server in enumerate(join_servers):
        join_server.publish(Seed(n, f"tcp://10.0.1.{n}:1", f"tcp://10.0.1.{n}:2", 1), let_in=True)
    true = {n: join_server.entries[n] for n, join_server in enumerate(join_servers)}

    def answers(join_server: bytes) -> bool:
        return join_server in NAMES

    def visit() -> None:
        for at in order:
            for join_server in join_servers:
                if join_server is not join_servers[at]:
                    assert join_server.meet(join_servers[at].local)
                    join_server.merge_claims(
                        list(join_servers[at].entries.values()),
                        join_servers[at].announced_servers,
                        NAMES[at],
                        answers,
                    )

    for number, (at, lie) in enumerate(lies):
        if number == visits_at:
            visit()
        join_servers[at].merge_claims(
            [lie] if isinstance(lie, PeerEntry) else [],
            [lie] if isinstance(lie, ServerEntry) else [],
            b"",
            answers,
        )
    visit()
    for join_server in join_servers:
        assert {n: join_server.entries[n] for n in true} == true
        assert not any(join_server.join_servers[name].ended for name in NAMES)
        assert join_server.own
