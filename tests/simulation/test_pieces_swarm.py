"""A state that comes in pieces: from several donors at once, each piece once,
whoever dies or lies on the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from checked_swarm import checked_swarm

from gossip.core.events import Received, Send
from gossip.core.messages import PeerId, StateOffer, StateRequest
from gossip.core.peer import Peer
from gossip.faults.world import PIECE_ATTACKS
from gossip_lab.simulation.checkers import CheckerSuite, RunConditions, every_checker
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.liars import ByzantinePeers
from gossip_lab.simulation.world.observer import Observer
from gossip_lab.simulation.world.toy_trainer import ToyTrainer

PIECES, PIECE_BYTES = 12, 4
SLOW_S = 0.05  # of what the taker says: several questions are on their way at any time


class Pieces(Observer):
    """What peer 1 asks for and is sent."""

    def __init__(self) -> None:
        self.asked: list[tuple[PeerId, int]] = []
        self.came: list[tuple[PeerId, int]] = []
        self.nbytes = 0  # of what came of the part that is cut

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Any) -> None:
        if (
            peer == 1
            and isinstance(effect, Send)
            and isinstance(effect.message, StateRequest)
            and effect.message.piece
        ):
            self.asked.append((effect.peer, effect.message.piece))

    def on_event(self, swarm: Swarm[Any], peer: PeerId, event: Any) -> None:
        if (
            peer != 1
            or not isinstance(event, Received)
            or not isinstance(event.message, StateOffer)
        ):
            return
        if event.message.piece and event.payload is not None:
            self.came.append((event.sender, event.message.piece))
            self.nbytes += event.payload.nbytes


def returning(
    n: int, f: int, pieces: Pieces, lies: dict[PeerId, tuple[str, ...]] | None = None
) -> Swarm[Peer]:
    """Peer 1 was killed and is started again at 1 s; every checker looks on."""
    lies = lies or {}
    names = sorted({lie for told in lies.values() for lie in told})
    checkers = every_checker(
        RunConditions.of(lies, equivocating=lies, attacks=names, loses_votes=True)
    )
    swarm = checked_swarm(
        CheckerSuite(checkers), pieces, n=n, f=f, sizes=(PIECES,), piece_bytes=PIECE_BYTES
    )
    swarm.outgoing = ByzantinePeers(swarm, lies)
    swarm.run_for(1.0)
    swarm.network.shape([(1, donor) for donor in range(n) if donor != 1], delay_s=(SLOW_S, SLOW_S))
    swarm.restart(1)
    return swarm


def comes_back(swarm: Swarm[Peer], within_s: float = 6.0) -> None:
    swarm.run_until(
        lambda: bool(swarm.reports(1, "restored")) and swarm.cores[1].phase == "running", within_s
    )
    swarm.run_for(0.5)
    assert not swarm.reports(1, "unattested_state")


def test_the_pieces_come_from_all_who_vouch_and_each_of_them_once() -> None:
    pieces = Pieces()
    swarm = returning(6, 2, pieces)
    comes_back(swarm)
    assert sorted(piece for _, piece in pieces.came) == list(range(1, PIECES + 1))
    assert len({donor for donor, _ in pieces.came}) == 3, "f + 1 have vouched"
    assert pieces.nbytes == PIECES * PIECE_BYTES


@pytest.mark.parametrize("f", [0, 2])
def test_pieces_unchanged_by_training_are_not_sent(f: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first half of the parameters is frozen, and the same in each life of a peer."""
    update, frozen = ToyTrainer.update, PIECES // 2

    def update_others(self: ToyTrainer, *about: Any) -> list[float]:
        return [0.0] * frozen + update(self, *about)[frozen:]

    monkeypatch.setattr(ToyTrainer, "update", update_others)
    pieces = Pieces()
    swarm = returning(6, f, pieces)
    comes_back(swarm)
    assert sorted(piece for _, piece in pieces.came) == [*range(frozen + 1, PIECES + 1)]
    assert pieces.nbytes == frozen * PIECE_BYTES


@pytest.mark.parametrize("offers", [True, False])
def test_what_a_donor_has_sent_before_it_dies_is_not_sent_again(offers: bool) -> None:
    """``offers``: it is the one that has offered the state, and not one of those who help it."""
    pieces = Pieces()
    swarm = returning(6, 2, pieces)
    taker = swarm.cores[1].recovery

    def asked_for_more() -> list[PeerId]:
        """Who has sent pieces, and has another question on its way to it."""
        return [donor for donor, piece in pieces.asked[6:] if (donor == taker.donor) == offers]

    swarm.run_until(lambda: bool(asked_for_more()), 4.0)
    swarm.crash(asked_for_more()[0])
    comes_back(swarm)
    assert max(Counter(piece for _, piece in pieces.came).values()) == 1
    assert pieces.nbytes == PIECES * PIECE_BYTES
    again = [
        piece for piece, times in Counter(piece for _, piece in pieces.asked).items() if times > 1
    ]
    assert 1 <= len(again) <= 2, "what it was asked for and has not sent"


def test_with_f_0_the_pieces_come_from_the_donor_that_offers_them() -> None:
    pieces = Pieces()
    swarm = returning(5, 0, pieces)
    comes_back(swarm)
    assert sorted(piece for _, piece in pieces.came) == list(range(1, PIECES + 1))
    assert len({donor for donor, _ in pieces.came}) == 1


def test_with_f_0_a_donor_that_dies_on_the_way_gives_way_to_another() -> None:
    pieces = Pieces()
    swarm = returning(5, 0, pieces)
    swarm.run_until(lambda: len(pieces.came) >= 3, 4.0)
    swarm.crash(pieces.came[0][0])
    comes_back(swarm)
    assert len({donor for donor, _ in pieces.came}) == 2


@pytest.mark.parametrize("lie", PIECE_ATTACKS)
def test_a_liar_among_the_donors_is_asked_for_nothing_more(lie: str) -> None:
    pieces = Pieces()
    swarm = returning(6, 2, pieces, {0: (lie,)})
    comes_back(swarm, 12.0)
    of_attacker = [piece for donor, piece in pieces.asked if donor == 0]
    assert 1 <= len(of_attacker) <= 3, (
        "the two that it may have before it, and one more after a true one"
    )
    assert swarm.outgoing.count_attacks()[lie] >= 1
    asked = Counter(piece for _, piece in pieces.asked)
    assert sum(asked.values()) - PIECES <= 2, asked
