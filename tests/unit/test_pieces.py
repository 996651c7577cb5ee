"""A state in pieces: what stands for it, who is asked for what, and what a donor gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_recovery import CHAIN, CORE, LINEAGE, RecoveryBench, answers, ask, begins, packed

from gossip.core import REPLY_S, TAKERS_MAX
from gossip.core.events import Payload, Restored, SnapshotTaken
from gossip.core.messages import PIECES_MAX, StateAttestation, StateOffer, StateRequest
from gossip.core.settings import GIVEN_TIMES_MAX, STATE_SLACK
from gossip.core.transfer.chunks import PieceFetcher, PieceManifest, cut
from gossip.core.transfer.donor import BUSY, ENOUGH, MOVED_ON, NO_SUCH_PIECE, attested_digest
from gossip.vectors import described, digests_of, payload_digest

PIECE_BYTES = 4
SIZES = (18, 2, 3)


def state(
    alike: bytes = b"parameters in five",
    settings: bytes = b"lr",
    own: bytes = b"own",
    base: int = 0,
) -> Payload:
    content = np.frombuffer(alike + settings + own, np.uint8)
    return Payload(
        content,
        content.nbytes,
        True,
        *described(content, [len(alike), len(settings), len(own)], PIECE_BYTES, base),
    )


TRUE = state()
OUTLINE = PieceManifest.read(TRUE.parts[0])
assert OUTLINE is not None
LIE = state(b"PARAMETERS IN FIVE")


# --- what stands for it ---------------------------------------------------------------------------


def test_a_state_no_larger_than_a_piece_stands_for_itself() -> None:
    content = bytes(range(20))
    for lengths in ((), (20,), (12, 4, 4)):
        assert described(content, lengths, 12) == digests_of(content, lengths)
    assert described(content, (13, 4, 3), 12) != digests_of(content, (13, 4, 3))


def test_no_piece_has_bytes_of_the_base_and_others() -> None:
    _, parts = described(b"basesthe rest" + b"lr", (13, 2), 4, base=5)
    outline = PieceManifest.read(parts[0])
    assert PieceManifest.read(outline.packed()) == outline
    assert [outline.bounds(piece) for piece in range(1, 5)] == [(0, 4), (4, 5), (5, 9), (9, 13)]
    assert outline.digests == tuple(map(payload_digest, (b"base", b"s", b"the ", b"rest")))
    _, longer = described(b"basesthe rest of it", (19, 0), 4, base=5)
    other = PieceManifest.read(longer[0])
    assert other.digests[:2] == outline.digests[:2]


def test_of_more_pieces_than_a_message_can_name_each_is_larger() -> None:
    _, parts = described(bytes(PIECES_MAX * 8 + 6), (PIECES_MAX * 8 + 1, 5), 2)
    outline = PieceManifest.read(parts[0])
    assert (outline.piece_bytes, len(outline.digests)) == (16, PIECES_MAX // 2 + 1)


@pytest.mark.parametrize(
    "outline",
    [
        PieceManifest(18, 0, OUTLINE.digests),
        PieceManifest(21, 4, OUTLINE.digests),
        PieceManifest(16, 4, OUTLINE.digests),
        PieceManifest(2**63, 4, OUTLINE.digests),
        PieceManifest(4, 4, OUTLINE.digests[:1]),
        PieceManifest(18, 4, OUTLINE.digests, 19),
        PieceManifest(18, 4, OUTLINE.digests, 2**63),
        PieceManifest(18, 4, OUTLINE.digests, 5),
        PieceManifest(4 * PIECES_MAX + 4, 4, (PIECES_MAX + 1) * OUTLINE.digests[:1]),
    ],
)
def test_an_outline_that_cannot_be_one_is_none(outline: PieceManifest) -> None:
    assert PieceManifest.read(outline.packed()) is None
    assert PieceManifest.read(OUTLINE.packed()[:-1]) is None
    assert PieceManifest.read(b"") is None


def test_pieces_that_are_alike_come_once_and_what_is_here_already_is_not_asked_for() -> None:
    _, parts = described(b"aaaaaaaabbbb" + b"cc", (12, 2), 4)
    outline = PieceManifest.read(parts[0])
    assert outline is not None
    kept: dict[bytes, Any] = {
        payload_digest(b"bbbb"): b"bbbb",
        payload_digest(b"former"): b"former",
    }
    gathering = PieceFetcher(outline, Payload(b"cc", 2, True, b"", parts[1:]), kept, (1, 2))
    assert kept == {payload_digest(b"bbbb"): b"bbbb"}, "of what it has no use for nothing is kept"
    assert gathering.ask((1, 2), 9.0) == [(1, 1)]
    assert gathering.accept_piece(1, 1, Payload(b"aaaa", 4, True, payload_digest(b"aaaa")))
    assert gathering.whole
    assert b"".join(gathering.joined().data) == b"aaaaaaaabbbbcc"


# --- the taker ------------------------------------------------------------------------------------


def offer(
    bench: RecoveryBench, sender: int, of: Payload = TRUE, outline: bytes | None = None
) -> None:
    known = PieceManifest.read(of.parts[0])
    assert known is not None
    rest = cut(of, known, 0)
    nonce, said = bench.core._nonce, known.packed() if outline is None else outline
    message = StateOffer(
        LINEAGE, nonce, 9, CHAIN, rest.digest, rest.nbytes, CORE, "", SIZES[1:], said
    )
    assert bench.core.payload_bytes(sender, message) >= rest.nbytes
    bench.hear(sender, message, rest)


def give(bench: RecoveryBench, sender: int, piece: int, of: Payload = TRUE) -> None:
    known = PieceManifest.read(of.parts[0])
    assert known is not None
    content = cut(of, known, piece)
    where = LINEAGE, bench.core._nonce, 9, CHAIN
    message = StateOffer(*where, content.digest, content.nbytes, b"", "", (), b"", piece)
    if bench.core.payload_bytes(sender, message) == content.nbytes:  # as the transport asks
        bench.hear(sender, message, content)


def wanted(bench: RecoveryBench) -> list[tuple[int, int]]:
    """Who was asked for which pieces since the last look."""
    said, bench.said = bench.said, []
    return [
        (to, message.piece)
        for to, message in said
        if isinstance(message, StateRequest) and message.piece
    ]


def offered(own: Payload | None = LIE) -> RecoveryBench:
    """Peers 1, 2 and 3 have vouched, and peer 1 has offered. ``own``: what the trainer copies."""
    bench = RecoveryBench()
    bench.own = own
    bench.core.state_bytes = TRUE.nbytes
    bench.begin()
    for peer in (1, 2, 3):
        digest = attested_digest(LINEAGE, 9, CHAIN, CORE, TRUE.parts[0])
        bench.hear(
            peer, StateAttestation(LINEAGE, bench.core._nonce, 9, CHAIN, digest, TRUE.parts[1], "")
        )
    assert set(bench.asked("state")) == {1}
    offer(bench, 1)
    return bench


def test_the_pieces_are_asked_from_all_who_vouch_at_once_and_restored_together() -> None:
    bench = offered()
    assert wanted(bench) == [(1, 1), (2, 2), (3, 3), (1, 4), (2, 5)]
    for sender, piece in ((3, 3), (2, 2), (2, 5), (1, 4)):
        give(bench, sender, piece)
    assert bench.restores == []
    give(bench, 1, 1)
    (restore,) = bench.restores
    assert b"".join(part.tobytes() for part in restore.payload.data) == TRUE.data.tobytes()
    assert (restore.payload.digest, restore.payload.parts) == (TRUE.digest, TRUE.parts)
    bench.do(bench.core.on_restored(Restored(9), bench.rounds.adopt, bench.now)[0])
    assert [round_id for round_id, _, _ in bench.rounds.adopted] == [9]
    assert bench.reports[-1].fields["nbytes"] == TRUE.nbytes
    assert not bench.core._kept, "nothing of it is kept"


def test_a_copy_for_this_peer_alone_is_given_to_nobody() -> None:
    bench = offered(own=None)
    bench.core.giving.expect_rounds(come=False)  # the copies of the last round are kept
    bench.do(bench.core.on_snapshot(SnapshotTaken(7, TRUE, SIZES), bench.now))
    assert not bench.core.giving.copies
    assert len(bench.restores) == 1


def test_who_sends_a_wrong_piece_is_asked_for_nothing_more_and_others_send_what_it_had_to() -> None:
    bench = offered()
    wanted(bench)
    give(bench, 1, 1, LIE)
    assert bench.told()[-1] == "bad_state"
    assert wanted(bench) == [(3, 1)], "the other of its two waits until somebody can take it"
    for sender, piece in ((2, 2), (2, 5), (3, 3), (3, 1)):
        give(bench, sender, piece)
    assert wanted(bench) == [(2, 4)]
    give(bench, 1, 4)
    assert bench.restores == [], "what it sends is not looked at any more"
    give(bench, 2, 4)
    assert len(bench.restores) == 1


@pytest.mark.parametrize("what", ["silence", "it dies", "none"])
def test_what_a_donor_does_not_send_comes_from_others_and_what_is_here_stays(what: str) -> None:
    bench = offered()
    wanted(bench)
    for sender, piece in ((1, 1), (3, 3), (2, 2), (2, 5)):
        give(bench, sender, piece)
    if what == "silence":
        bench.wait(bench.settings.rounds.round_timeout_s)
    elif what == "none":
        bench.hear(1, StateOffer(LINEAGE, bench.core._nonce, 9, b"", b"", 0, b"", "busy", piece=4))
    else:
        bench.others.gone.add(1)
        bench.do(bench.core.on_view_change(bench.now))
    assert wanted(bench) == [(2, 4)]
    give(bench, 2, 4)
    assert len(bench.restores) == 1


@pytest.mark.parametrize("rested", [False, True])
def test_a_donor_that_comes_and_goes_is_asked_again_when_it_has_rested(rested: bool) -> None:
    bench = offered()
    assert (3, 3) in wanted(bench)
    bench.others.gone = {3}
    bench.do(bench.core.on_view_change(bench.now))
    assert wanted(bench) == [], "the others have their two"
    bench.others.gone.clear()
    if rested:
        bench.wait(bench.settings.membership.probe_interval_s)
    give(bench, 2, 2)
    assert wanted(bench) == [(3 if rested else 2, 3)]


def test_where_nobody_vouches_who_has_sent_a_wrong_piece_is_asked_last() -> None:
    bench = RecoveryBench(n=4, f=0)
    bench.core.state_bytes = TRUE.nbytes
    bench.begin()
    assert set(bench.asked("state")) == {1}
    offer(bench, 1)
    give(bench, 1, 1, LIE)
    turn = []
    for _ in range(6):
        turn += [to for to in bench.asked("state") if to in bench.core.waits_for]
        bench.wait(bench.settings.rounds.round_timeout_s)  # they are silent
    assert turn[:5] == [2, 3, 2, 3, 1]


def test_of_those_who_vouch_who_has_failed_before_is_asked_last() -> None:
    bench = offered()
    bench.others.gone = {1, 2, 3}
    bench.do(bench.core.on_view_change(bench.now))  # all three fail
    bench.others.gone.clear()
    bench.wait(bench.settings.membership.probe_interval_s)
    bench.asked()
    digest = attested_digest(LINEAGE, 9, CHAIN, CORE, TRUE.parts[0])
    for peer in (1, 2, 5):
        bench.hear(
            peer, StateAttestation(LINEAGE, bench.core._nonce, 9, CHAIN, digest, TRUE.parts[1], "")
        )
    assert set(bench.asked("state")) == {5}


def test_a_state_with_an_optimizers_memory_is_taken_by_one_with_none_yet_and_not_without_end():
    bench = RecoveryBench(f=0)
    bench.core.state_bytes = 2**22
    bench.begin()
    whole = StateOffer(LINEAGE, bench.core._nonce, 9, CHAIN, b"d", 3 * 2**22, CORE, "")
    assert 3 * 2**22 <= bench.core.payload_bytes(1, whole) <= 8 * 2**22 + STATE_SLACK


def test_a_state_much_larger_than_the_model_comes_in_pieces_of_the_usual_length() -> None:
    """A preconditioner of d x d, a history of a hundred gradients."""
    bench = RecoveryBench(f=0)
    bench.core.state_bytes = 2**22
    bench.begin()
    for piece, accepted in ((2**23, True), (2**28, False)):
        pieces = -(-200 * 2**22 // piece)
        offer(bench, 1, TRUE, PieceManifest(200 * 2**22, piece, pieces * (b"d" * 16,)).packed())
        assert (bench.core.pieces is not None) == accepted
        bench.core.cancel()
        bench.begin()


@pytest.mark.parametrize("what", ["another state", "no outline", "longer than a state can be"])
def test_an_offer_whose_outline_was_not_vouched_for_is_refused(what: str) -> None:
    bench = RecoveryBench(f=0 if what == "longer than a state can be" else 2)
    if bench.core.need == 1:
        bench.begin()
        long = PieceManifest(STATE_SLACK + 5, STATE_SLACK, OUTLINE.digests[:2])
        offer(bench, 1, TRUE, long.packed())
    else:
        bench = offered()
        wanted(bench)
        bench.do(bench.core._next_source(bench.now))
        assert set(bench.asked("state")) == {2}
        offer(bench, 2, *((LIE,) if what == "another state" else (TRUE, b"x" * 64)))
    assert bench.told()[-1] == "bad_state"
    assert wanted(bench) == []
    assert bench.core.pieces is None


# --- the donor ------------------------------------------------------------------------------------


def holding() -> RecoveryBench:
    """It has vouched for round 9 to peer 1."""
    bench = RecoveryBench(n=12)
    ask(bench, 1, 9)
    begins(bench, 9)
    packed(bench, 9, TRUE, SIZES)
    assert isinstance(answers(bench)[1], StateAttestation)
    return bench


def test_a_donor_offers_all_but_the_pieces_and_gives_these_one_by_one() -> None:
    bench = holding()
    ask(bench, 1, 9, "state")
    said = answers(bench)[1]
    assert isinstance(said, StateOffer)
    assert (said.outline, said.parts, said.nbytes, said.piece) == (TRUE.parts[0], SIZES[1:], 5, 0)
    assert said.digest == digests_of(b"lrown", (2, 3))[0]
    begins(bench, 30)
    bench.hear(1, StateRequest(LINEAGE, 1, 9, "state", 5))
    said = answers(bench)[1]
    assert isinstance(said, StateOffer)
    assert (said.piece, said.nbytes, said.digest, said.core) == (5, 2, payload_digest(b"ve"), b"")
    assert bench.snapshots == 1


@pytest.mark.parametrize(
    ("round_id", "piece", "reason"), [(9, 6, NO_SUCH_PIECE), (7, 1, MOVED_ON), (10, 1, MOVED_ON)]
)
def test_a_piece_that_is_not_there_is_refused(round_id: int, piece: int, reason: str) -> None:
    bench = holding()
    bench.hear(1, StateRequest(LINEAGE, 1, round_id, "state", piece))
    said = answers(bench)[1]
    assert isinstance(said, StateOffer)
    assert (said.digest, said.reason, said.piece) == (b"", reason, piece)
    assert bench.snapshots == 1, "the trainer is not asked for another copy"


def test_a_donor_gives_pieces_to_so_many_at_a_time_and_to_others_when_they_have_theirs() -> None:
    bench = holding()
    for taker in range(1, 1 + TAKERS_MAX + 1):
        bench.hear(taker, StateRequest(LINEAGE, 1, 9, "state", 1))
    said = answers(bench)
    assert [taker for taker, message in said.items() if message.reason == BUSY] == [TAKERS_MAX + 1]  # type: ignore[union-attr]
    bench.wait(REPLY_S)
    bench.hear(TAKERS_MAX + 1, StateRequest(LINEAGE, 1, 9, "state", 1))
    assert answers(bench)[TAKERS_MAX + 1].reason == ""  # type: ignore[union-attr]


def test_one_peer_is_given_a_piece_so_many_times_at_most_and_then_holds_up_nobody() -> None:
    bench = holding()
    assert [_piece(bench, 1).reason for _ in range(GIVEN_TIMES_MAX + 1)] == [
        ""
    ] * GIVEN_TIMES_MAX + [ENOUGH]
    assert _piece(bench, 1, 2).reason == ""
    bench.wait(REPLY_S)
    _piece(bench, 1)
    for taker in range(2, 2 + TAKERS_MAX):
        assert _piece(bench, taker).reason == "", "who is given nothing more takes nobody's place"
    for _ in range(8):
        bench.wait(bench.settings.rounds.round_timeout_s / 2)
        _piece(bench, 1)
    assert not bench.core.giving.copies, "a copy is not kept for who has had enough of it"


def _piece(bench: RecoveryBench, taker: int, piece: int = 1) -> StateOffer:
    bench.hear(taker, StateRequest(LINEAGE, 1, 9, "state", piece))
    said = answers(bench)[taker]
    assert isinstance(said, StateOffer)
    return said


def test_with_f_0_a_copy_that_is_given_in_pieces_is_kept_until_they_are_taken() -> None:
    bench = RecoveryBench(f=0)
    ask(bench, 1, 0, "state")
    packed(bench, 7, TRUE, SIZES)
    assert isinstance(answers(bench)[1], StateOffer)
    bench.hear(1, StateRequest(LINEAGE, 1, 7, "state", 1))
    assert answers(bench)[1].nbytes == PIECE_BYTES  # type: ignore[union-attr]
    bench.wait(3 * bench.settings.rounds.round_timeout_s)
    assert not bench.core.giving.copies
