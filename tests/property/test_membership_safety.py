"""What holds for a membership whatever it is told, in whatever order (docs/design_notes.md
N19: S1-S5, S15)."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any

from effort import effort
from hypothesis import given, settings, strategies as st

from gossip.core.events import CancelTimer, Effect, SetTimer
from gossip.core.membership.swim import Membership
from gossip.core.membership.table import RANKS, REFUTATIONS, Member
from gossip.core.messages import (
    ROUND_MAX,
    Ack,
    Gossip,
    Nack,
    Ping,
    PingRequest,
    Progress,
    PushPull,
    Rumor,
)
from gossip.core.settings import MembershipSettings
from gossip.core.timers import Timers

N = 5
peers = st.integers(0, N)  # N itself is a stranger
standings = st.one_of(
    st.integers(0, 4),
    st.integers(REFUTATIONS - 2, REFUTATIONS + 3),
    st.just(2 * REFUTATIONS),
    st.just(ROUND_MAX),
)
addresses = st.sampled_from(["", "a", "b"])
rumors = st.builds(
    Rumor, peers, st.sampled_from(sorted(RANKS)), standings, addresses, addresses, peers
)
several = st.lists(rumors, max_size=4).map(tuple)
nonces = st.integers(0, 2**47 - 1)
messages = st.one_of(
    st.builds(Ping, nonces, peers, several),
    st.builds(PingRequest, nonces, peers, several),
    st.builds(
        Ack, nonces, peers, st.builds(Progress, st.integers(0, 9), st.integers(0, 10**6)), several
    ),
    st.builds(Nack, nonces, peers),
    st.builds(PushPull, several, st.booleans()),
    st.builds(Gossip, several),
)
happenings = st.one_of(
    st.tuples(st.just("message"), peers, st.integers(0, 2), messages),
    st.tuples(
        st.just("link"), peers, st.booleans(), st.sampled_from(["closed", "refused", "timeout"])
    ),
    st.tuples(st.just("learn"), peers, st.integers(0, 3), addresses),
    st.tuples(st.just("wait"), st.floats(0.0, 3.0)),
    st.tuples(st.just("jump"), st.floats(0.0, 60.0)),
    st.tuples(st.just("answer")),
)


class Observed:
    """A membership whose every step is checked against what was true before."""

    def __init__(self) -> None:
        self.timers: Timers[Any] = Timers()
        self.now = 0.0
        self.core = Membership(
            Member.own(0, 0, "c0", "b0"),
            MembershipSettings(),
            self.timers,
            random.Random(1),
            frozenset(range(N)),
        )
        self.due: dict[int, float] = {}
        self.pings: list[tuple[int, int]] = []
        self.before: dict[int, tuple[int, str, str, bool]] = {}
        self.introduced: int | None = None  # who just says its own address
        self.run(self.core.start(0.0))

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                assert effect.token not in self.due
                self.due[effect.token] = effect.at
            elif isinstance(effect, CancelTimer):
                del self.due[effect.token]  # S17: nothing is cancelled twice
            elif message := getattr(effect, "message", None):
                assert effect.peer in self.core.members  # type: ignore[union-attr]
                assert effect.peer != 0  # type: ignore[union-attr]
                assert (
                    len(getattr(message, "rumours", ())) <= MembershipSettings().rumors_per_message
                )
                if isinstance(message, Ping):
                    self.pings.append((effect.peer, message.nonce))  # type: ignore[union-attr]
        self.check()

    def check(self) -> None:
        core = self.core
        assert core.me.status == "alive"  # S3
        assert len(core.members) <= N
        assert len(self.timers) == len(self.due) <= 3 + 300 + 3 * N  # S15
        assert len(core.rumors) <= N * 3
        assert len(core.view) == sum(1 for _ in core.view.present())  # counted as it changes
        for peer, member in core.members.items():
            was = self.before.get(peer)
            if was is not None:
                standing, status, control, spoken = was
                # S1; a life that others invented gives way
                assert member.standing >= standing or not spoken
                if member.standing == standing and spoken:
                    assert RANKS.index(member.status) >= RANKS.index(status)  # type: ignore[index]  # S2, S4
                if (
                    member.standing // REFUTATIONS == standing // REFUTATIONS
                    and control
                    and peer != self.introduced
                ):
                    assert member.control == control  # S5
            assert (member.suspicion is not None) == (member.status == "suspect")
            assert member.skip == ("" if peer == 0 else member.why_skipped())
            self.before[peer] = (member.standing, member.status, member.control, member.spoken)

    def let(self, happening: tuple[Any, ...]) -> None:
        match happening:
            case ("message", sender, incarnation, message):
                if self.core.accept_sender(sender, incarnation, self.now):
                    self.run(self.core.on_message(sender, incarnation, message, self.now))
            case ("link", peer, up, reason):
                self.run(self.core.on_link(peer, up, reason, self.now))
            case ("learn", peer, incarnation, address):
                # it may correct what was told of it: others may have told a false one
                self.introduced = peer
                self.run(self.core.learn(peer, address, address, incarnation, self.now))
                self.introduced = None
            case ("jump", late_s):
                self.now += late_s
                self.run(self.core.on_clock_jump(late_s, self.now))
            case ("answer",):
                if self.pings:
                    peer, nonce = self.pings.pop()
                    self.run(
                        self.core.on_message(
                            peer, 0, Ack(nonce, peer, Progress(0, 0), ()), self.now
                        )
                    )
            case ("wait", duration_s):
                end = self.now + duration_s
                while self.due and min(self.due.values()) <= end:
                    token = min(self.due, key=lambda token: (self.due[token], token))
                    self.now = max(self.now, self.due.pop(token))
                    what = self.timers.fire(token)
                    assert what is not None
                    self.run(self.core.on_timer(what, self.now))
                self.now = end


@settings(max_examples=effort(60, 150))
@given(st.lists(happenings, max_size=40))
def test_whatever_comes_no_standing_falls_nobody_is_resurrected_and_everything_stays_bounded(
    story: list[tuple[Any, ...]],
) -> None:
    observed = Observed()
    for happening in story:
        observed.let(happening)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["alive", "dead", "left"]), st.integers(0, 3)), max_size=4)
)
def test_what_a_peer_says_of_itself_ends_alike_in_whatever_order_it_arrives(
    words: list[tuple[str, int]],
) -> None:
    ends: set[tuple[int, str]] = set()
    for order in permutations(words):
        observed = Observed()
        observed.let(("learn", 1, 0, "a"))
        observed.let(("message", 1, 0, Gossip(())))
        for status, standing in order:
            observed.let(("message", 2, 0, Gossip((Rumor(1, status, standing, "a", "a", 1),))))  # type: ignore[arg-type]
        member: Member = observed.core.members[1]
        ends.add((member.standing, member.status))
    assert len(ends) == 1


@settings(max_examples=60)
@given(
    st.integers(0, 50),
    st.sampled_from(["suspect", "dead", "left"]),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_every_accusation_of_oneself_is_outranked(first: int, status: str, more: list[int]) -> None:
    observed = Observed()
    for standing in (first, *more):
        observed.let(("message", 1, 0, Gossip((Rumor(0, status, standing, "", "", 2),))))  # type: ignore[arg-type]
        assert observed.core.standing > standing
        assert observed.core.standing <= max(first, *more, 0) + 1
