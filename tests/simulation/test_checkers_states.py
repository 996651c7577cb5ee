"""S12: what is asked, vouched for and taken when a peer comes back.
A planted fault of each is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checked_swarm import checked_swarm, tamper
from test_checkers_gossip import caught, each

from gossip.core import PIECE_BYTES
from gossip.core.events import Effect, Restore
from gossip.core.messages import PeerId
from gossip.core.peer import Peer
from gossip.core.transfer import chunks as pieces, donor as donating
from gossip.core.transfer.backoff import Backoff
from gossip.core.transfer.chunks import PieceFetcher
from gossip.core.transfer.donor import parts_of
from gossip.faults.world import PIECE_ATTACKS
from gossip_lab.simulation.checkers import Checker, CheckerSuite
from gossip_lab.simulation.checkers.transfer.attestations import (
    AttestationRoundNaming,
    QuorumOfAttestations,
)
from gossip_lab.simulation.checkers.transfer.pieces import (
    BoundedPieceReplies,
    BoundedPieceRequests,
    NoRedundantPieceRequests,
)
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.liars import ByzantinePeers

FAST_S = 0.006  # of a round: less than it takes to ask, answer and ask again


def returning(
    checker: Checker,
    lies: dict[PeerId, tuple[str, ...]] | None = None,
    compute_s: float = 0.1,
    piece_bytes: int = PIECE_BYTES,
) -> Swarm[Peer]:
    """Of five peers, of whom one may lie, peer 1 is about to be there again."""
    swarm = checked_swarm(
        CheckerSuite([checker]), n=5, f=1, compute_s=compute_s, piece_bytes=piece_bytes
    )
    swarm.outgoing = ByzantinePeers(swarm, lies or {})
    swarm.run_for(1.0)
    swarm.restart(1)
    return swarm


def is_back(swarm: Swarm[Peer]) -> bool:
    return bool(swarm.reports(1, "restored")) and swarm.cores[1].phase == "running"


# --- what is taken --------------------------------------------------------------------------------


def attackers(lie: str) -> dict[PeerId, tuple[str, ...]]:
    return dict.fromkeys((0, 2), (lie,))


def test_a_state_that_is_not_the_one_vouched_for_is_caught_though_its_donor_has_vouched() -> None:
    swarm = returning(QuorumOfAttestations(), attackers("swapped_states"))
    swarm.hosts[1].core.recovery._is_agreed = lambda offer, payload: True  # type: ignore[method-assign]
    assert "was attested" in caught(swarm)


def test_who_refuses_such_a_state_and_asks_another_is_sound() -> None:
    checker = QuorumOfAttestations()
    swarm = returning(checker, attackers("swapped_states"))
    swarm.run_until(lambda: is_back(swarm), 4.0)
    assert swarm.reports(1, "bad_state"), "no liar was asked: the test proves nothing"
    assert checker.judged == 2, "how many have vouched, and for what"


def test_settings_that_nobody_has_vouched_for_are_caught() -> None:
    def with_others(restore: Restore) -> list[Effect]:
        parts = parts_of(restore.payload)[0], b"other settings!!"
        return [replace(restore, payload=replace(restore.payload, parts=parts))]

    swarm = returning(QuorumOfAttestations())
    tamper(swarm, 1, each(Restore, with_others))
    assert "with settings that no peer has attested" in caught(swarm)


# --- pieces ---------------------------------------------------------------------------------------


def never_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has failed is asked again at once."""
    monkeypatch.setattr(PieceFetcher, "exclude_peers", PieceFetcher.release)
    monkeypatch.setattr(Backoff, "is_resting", lambda rests, peer, now: False)


def test_who_asks_one_again_that_has_sent_a_wrong_piece_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never_mind(monkeypatch)
    assert "which has sent a wrong piece" in caught(
        returning(NoRedundantPieceRequests(), attackers("wrong_pieces"), piece_bytes=4)
    )


def test_who_asks_again_for_a_piece_that_is_here_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take = PieceFetcher.accept_piece

    def forgets(self: PieceFetcher, *what: Any) -> bool:
        right = take(self, *what)
        self.kept.clear()
        return right

    monkeypatch.setattr(PieceFetcher, "accept_piece", forgets)
    assert "which it has" in caught(returning(NoRedundantPieceRequests(), piece_bytes=4))


def test_who_asks_a_donor_for_beyond_its_credit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECES_ASKED", 3)
    assert "which then has to send 3" in caught(
        returning(NoRedundantPieceRequests(), piece_bytes=4)
    )


def test_who_asks_as_often_as_it_is_answered_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    never_mind(monkeypatch)
    assert "for the 5th time" in caught(
        returning(BoundedPieceRequests(), attackers("wrong_pieces"), piece_bytes=4)
    )


def test_who_gives_one_that_asks_five_times_all_it_asks_for_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(donating, "GIVEN_TIMES_MAX", 5)
    assert "for the 5th time" in caught(
        returning(BoundedPieceReplies(), {1: ("flood",)}, piece_bytes=4)
    )


def test_who_gives_it_four_times_is_sound() -> None:
    checker = BoundedPieceReplies()
    swarm = returning(checker, {1: ("flood",)}, piece_bytes=4)
    swarm.run_until(lambda: is_back(swarm), 12.0)
    assert checker.judged > 8


@pytest.mark.parametrize("lie", PIECE_ATTACKS)
@pytest.mark.parametrize("kind", [NoRedundantPieceRequests, BoundedPieceRequests])
def test_who_asks_others_for_what_is_missing_is_sound(lie: str, kind: type[Checker]) -> None:
    checker = kind()
    swarm = returning(checker, attackers(lie), piece_bytes=4)
    swarm.run_until(lambda: is_back(swarm), 12.0)
    assert swarm.outgoing.count_attacks()[lie], "no liar was asked: the test proves nothing"
    assert checker.judged > 8


# --- what is asked, and answered ------------------------------------------------------------------


def in_different_rounds(checker: Checker) -> Swarm[Peer]:
    """A round takes less than the questions of peer 1 are apart,
    each of which takes another time to get there."""
    swarm = returning(checker, compute_s=FAST_S)
    for donor in (0, 2, 3, 4):
        delay_s = 0.001 + 0.035 * donor
        swarm.network.shape([(1, donor)], delay_s=(delay_s, delay_s))
    return swarm


def test_who_asks_others_wherever_they_are_over_and_over_is_caught() -> None:
    swarm = in_different_rounds(AttestationRoundNaming())
    recovery = swarm.hosts[1].core.recovery
    poll = recovery._poll

    def as_if_first(now: float) -> list[Effect]:
        recovery.poll.named = 1  # as if the last poll had named a round
        return poll(now)

    recovery._poll = as_if_first  # type: ignore[method-assign]
    assert "of any round, directly after such a request has failed" in caught(swarm)


def test_who_names_a_round_to_come_is_sound() -> None:
    checker = AttestationRoundNaming()
    swarm = in_different_rounds(checker)
    swarm.run_until(lambda: is_back(swarm), 4.0)
    assert checker.judged
