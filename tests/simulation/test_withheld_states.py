"""Who needs a state does not wait without end for one who is there, does not deny to have one, and
never gives it; and gives up no honest donor that is slow. Nor does such a donor give up itself."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import checked_swarm as checked_swarm_module
import pytest
from checked_swarm import checked_swarm
from effort import effort

from gossip.core import Envelope, Payload
from gossip.core.events import Restored
from gossip.core.lifecycle.exit_codes import QUORUM_LOST, REFUSED
from gossip.core.messages import PeerId, StateOffer
from gossip.core.peer import Peer
from gossip.core.settings import DONOR_FACTOR, GIVEN_TIMES_MAX, REFUSALS_MAX, RoundSettings
from gossip.core.transfer import donor_records
from gossip.core.transfer.donor import NO_STATE, TAKES_OVER
from gossip.inject import OutMessage
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.liars import ByzantinePeers

ELEMENTS, PIECE_BYTES = 100, 4
LONG_TRANSFER: dict[str, Any] = {
    "sizes": (5 * ELEMENTS,),
    "piece_bytes": 2 * PIECE_BYTES,
    "quorum_timeout_s": 25.0,
}
"""Over a link that takes half a second it takes a minute: longer than a donor has that gives
nothing, and its taker after that."""
SWARMS = pytest.mark.parametrize(
    ("topology", "f"), [("rolling", 0), *effort([], [("full", 0)]), ("full", 1)]
)


class WithheldOffers:
    """What ``Swarm.outgoing`` is set to: these peers vouch for their state, and never send it."""

    def __init__(self, attackers: Iterable[PeerId]) -> None:
        self.attackers = set(attackers)

    def __call__(
        self, sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> Iterable[OutMessage]:
        is_withheld = sender in self.attackers and isinstance(envelope.message, StateOffer)
        return [] if is_withheld else [(to, envelope, payload)]


def never_give_up(swarm: Swarm[Peer], peer: PeerId) -> None:
    """Though too few are left for a round."""
    swarm.hosts[peer].core.quorum_watch.check_quorum = lambda *_, **__: ([], None)  # type: ignore[method-assign]


def left_with(attackers: int, n: int, f: int, lie: str = "", **options: Any) -> Swarm[Peer]:
    """Of ``n`` peers the first so many are Byzantine and never give up, the last has died for good,
    and the others are started again: nobody else has a state."""
    swarm = checked_swarm(n=n, f=f, **options)
    swarm.run_for(1.0)
    liars = range(attackers)
    swarm.outgoing = (
        ByzantinePeers(swarm, dict.fromkeys(liars, (lie,))) if lie else WithheldOffers(liars)
    )
    for peer in liars:
        never_give_up(swarm, peer)
    for peer in range(attackers, n - 1):
        swarm.restart(peer, 0.2)
    swarm.crash(n - 1)
    return swarm


def assert_all_give_up(swarm: Swarm[Peer], peers: Iterable[PeerId], times: float = 1.0) -> None:
    """Not before they have waited for a donor, and for others to come back. ``times``: so often
    they may begin to wait anew."""
    rounds = swarm.cores[0].settings.rounds
    patience_s = DONOR_FACTOR * rounds.round_timeout_s
    swarm.run_for(patience_s + rounds.quorum_timeout_s - 5.0)
    assert all(swarm.hosts[peer].running for peer in peers), "an honest donor may be slow"
    swarm.run_for(10.0 + (times - 1.0) * patience_s)
    for peer in peers:
        halt = swarm.hosts[peer].halt
        assert halt is not None, f"peer {peer} waits on"
        assert halt.exit_code == QUORUM_LOST
        assert "none of them sends a state" in halt.reason


@pytest.mark.parametrize("topology", ["rolling", "full"])
@pytest.mark.parametrize("lie", ["kept_states", "broken_states"])
def test_who_keeps_its_state_keeps_nobody_for_good(lie: str, topology: str) -> None:
    assert_all_give_up(left_with(1, 4, 1, lie, topology=topology), (1, 2))


@pytest.mark.parametrize(("n", "f"), effort([(4, 1)], [(4, 1), (7, 2)]))
def test_f_who_vouch_and_never_send_keep_nobody_for_good(n: int, f: int) -> None:
    assert_all_give_up(left_with(f, n, f), range(f, n - 1))


@pytest.mark.parametrize(("n", "f"), effort([(4, 1)], [(4, 1), (7, 2)]))
def test_who_begins_to_send_and_stalls_keeps_nobody_for_good(n: int, f: int) -> None:
    pieces = {"sizes": (ELEMENTS,), "piece_bytes": PIECE_BYTES}
    swarm = left_with(f, n, f, "few_pieces", **pieces)
    assert_all_give_up(swarm, range(f, n - 1), times=2.0)
    assert swarm.outgoing.count_attacks()["few_pieces"] > 0


def test_whose_state_trickles_keeps_nobody_for_good() -> None:
    """It would take 400 s."""
    swarm = left_with(1, 4, 1, "kept_states", sizes=(ELEMENTS,))
    swarm.outgoing = None
    swarm.network.shape([(0, 1), (0, 2)], bytes_per_s=1.0)
    assert_all_give_up(swarm, (1, 2))


def taking(**options: Any) -> Swarm[Peer]:
    """Peer 1 of three is started again and takes the state of peer 0; peer 2 has died for good."""
    swarm = checked_swarm(n=3, **options)
    swarm.run_for(1.0)
    swarm.crash(2)
    swarm.restart(1, 0.2)
    return swarm


def test_a_slow_donor_is_not_given_up_while_its_pieces_come() -> None:
    swarm = taking(sizes=(ELEMENTS,), piece_bytes=PIECE_BYTES)
    swarm.network.shape([(0, 1)], bytes_per_s=PIECE_BYTES / 1.5)
    rounds = swarm.cores[0].settings.rounds
    swarm.run_for(DONOR_FACTOR * rounds.round_timeout_s + rounds.quorum_timeout_s + 10.0)
    assert swarm.hosts[1].running
    assert swarm.cores[1].recovery.pieces is not None, "it has it already: that proves nothing"
    assert not swarm.reports(1, "paused"), "nor does it think of it"
    before = swarm.cores[0].rounds.round_id
    swarm.run_until(lambda: swarm.cores[0].rounds.round_id > before + 3, 120.0)
    assert swarm.hosts[1].running


def test_a_donor_far_away_is_not_given_up_while_its_pieces_come() -> None:
    """Each comes at once, a while after it was asked for."""
    swarm = taking(sizes=(5 * ELEMENTS,), piece_bytes=PIECE_BYTES)
    swarm.network.shape([(0, 1)], delay_s=(0.13, 0.13))
    swarm.run_for(DONOR_FACTOR * swarm.cores[0].settings.rounds.round_timeout_s + 5.0)
    assert swarm.cores[1].recovery.pieces is not None, "it has it already: that proves nothing"
    assert not swarm.reports(1, "paused")
    swarm.run_until(lambda: bool(swarm.reports(1, "restored")), 30.0)


def go_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ``--quorum available``."""
    monkeypatch.setattr(
        checked_swarm_module, "RoundSettings", partial(RoundSettings, quorum="available")
    )


def assert_restored(swarm: Swarm[Peer], taker: PeerId) -> None:
    """Not before one gives up that counts on nobody any more."""
    swarm.run_for(swarm.cores[taker].settings.rounds.quorum_timeout_s + 5.0)
    assert not swarm.reports(taker, "restored"), "it has it already: that proves nothing"
    host = swarm.hosts[taker]
    swarm.run_until(lambda: not host.running or bool(swarm.reports(taker, "restored")), 200.0)
    assert host.running, host.halt


def test_who_had_none_itself_is_a_donor_like_any_other_when_it_has_one() -> None:
    """The trainers of those with a state are busy while all the others, started again, ask each
    other in vain, several times a second. Then those have died, and the last takes it from them."""
    n, f = 7, 1
    swarm = checked_swarm(n=n, f=f, compute_s=0.8, **LONG_TRANSFER)
    swarm.run_for(4.0)
    last, first, others = n - 1, range(f + 1), range(f + 1, n - 1)
    for peer in first:
        swarm.stop_trainer(peer)
    swarm.network.shape([(peer, last) for peer in range(last)], delay_s=(0.8, 0.8))
    for peer in (*others, last):
        swarm.restart(peer, 0.2)
    swarm.run_for(20.0)
    for peer in first:
        swarm.resume_trainer(peer)
    swarm.run_until(lambda: all(swarm.reports(peer, "restored") for peer in others), 30.0)
    for peer in first:
        swarm.crash(peer)
    assert_restored(swarm, last)


@SWARMS
def test_a_donor_whose_link_comes_and_goes_is_counted_on_while_its_pieces_come(
    topology: str, f: int
) -> None:
    swarm = checked_swarm(n=3, f=f, topology=topology, **LONG_TRANSFER)
    swarm.run_for(1.0)
    swarm.crash(2)
    never_give_up(swarm, 0)
    swarm.network.shape([(0, 1)], delay_s=(0.5, 0.5))
    swarm.restart(1, 0.2)
    swarm.run_for(1.5)
    for _ in range(GIVEN_TIMES_MAX + 2):
        swarm.network.cut([(0, 1), (1, 0)])
        swarm.run_for(1.5)
        swarm.network.mend([(0, 1), (1, 0)])
        swarm.run_for(3.0)
    assert f == 0 or swarm.cores[1].recovery.records.deadlines.is_used_up(0), "that proves nothing"
    assert_restored(swarm, 1)


@SWARMS
def test_a_donor_that_gives_newer_states_meanwhile_is_counted_on_while_pieces_come(
    topology: str, f: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps few copies, and peer 2 is started again and again, and takes another one each
    time."""
    go_on_alone(monkeypatch)
    swarm = checked_swarm(n=3, f=f, topology=topology, compute_s=0.3, **LONG_TRANSFER)
    swarm.run_for(2.0)
    never_give_up(swarm, 0)
    swarm.network.shape([(0, 1)], delay_s=(0.5, 0.5))
    swarm.network.cut([(1, 2), (2, 1)])
    swarm.restart(1, 0.2)
    swarm.run_for(1.0)
    for _ in range(3 * GIVEN_TIMES_MAX):
        swarm.restart(2, 0.2)
        swarm.run_for(3.0)
    swarm.crash(2)
    assert f == 0 or swarm.cores[1].recovery.records.deadlines.is_used_up(0), "that proves nothing"
    assert_restored(swarm, 1)


@pytest.mark.parametrize(
    ("topology", "f", "load_s"),
    [("rolling", 0, 90.0), *effort([], [("full", 0, 90.0)]), ("full", 1, 40.0)],
)
def test_who_has_a_whole_state_to_load_does_not_say_that_it_has_none(
    topology: str, f: int, load_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peer 1 has it from peer 2, which had denied to have one, and dies with peer 0."""
    go_on_alone(monkeypatch)
    swarm = checked_swarm(n=4, f=f, topology=topology)
    swarm.run_for(1.0)
    swarm.stop_trainer(0)
    for peer in (1, 2, 3):
        swarm.restart(peer, 0.2)
    swarm.run_for(20.0)
    for a, b in ((0, 1), (0, 3), (2, 3)):  # peer 0 is within reach of peer 2 only
        swarm.network.cut([(a, b), (b, a)])
    for peer in (1, 3):
        swarm.hosts[peer].trainer.pace.snapshot_s = load_s
    swarm.resume_trainer(0)
    swarm.run_until(lambda: swarm.cores[1].recovery.restores, 60.0)
    deadlines = swarm.cores[1].recovery.records.deadlines
    deadlines._renewals[2] = GIVEN_TIMES_MAX + 1  # of whoever gave it
    for peer in (0, 2):
        swarm.crash(peer)
    swarm.network.heal()
    before = len(swarm.reports(3, "no_state"))
    swarm.run_for(load_s - 5.0)
    assert swarm.cores[1].recovery.restores, "it has loaded it: that proves nothing"
    assert swarm.hosts[3].running, swarm.hosts[3].halt
    said = {report.fields["reason"] for report in swarm.reports(3, "no_state")[before:]}
    assert TAKES_OVER in said
    assert NO_STATE not in said
    swarm.run_for(10.0)
    assert swarm.reports(1, "restored")


@pytest.mark.parametrize("busy_s", [20.0, 60.0])
def test_a_donor_whose_trainer_is_busy_gives_its_state_after_that(busy_s: float) -> None:
    """It compiles, say, or writes a checkpoint. Its node answers, and cannot say more."""
    swarm = taking()
    swarm.stop_trainer(0)
    swarm.run_for(busy_s)
    assert not swarm.reports(1, "restored"), "it was not busy: that proves nothing"
    swarm.resume_trainer(0)
    swarm.run_until(lambda: bool(swarm.reports(1, "restored")), 10.0)


def test_one_that_takes_the_state_again_and_again_keeps_nobody_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot load it, and does not leave for that."""
    monkeypatch.setattr(donor_records, "REFUSALS_MAX", 10**9)
    swarm = taking()
    refuse_states(swarm, 1)
    rounds = swarm.cores[0].settings.rounds
    patience_s = DONOR_FACTOR * rounds.round_timeout_s
    swarm.run_for(10.0)
    assert len(swarm.reports(0, "snapshot_served")) > 2
    swarm.run_for(patience_s + 2.0 * rounds.quorum_timeout_s)
    ends = [swarm.hosts[peer].halt for peer in (0, 1)]
    assert [halt and halt.exit_code for halt in ends] == [QUORUM_LOST, QUORUM_LOST]


@pytest.mark.parametrize("n", [2, 5])
def test_a_peer_that_can_load_no_state_leaves_and_names_the_difference(n: int) -> None:
    swarm = checked_swarm(n=n)
    swarm.run_for(1.0)
    swarm.restart(1, 0.2)
    refuse_states(swarm, 1)
    swarm.run_until(lambda: swarm.hosts[1].halt is not None, 30.0)
    halt = swarm.hosts[1].halt
    assert halt.exit_code == REFUSED
    assert "0.weight differs" in halt.reason
    assert len(swarm.reports(1, "bad_state")) == REFUSALS_MAX
    before = swarm.cores[0].rounds.round_id
    if n > 2:
        swarm.run_until(lambda: swarm.cores[0].rounds.round_id > before + 3, 30.0)


def refuse_states(swarm: Swarm[Peer], peer: PeerId) -> None:
    trainer: Any = swarm.hosts[peer].trainer
    trainer._restore = lambda restore, now: Restored(restore.round_id, "0.weight differs")
