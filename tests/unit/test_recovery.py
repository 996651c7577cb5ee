"""Taking a state that f + 1 peers vouch for, and vouching: both sides of it, message by message."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossip.core import COPIES_MAX, REPLY_S, TAKERS_MAX
from gossip.core.events import (
    CancelTimer,
    Effect,
    Payload,
    Received,
    Report,
    Restore,
    Restored,
    Send,
    SetTimer,
    SnapshotTaken,
    TakeSnapshot,
)
from gossip.core.ledger import Ledger, pack_json, squeeze, stretch, unpack_json
from gossip.core.messages import ROUND_MAX, Message, StateAttestation, StateOffer, StateRequest
from gossip.core.settings import (
    CHECK_INTERVAL_S,
    DONOR_FACTOR,
    GIVEN_TIMES_MAX,
    REFUSALS_MAX,
    REQUESTED_AHEAD,
    CoreSettings,
)
from gossip.core.timers import Timers
from gossip.core.transfer.donor import (
    BUSY,
    ENOUGH,
    MOVED_ON,
    NO_STATE,
    TAKES_OVER,
    TOO_EARLY,
    Donor,
    SnapshotExpired,
    attested_digest,
    is_usable,
)
from gossip.core.transfer.receiver import DonorTimeout, Recovery
from gossip.vectors import digests_of

LINEAGE = b"lineage!"
CHAIN = b"chain of commits"
ROSTER = ((0, 1, 2, 3, 4, 5), (), 4)
CORE = pack_json([[0, 1, 2, 3, 4, 5], [], 4])


def state(
    parameters: bytes = b"parameters", settings: bytes = b"lr", own: bytes = b"own"
) -> Payload:
    parts = (parameters, settings, own)
    content = np.frombuffer(b"".join(parts), np.uint8)
    return Payload(
        content, content.nbytes, True, *digests_of(content, [len(part) for part in parts])
    )


SIZES = (10, 2, 3)
TRUE = state()


class FakeRounds:
    def __init__(self) -> None:
        self.round_id = 7
        self.adopted: list[tuple[int, bytes, tuple[Any, ...]]] = []

    def snapshot(self, round_id: int) -> tuple[bytes, tuple[Any, ...]] | None:
        return (CHAIN, ROSTER) if self.round_id - 4 < round_id <= self.round_id else None

    def check(self, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        if chain != CHAIN or len(snapshot) != len(ROSTER):
            raise ValueError("no snapshot")

    def adopt(self, round_id: int, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        self.adopted.append((round_id, chain, snapshot))


class FakePeers:
    def __init__(self, n: int) -> None:
        self.here = list(range(1, n))
        self.gone: set[int] = set()
        self.rounds: dict[int, int] = {}
        self.behind_state: dict[int, float] = {}

    def donors(self) -> tuple[int, ...]:
        return tuple(peer for peer in self.here if peer not in self.gone)

    def round_of(self, peer: int) -> int:
        return self.rounds.get(peer, 0)

    def record_round(self, peer: int, round_id: int) -> None:
        self.rounds[peer] = max(round_id, self.round_of(peer))

    def note_state(self, peer: int, until: float) -> None:
        self.behind_state[peer] = until

    def is_gone(self, peer: int) -> bool:
        return peer in self.gone

    def met(self) -> tuple[int, ...]:
        return tuple(self.here)


class RecoveryBench:
    """One peer's recovery; ``said`` is what it sent since it was looked at last."""

    def __init__(self, n: int = 6, f: int = 2, need: int | None = None) -> None:
        """``need``: so many have to vouch; None: f + 1, as in rolling rounds."""
        self.settings = CoreSettings(b"run-id!!", LINEAGE, seed=1, peers=tuple(range(n)), f=f)
        self.rounds, self.others, self.timers, self.now = (
            FakeRounds(),
            FakePeers(n),
            Timers[Any](),
            10.0,
        )
        self.core = Recovery(
            0, Donor(self.settings, self.rounds, self.timers), self.others, need or f + 1
        )
        self.said: list[tuple[int, Message]] = []
        self.reports: list[Report] = []
        self.restores: list[Restore] = []
        self.snapshots = 0
        self.own: Payload | None = LIE  # what its trainer copies; None: nothing comes
        self.alarms: dict[int, float] = {}

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self.said.append((to, message))
                case Report():
                    self.reports.append(effect)
                case Restore():
                    self.restores.append(effect)
                case TakeSnapshot() if self.core.pieces is not None:
                    if self.own is not None:
                        taken = SnapshotTaken(0, self.own)
                        self.do(self.core.on_snapshot(taken, self.now))
                case TakeSnapshot():
                    self.snapshots += 1
                case SetTimer(token, at):
                    self.alarms[token] = at
                case CancelTimer(token):
                    self.alarms.pop(token)
                case _:
                    raise AssertionError(effect)

    def begin(self, has_own: bool = False) -> None:
        self.do(self.core.begin(None, "it is new", self.now, has_own))

    def asked(self, what: str | None = None) -> dict[int, StateRequest]:
        """Who was asked since the last look."""
        said, self.said = self.said, []
        return {
            to: message
            for to, message in said
            if isinstance(message, StateRequest) and what in (None, message.what)
        }

    def hear(
        self, sender: int, message: Message, payload: Payload | None = None, able: bool = True
    ) -> None:
        self.do(self.core.on_message(Received(sender, 0, message, payload), able, self.now))

    def vouch(self, sender: int, round_id: int, of: Payload = TRUE, chain: bytes = CHAIN) -> None:
        digest = attested_digest(LINEAGE, round_id, chain, CORE, of.parts[0])
        self.hear(
            sender,
            StateAttestation(LINEAGE, self.core._nonce, round_id, chain, digest, of.parts[1], ""),
        )

    def refuse(self, sender: int, round_id: int, reason: str = MOVED_ON) -> None:
        self.hear(
            sender, StateAttestation(LINEAGE, self.core._nonce, round_id, b"", b"", b"", reason)
        )

    def offer(self, sender: int, round_id: int, of: Payload = TRUE) -> None:
        offer = StateOffer(
            LINEAGE, self.core._nonce, round_id, CHAIN, of.digest, of.nbytes, CORE, "", SIZES
        )
        self.hear(sender, offer, of)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.alarms and min(self.alarms.values()) <= until:
            token = min(self.alarms, key=lambda token: self.alarms[token])
            self.now = max(self.now, self.alarms.pop(token))
            what = self.timers.fire(token)
            if isinstance(what, DonorTimeout | SnapshotExpired):
                self.do(self.core.on_timer(what, self.now))
        self.now = until

    def told(self) -> list[str]:
        return [report.event for report in self.reports]


LIE = state(b"PARAMETERS")


# --- the taker ------------------------------------------------------------------------------------


def test_answers_may_wait_behind_a_state_at_both_of_its_ends() -> None:
    """Of its first chunk nobody hears before it is there."""
    bench = RecoveryBench(f=0)
    bench.begin()
    assert bench.asked("state")
    until = bench.now + bench.settings.rounds.round_timeout_s
    assert bench.others.behind_state == {0: until}
    bench.hear(3, StateRequest(LINEAGE, 9, 0, "attestation"))
    assert 3 not in bench.others.behind_state, "which is small"
    bench.hear(3, StateRequest(LINEAGE, 9, 0, "state"))
    assert bench.others.behind_state[3] == until


def test_what_f_plus_1_vouch_for_is_asked_for_compared_and_restored() -> None:
    bench = RecoveryBench()
    bench.begin()
    asked = bench.asked()
    assert set(asked) == {1, 2, 3, 4, 5}, "2f + 1"
    assert {(request.round_id, request.what) for request in asked.values()} == {(0, "attestation")}
    bench.vouch(1, 9)
    bench.vouch(2, 9)
    assert bench.asked() == {}, "two say so, and two may be lying"
    bench.vouch(3, 9)
    assert {peer: request.round_id for peer, request in bench.asked("state").items()} == {1: 9}
    bench.offer(1, 9)
    assert [(each.round_id, each.settings, each.collectives) for each in bench.restores] == [
        (9, True, 4)
    ]
    bench.do(bench.core.on_restored(Restored(9), bench.rounds.adopt, bench.now)[0])
    assert [round_id for round_id, _, _ in bench.rounds.adopted] == [9]


def test_two_lying_donors_of_five_that_agree_on_a_lie_are_not_followed_whoever_answers_first():
    bench = RecoveryBench()
    bench.begin()
    bench.asked()
    for attacker in (1, 2):
        bench.vouch(attacker, 9, LIE)
    bench.vouch(3, 9)
    bench.vouch(4, 9)
    assert bench.asked() == {}
    bench.vouch(5, 9)
    assert set(bench.asked("state")) == {3}


@pytest.mark.parametrize(
    "what",
    [
        "another payload",
        "its own digest is wrong",
        "another round",
        "none",
        "silence",
        "it dies",
        "other settings",
    ],
)
def test_a_donor_that_sends_something_else_gives_way_unrestored(what: str) -> None:
    bench = RecoveryBench()
    bench.begin()
    for peer in (1, 2, 3):
        bench.vouch(peer, 9)
    assert set(bench.asked("state")) == {1}
    if what == "another payload":
        bench.offer(1, 9, LIE)
    elif what == "its own digest is wrong":
        nonce = bench.core._nonce
        bench.hear(
            1, StateOffer(LINEAGE, nonce, 9, CHAIN, b"x" * 16, TRUE.nbytes, CORE, "", SIZES), TRUE
        )
    elif what == "another round":
        bench.offer(1, 10**9)
    elif what == "none":
        bench.hear(1, StateOffer(LINEAGE, bench.core._nonce, 9, b"", b"", 0, b"", "busy"))
    elif what == "silence":
        bench.wait(bench.settings.rounds.round_timeout_s)
    elif what == "other settings":
        bench.offer(1, 9, state(settings=b"LR"))
    else:
        bench.others.gone.add(1)
        bench.do(bench.core.on_view_change(bench.now))
    assert bench.restores == []
    assert set(bench.asked("state")) == {2}
    bench.offer(2, 9)
    assert len(bench.restores) == 1


def test_those_in_different_rounds_are_asked_for_one_ahead_that_no_liar_chooses() -> None:
    bench = RecoveryBench()
    bench.begin()
    bench.vouch(1, 10**9)  # the liars
    bench.vouch(2, 10**9, LIE)
    bench.asked()
    for peer, round_id in ((3, 30), (4, 31), (5, 32)):
        bench.vouch(peer, round_id)
    named = {request.round_id for request in bench.asked("attestation").values()}
    assert named == {32 + 2}, "the third highest that different peers say they are in, and two"
    for peer in (3, 4, 5):
        bench.vouch(peer, 34)
    assert set(bench.asked("state")) == {3}


def test_of_fewer_than_must_agree_nobody_chooses_the_round_that_is_named() -> None:
    """As it was: a liar that alone was within reach named one that no message holds, and those who
    came meanwhile were asked about that one until a round was over."""
    bench = RecoveryBench()
    bench.others.here = [1]
    bench.begin()
    named = set()
    for _ in range(4):
        named |= {request.round_id for request in bench.asked("attestation").values()}
        bench.vouch(1, ROUND_MAX)
        bench.wait(bench.settings.membership.probe_interval_s)
    assert named == {0}, "wherever each is"
    bench.others.here = [1, 2, 3, 4]
    bench.do(bench.core.on_view_change(bench.now))
    bench.wait(bench.settings.membership.probe_interval_s)
    for peer in (2, 3, 4):
        bench.vouch(peer, 9)
    assert set(bench.asked("state")) == {2}


@pytest.mark.parametrize("unnamed", range(4))
def test_the_first_named_round_is_two_ahead_however_many_polls_named_none(unnamed: int) -> None:
    """By the number of all polls, it was asked for one poll later, and up to 62 rounds later."""
    bench = RecoveryBench()
    bench.others.here = [1]
    bench.begin()
    for _ in range(unnamed):
        bench.vouch(1, 31)
        bench.wait(bench.settings.membership.probe_interval_s)
    bench.others.here = [1, 2, 3, 4, 5]
    bench.do(bench.core.on_view_change(bench.now))
    bench.asked()
    for peer in bench.others.here:
        bench.vouch(peer, 30 + peer)
    assert {request.round_id for request in bench.asked("attestation").values()} == {33 + 2}


def test_a_silent_liar_does_not_keep_those_who_disagree_from_being_asked_again() -> None:
    bench = RecoveryBench()
    bench.begin()
    for peer, round_id in ((1, 30), (2, 31), (3, 31)):
        bench.vouch(peer, round_id)
    bench.asked()
    bench.wait(CHECK_INTERVAL_S)
    assert {request.round_id for request in bench.asked("attestation").values()} != set()


def test_a_swarm_that_moved_on_and_one_that_stands_still_are_asked_again() -> None:
    bench = RecoveryBench()
    bench.begin()
    for peer in (1, 2, 3, 4, 5):
        bench.vouch(peer, 30 + peer)
    bench.asked()
    for peer in (1, 2, 3, 4, 5):
        bench.refuse(peer, 90)
    assert bench.asked() == {}, "not at once"
    bench.wait(bench.settings.membership.probe_interval_s)
    assert {request.round_id for request in bench.asked("attestation").values()} == {0}, (
        "where they are"
    )
    for peer in (1, 2, 3):
        bench.vouch(peer, 91)
    assert len(bench.asked("state")) == 1


def test_settings_that_differ_are_left_out_after_two_tries_and_the_state_is_taken() -> None:
    bench = RecoveryBench()
    bench.begin()
    for _ in range(2):
        for peer in (1, 2, 3, 4, 5):
            bench.vouch(peer, 30, state(settings=b"l%d" % peer))
        assert bench.restores == []
        bench.wait(bench.settings.membership.probe_interval_s)
    for peer in (1, 2, 3):
        bench.vouch(peer, 31, state(settings=b"l%d" % peer))
    (donor,) = bench.asked("state")
    bench.offer(donor, 31, state(settings=b"l%d" % donor))
    assert [restore.settings for restore in bench.restores] == [False]


def test_the_word_of_the_last_survivor_is_taken_and_reported_when_nobody_else_can_have_a_state():
    bench = RecoveryBench()
    bench.others.gone = {2, 3}
    bench.begin()
    bench.vouch(1, 9)
    bench.refuse(4, 0, NO_STATE)
    assert bench.asked("state") == {}
    bench.refuse(5, 0, NO_STATE)
    assert set(bench.asked("state")) == {1}
    assert "unattested_state" in bench.told()


def test_while_enough_may_have_a_state_the_word_of_few_is_not_taken_however_long_that_takes():
    bench = RecoveryBench()
    bench.begin()
    for _ in range(40):
        for peer in (1, 2):
            bench.vouch(peer, 9, LIE)
        bench.wait(bench.settings.rounds.round_timeout_s)
    assert bench.asked("state") == {}, "of five within reach two may lie, and three are silent"


def test_those_too_few_to_outvote_the_liars_are_followed_after_a_while_and_that_is_reported():
    bench = RecoveryBench()
    bench.others.gone = {4, 5}
    bench.begin()
    bench.vouch(1, 9, LIE)
    bench.vouch(2, 9)
    bench.vouch(3, 9)
    assert "unattested_state" not in bench.told()
    for _ in range(8):
        bench.wait(bench.settings.rounds.round_timeout_s / 2)
        for peer, of in ((1, LIE), (2, TRUE), (3, TRUE)):
            bench.vouch(peer, 9, of)
        if set(bench.asked("state")) == {2}:
            break
    else:
        pytest.fail("it waits for a third one for ever")
    assert "unattested_state" in bench.told()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_of_as_many_voices_no_liar_can_make_its_own_weigh_more(seed: int) -> None:
    chosen = set()
    for chain in (bytes(16), b"\xff" * 16):
        bench = RecoveryBench()
        bench.core.settings = replace(bench.settings, seed=seed)
        bench.others.gone = {3, 4, 5}
        bench.begin()
        bench.vouch(1, 9, LIE, chain)
        bench.vouch(2, 9)
        chosen.update(bench.asked("state"))
    assert len(chosen) == 1


def test_there_is_room_for_the_state_of_who_was_asked_for_it_alone() -> None:
    bench = RecoveryBench()
    bench.begin()
    for peer in (1, 2, 3):
        bench.vouch(peer, 9)
    (donor,) = bench.asked("state")
    offer = StateOffer(
        LINEAGE, bench.core._nonce, 9, CHAIN, TRUE.digest, TRUE.nbytes, CORE, "", SIZES
    )
    assert bench.core.payload_bytes(donor, offer) > 0
    assert bench.core.payload_bytes(4, offer) == -1
    assert bench.core.payload_bytes(donor, replace(offer, nonce=offer.nonce - 1)) == -1


def test_a_snapshot_that_is_nested_as_deep_as_a_reader_can_read_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, read = RecoveryBench(f=0), 0
    ledger = Ledger(bench.settings)
    monkeypatch.setattr(bench.rounds, "check", lambda chain, snapshot: ledger.check(snapshot))
    row = b'[0, 0.5, true, "normal", 0, [], 1.0, 0, 0, [[7, [%b]]]]'
    tables = [stretch(pack_json(table.pack())) for table in ledger._tables()[1:]]
    for depth in range(800, 1000):
        trust = b"[[" + row % (b"[" * depth + b"]" * depth) + b"], 0, 0, 0]"
        core = squeeze(b"[" + b",".join([b"[0]", trust, *tables, b"0"]) + b"]")
        offer = StateOffer(LINEAGE, 1, 9, CHAIN, TRUE.digest, TRUE.nbytes, core, "")
        assert not is_usable(bench.rounds, offer)
        with suppress(ValueError):
            read += len(unpack_json(core)) > 0
    assert 0 < read < 200, "the limit of the reader is among these depths"


def test_one_with_a_state_of_its_own_goes_back_to_it_when_nobody_vouches() -> None:
    bench = RecoveryBench()
    bench.begin(has_own=True)
    for peer in (1, 2, 3, 4, 5):
        bench.refuse(peer, 0, NO_STATE)
    assert bench.core.has_no_donor(DonorTimeout(bench.core._nonce))
    bench = RecoveryBench()
    bench.begin()
    for peer in (1, 2, 3, 4, 5):
        bench.refuse(peer, 0, NO_STATE)
    assert not bench.core.has_no_donor(DonorTimeout(bench.core._nonce))


def test_who_has_finished_and_comes_to_no_round_that_is_named_has_a_state_all_the_same() -> None:
    bench = RecoveryBench()
    bench.begin(has_own=True)
    for peer in (1, 2, 3, 4, 5):
        bench.vouch(peer, 30 + peer)
    for peer in (1, 2, 3, 4):
        bench.refuse(peer, 35, TOO_EARLY)
    bench.refuse(5, 35, NO_STATE)
    assert bench.core.poll.paused
    assert not bench.core.has_no_donor(DonorTimeout(bench.core._nonce))


# --- the donor ------------------------------------------------------------------------------------


def ask(bench: RecoveryBench, sender: int, round_id: int, what: Any = "attestation") -> None:
    bench.hear(sender, StateRequest(LINEAGE, 1, round_id, what))


def answers(bench: RecoveryBench) -> dict[int, Message]:
    said, bench.said = bench.said, []
    return dict(said)


def begins(bench: RecoveryBench, round_id: int) -> None:
    bench.rounds.round_id = round_id
    if bench.core.giving.next_requested_round <= round_id:
        bench.do(bench.core.giving.on_round(bench.now))


def packed(
    bench: RecoveryBench, round_id: int, payload: Payload = TRUE, sizes: tuple[int, ...] = SIZES
) -> None:
    bench.do(bench.core.giving.on_snapshot(SnapshotTaken(round_id, payload, sizes), bench.now))


def test_a_donor_vouches_when_it_comes_to_the_round_and_gives_that_state_though_it_has_moved_on():
    bench = RecoveryBench()
    ask(bench, 1, 9)
    begins(bench, 8)
    assert bench.snapshots == 0
    begins(bench, 9)
    assert bench.snapshots == 1
    packed(bench, 9)
    attestation = answers(bench)[1]
    assert isinstance(attestation, StateAttestation)
    assert attestation.digest == attested_digest(LINEAGE, 9, CHAIN, CORE, TRUE.parts[0])
    begins(bench, 30)
    ask(bench, 1, 9, "state")
    offer = answers(bench)[1]
    assert isinstance(offer, StateOffer)
    assert (offer.round_id, offer.digest, offer.parts) == (9, TRUE.digest, SIZES)


def test_a_state_is_vouched_for_however_many_rounds_it_takes_to_copy_and_describe() -> None:
    bench = RecoveryBench()
    ask(bench, 1, 9)
    begins(bench, 9)
    begins(bench, 9 + 30)
    assert bench.rounds.snapshot(9) is None
    packed(bench, 9)
    said = answers(bench)[1]
    assert isinstance(said, StateAttestation)
    assert (said.round_id, said.digest) == (
        9,
        attested_digest(LINEAGE, 9, CHAIN, CORE, TRUE.parts[0]),
    )


def test_all_who_ask_at_one_round_cost_the_trainer_one_copy() -> None:
    bench = RecoveryBench()
    for peer in (1, 2, 3, 4, 5):
        ask(bench, peer, 9)
    ask(bench, 5, 9)
    begins(bench, 9)
    ask(bench, 4, 0)
    packed(bench, 9)
    assert bench.snapshots == 1
    assert set(answers(bench)) == {1, 2, 3, 4, 5}


def test_who_has_taken_over_another_state_vouches_for_no_copy_of_the_one_before() -> None:
    """It may be of the very same round: of a branch that it has left.
    Found by seed 91 of the simulator."""
    bench = RecoveryBench()
    ask(bench, 1, 9)
    begins(bench, 9)
    packed(bench, 9)
    assert answers(bench)[1].digest == attested_digest(LINEAGE, 9, CHAIN, CORE, TRUE.parts[0])  # type: ignore[union-attr]
    bench.core.giving.restart()
    ask(bench, 2, 9)
    assert not answers(bench)
    packed(bench, 9, LIE)
    assert answers(bench)[2].digest == attested_digest(LINEAGE, 9, CHAIN, CORE, LIE.parts[0])  # type: ignore[union-attr]


def test_a_copy_that_was_under_way_then_is_not_taken_for_one_of_the_new_state() -> None:
    bench = RecoveryBench()
    ask(bench, 1, 9)
    ask(bench, 2, 12)
    begins(bench, 9)
    bench.core.giving.restart()
    begins(bench, 9)
    assert bench.snapshots == 2
    packed(bench, 9, LIE)
    assert not answers(bench)
    packed(bench, 9)
    assert answers(bench)[1].digest == attested_digest(LINEAGE, 9, CHAIN, CORE, TRUE.parts[0])  # type: ignore[union-attr]
    begins(bench, 12)
    packed(bench, 12)
    assert isinstance(answers(bench)[2], StateAttestation)


def test_a_donor_that_is_past_the_round_or_far_from_it_says_where_it_is() -> None:
    bench = RecoveryBench()
    ask(bench, 1, 6)
    ask(bench, 2, 7 + REQUESTED_AHEAD + 1)
    bench.hear(3, StateRequest(LINEAGE, 1, 7, "attestation"), able=False)
    said = answers(bench)
    reasons = {
        peer: (attestation.round_id, attestation.reason)
        for peer, attestation in said.items()
        if isinstance(attestation, StateAttestation)
    }
    assert reasons == {1: (7, MOVED_ON), 2: (7, TOO_EARLY), 3: (7, NO_STATE)}
    ask(bench, 4, 9)
    begins(bench, 11)  # over two rounds at once
    attestation = answers(bench)[4]
    assert isinstance(attestation, StateAttestation)
    assert (attestation.round_id, attestation.reason) == (11, MOVED_ON)


def test_what_a_donor_keeps_is_bounded_and_forgotten_after_a_while() -> None:
    bench = RecoveryBench(n=12)
    for round_id in (8, 9, 10):
        ask(bench, round_id - 7, round_id)
    for round_id in (8, 9, 10):
        begins(bench, round_id)
        packed(bench, round_id)
    assert list(bench.core.giving.copies) == [9, 10]
    assert len(bench.core.giving.copies) == COPIES_MAX
    answers(bench)
    for taker in range(1, 12):
        ask(bench, taker, 11, "state")
    busy = [
        message
        for message in answers(bench).values()
        if isinstance(message, StateOffer) and message.reason
    ]
    assert len(busy) == 11 - TAKERS_MAX
    bench.wait(3 * bench.settings.rounds.round_timeout_s)
    assert not bench.core.giving.copies
    assert not bench.alarms


def test_who_is_given_the_same_again_and_again_in_one_round_is_not_about_to_come_back() -> None:
    bench, counts = RecoveryBench(f=0), []
    timeout_s = bench.settings.rounds.round_timeout_s
    for round_id in (7, 8):
        begins(bench, round_id)
        for _ in range(GIVEN_TIMES_MAX + 2):
            ask(bench, 1, 0, "state")
            packed(bench, round_id)
            counts.append(bench.core.giving.current_receivers(bench.now) == {1})
            bench.wait(timeout_s)
            assert not bench.core.giving.current_receivers(bench.now)
    assert counts == 2 * (GIVEN_TIMES_MAX * [True] + 2 * [False])


def test_a_copy_that_nobody_vouched_for_is_not_kept() -> None:
    bench = RecoveryBench(f=0)
    ask(bench, 1, 0, "state")
    packed(bench, 7)
    assert isinstance(answers(bench)[1], StateOffer)
    assert not bench.core.giving.copies


def test_a_trainer_that_cannot_pack_its_state_makes_nobody_wait() -> None:
    bench = RecoveryBench()
    ask(bench, 1, 0)
    packed(bench, 7, Payload(np.empty(0, np.uint8), 0))
    attestation = answers(bench)[1]
    assert isinstance(attestation, StateAttestation)
    assert attestation.digest == b""
    ask(bench, 1, 0)
    assert bench.snapshots == 2, "it is asked again"


def test_who_does_not_answer_is_asked_again_as_long_as_it_has_time_to() -> None:
    """A question that is lost must not cost the whole patience:
    those who have finished do not stay for so long."""
    bench = RecoveryBench()
    bench.begin()
    assert set(bench.asked("attestation")) == {1, 2, 3, 4, 5}
    bench.vouch(1, 9)
    bench.wait(REPLY_S)
    assert set(bench.asked("attestation")) == {2, 3, 4, 5}
    bench.vouch(2, 9)
    bench.wait(REPLY_S)
    bench.vouch(3, 9)
    assert set(bench.asked("attestation")) == {3, 4, 5}
    assert bench.core.attestations == (1, 2, 3)


def test_who_had_no_state_to_vouch_for_is_asked_again_when_it_is_in_a_round() -> None:
    """Peers started again at once find their states one after the other. Who asked too early took
    the word of one for it, with four that could have vouched."""
    bench = RecoveryBench(5, f=1)
    bench.begin()
    bench.vouch(1, 9)
    bench.refuse(2, 0, NO_STATE)
    bench.asked()
    bench.do(bench.core.on_hello(1, 9) + bench.core.on_hello(2, 0))
    assert bench.asked() == {}, "it has vouched, and it is in no round yet"
    bench.do(bench.core.on_hello(2, 9))
    assert set(bench.asked("attestation")) == {2}
    bench.do(bench.core.on_hello(2, 9))
    assert bench.asked() == {}, "once for each such answer"
    bench.vouch(2, 9)
    assert bench.core.attestations == (1, 2)
    assert bench.core.on_hello(3, 9) == [], "that poll is over"


def test_who_comes_while_nobody_is_there_to_ask_has_the_time_of_a_round_to_vouch() -> None:
    """A large state is not copied and described in the moment after which one looks again for
    somebody to ask."""
    bench = RecoveryBench()
    bench.others.gone = {1, 2, 3, 4, 5}
    bench.begin()
    bench.wait(0.9 * bench.settings.membership.probe_interval_s)
    bench.others.gone.clear()
    bench.do(bench.core.on_view_change(bench.now))
    (nonce,) = {request.nonce for request in bench.asked("attestation").values()}
    bench.wait(0.9 * bench.settings.rounds.round_timeout_s)
    assert {request.nonce for request in bench.asked("attestation").values()} == {nonce}, (
        "their answers still count"
    )
    for peer in (1, 2, 3):
        bench.vouch(peer, 9)
    assert bench.core.attestations == (1, 2, 3)


def test_a_donor_that_has_no_more_rounds_says_so_to_all_who_wait_for_one() -> None:
    bench = RecoveryBench()
    ask(bench, 1, 9)
    ask(bench, 2, 7)
    bench.do(bench.core.giving.close())
    ask(bench, 3, 9)
    refused = {
        peer: attestation.reason
        for peer, attestation in answers(bench).items()
        if isinstance(attestation, StateAttestation)
    }
    assert refused == {1: TOO_EARLY, 3: TOO_EARLY}
    packed(bench, 7)
    attestation = answers(bench)[2]
    assert isinstance(attestation, StateAttestation)
    assert (attestation.round_id, attestation.reason) == (7, ""), "what it holds it vouches for"


def answer(bench: RecoveryBench) -> str:
    """Why it has nothing to vouch for, while its trainer holds no state of the rounds."""
    bench.hear(5, StateRequest(LINEAGE, 99, 0, "attestation"), able=False)
    (said,) = [
        message
        for to, message in bench.said
        if to == 5 and isinstance(message, StateAttestation) and message.nonce == 99
    ]
    bench.said.clear()
    return said.reason


def test_who_takes_over_a_state_does_not_say_that_there_is_none_once_it_is_about_to_have_one():
    bench = RecoveryBench(f=0)
    bench.begin()
    assert answer(bench) == NO_STATE  # who it has asked may have none, or be dead
    bench.offer(1, 0)
    assert bench.core.stage == "restoring"
    assert answer(bench) == TAKES_OVER


def test_when_all_have_said_twice_that_there_is_none_it_is_in_vain() -> None:
    bench, vain = RecoveryBench(n=3, f=0), []

    def turn() -> None:
        for _ in range(2):
            (asked,) = bench.asked("state")
            bench.hear(
                asked, StateOffer(LINEAGE, bench.core._nonce, 0, b"", b"", 0, b"", NO_STATE, SIZES)
            )
        vain.append(bench.core.has_no_donor(DonorTimeout(bench.core._nonce)))
        bench.wait(bench.settings.membership.probe_interval_s)

    bench.begin()
    turn()
    turn()
    assert vain == [False, True]


def refuse_until(bench: RecoveryBench, until: float, reason: str) -> None:
    """The others give that answer whenever they are asked for their states."""
    while bench.now < until:
        bench.wait(0.1)
        for peer in bench.asked("state"):
            bench.hear(
                peer, StateOffer(LINEAGE, bench.core._nonce, 0, b"", b"", 0, b"", reason, SIZES)
            )


@pytest.mark.parametrize(
    ("reason", "without"),
    [(BUSY, set()), (TAKES_OVER, set()), (ENOUGH, {1, 2}), (MOVED_ON, {1, 2}), (NO_STATE, {1, 2})],
)
def test_who_may_have_a_state_later_is_waited_for_and_who_refuses_it_not_for_good(
    reason: str, without: set[int]
) -> None:
    bench = RecoveryBench(n=3, f=1, need=1)
    patience_s = DONOR_FACTOR * bench.settings.rounds.round_timeout_s
    bench.begin()
    refuse_until(bench, bench.now + patience_s - 1.0, reason)
    assert bench.core.records.stateless(bench.now) == ({1, 2} if reason == NO_STATE else set())
    refuse_until(bench, bench.now + 2.0, reason)
    assert bench.core.records.stateless(bench.now) == without


def test_who_denies_and_claims_in_turn_is_waited_for_no_longer_than_a_few_times() -> None:
    """It claims in its hello, and keeps silent until its time is almost over."""
    bench, anew = RecoveryBench(n=2, f=1, need=1), 0
    patience_s = DONOR_FACTOR * bench.settings.rounds.round_timeout_s
    bench.begin()
    for _ in range(4 * GIVEN_TIMES_MAX):
        bench.do(bench.core.on_hello(1, 9))
        bench.wait(patience_s - 1.0)
        anew += not bench.core.records.stateless(bench.now)
        refuse_until(bench, bench.now + 5.0, NO_STATE)
    assert GIVEN_TIMES_MAX < anew <= GIVEN_TIMES_MAX + 2


def test_who_was_away_has_its_time_anew() -> None:
    bench = RecoveryBench(n=2, f=1, need=1)
    patience_s = DONOR_FACTOR * bench.settings.rounds.round_timeout_s
    bench.begin()
    bench.wait(patience_s - 1.0)
    for away in ({1}, set()):
        bench.others.gone = away
        bench.do(bench.core.on_view_change(bench.now))
        bench.wait(1.0)
    assert not bench.core.records.stateless(bench.now)
    bench.wait(patience_s)
    assert bench.core.records.stateless(bench.now) == {1}


def test_a_trainer_that_refuses_three_states_in_a_row_fits_none() -> None:
    bench = RecoveryBench(n=3, f=0)
    bench.begin()
    refuse_next(bench)
    refuse_next(bench)
    load_next(bench)
    bench.begin()
    for _ in range(REFUSALS_MAX):
        assert not bench.core.records.fits_no_state
        refuse_next(bench)
    assert bench.core.records.fits_no_state
    assert not bench.asked("state"), "it asks for no other"


def test_states_that_byzantine_donors_have_made_unloadable_do_not_make_a_peer_leave() -> None:
    """Up to f peers may vouch for the true state, and send one whose other parts fit nobody."""
    bench = RecoveryBench(n=6, f=2, need=1)
    bench.begin()
    for donor in (1, 2, 1, 2, 1):
        refuse_next(bench, donor)
        assert not bench.core.records.fits_no_state
    refuse_next(bench, 3)
    assert bench.core.records.fits_no_state


def load_next(bench: RecoveryBench, error: str = "", donor: int | None = None) -> None:
    if donor is not None:
        bench.do(bench.core._request_state(donor, 0, bench.now))
    while bench.core.donor is None:
        bench.wait(bench.settings.membership.probe_interval_s)
    bench.asked()
    bench.offer(bench.core.donor, 0)
    bench.do(bench.core.on_restored(Restored(0, error), bench.rounds.adopt, bench.now)[0])


def refuse_next(bench: RecoveryBench, donor: int | None = None) -> None:
    load_next(bench, "it does not fit", donor)


def test_who_has_begun_to_load_a_state_has_none_of_its_own_to_begin_with() -> None:
    bench = RecoveryBench(n=3, f=0)
    bench.begin()
    bench.offer(1, 0)
    bench.do(
        bench.core.on_restored(Restored(0, "it does not fit"), bench.rounds.adopt, bench.now)[0]
    )
    for _ in range(4):
        while asked := bench.asked("state"):
            for peer in asked:
                bench.hear(
                    peer,
                    StateOffer(LINEAGE, bench.core._nonce, 0, b"", b"", 0, b"", NO_STATE, SIZES),
                )
        assert bench.core.donor is None, "all have said that they have none"
        assert not bench.core.has_no_donor(DonorTimeout(bench.core._nonce))
        bench.wait(bench.settings.membership.probe_interval_s)


@pytest.mark.parametrize(
    "core", [b"", b"[[0], [], []]", *map(squeeze, [b"{}", b'"x"', b"\xff", b"[" * 100_000, b"[]"])]
)
def test_a_state_whose_snapshot_is_none_is_not_loaded(core: bytes) -> None:
    """The own one would be lost."""
    bench = RecoveryBench(n=3, f=0)
    bench.begin()
    bench.hear(
        1,
        StateOffer(LINEAGE, bench.core._nonce, 0, CHAIN, TRUE.digest, TRUE.nbytes, core, "", SIZES),
        TRUE,
    )
    assert not bench.restores
    assert bench.told()[-1] == "bad_state"
    bench.offer(2, 0)
    assert len(bench.restores) == 1


def test_a_peer_without_a_state_is_replaced_by_another_in_the_first_poll() -> None:
    bench = RecoveryBench(n=9)
    bench.begin()
    assert set(bench.asked()) == {1, 2, 3, 4, 5}
    bench.refuse(2, 0, NO_STATE)
    assert set(bench.asked()) == {6}
