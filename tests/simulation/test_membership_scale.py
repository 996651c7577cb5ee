"""Larger swarms and worse weather than usual."""

from __future__ import annotations

from itertools import cycle
from math import log10
from statistics import median

import pytest
from effort import effort
from member_swarm import MemberCore, StallBlindCore, all_fine, checked, find_changes, member_swarm

from gossip.core import table_interval_s
from gossip.core.membership import table
from gossip.core.membership.suspicion import shortest_s
from gossip.core.settings import SCANNED_MEMBERS, MembershipSettings
from gossip_lab.simulation.campaign.many_peers import TrafficMeter
from gossip_lab.simulation.world import LinkModel, Network, Swarm

RAIN = LinkModel(delay_s=(0.0, 0.1), loss=0.2, duplicate=0.2)
NAPS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
WORST_WITHIN_S = 60.0  # within this time an observer on lossy links suspects a peer
FIRST_TABLES_S = 6.0  # within this time every peer has sent its first table
LIMIT_S = 60.0


@pytest.mark.parametrize(
    ("n", "seed", "seconds", "in_order", "sleepers"),
    [(3, 7, 50.0, True, 0), (8, 21, 25.0, True, 0), (5, 22, 60.0, False, 2)],
    ids=["few", "eight", "beside sleepers"],
)
def test_nobody_dies_of_loss_duplication_and_jitter_together(
    n: int, seed: int, seconds: float, in_order: bool, sleepers: int
) -> None:
    """Sleepers pause all the time, and are restarted now and then."""
    network = Network(RAIN, fifo=in_order)
    swarm = member_swarm(n, seed, network)
    suite, naps = checked(swarm), cycle(NAPS_S)
    for turn in range(round(seconds / 5.0)):
        for peer in range(sleepers):
            if swarm.hosts[peer].state == "up":
                (swarm.restart if turn % 5 == 4 else swarm.pause_for)(peer, next(naps))
        swarm.run_for(5.0)
    swarm.run_until(lambda: all(swarm.hosts[p].state == "up" for p in range(sleepers)), 10.0)
    sent = swarm.counts["sent"] - swarm.counts["no_link"]
    assert 0.18 < swarm.counts["lost"] / sent < 0.22
    assert 0.14 < swarm.counts["duplicated"] / sent < 0.18  # of the four fifths that are not lost
    # each of which might have ended in a death
    assert len(find_changes(swarm, "suspect")) > 0.5 * (n - sleepers) * seconds
    network.default = LinkModel()
    suite.settle(swarm)
    assert bool(suite.judged_by()["NoFalseDeath"]) == bool(sleepers)


def suspects_one_awake(swarm: Swarm[MemberCore], observers: range) -> bool:
    """Whether an observer is about to declare a death, by evidence of its own."""
    return any(
        m.suspicion is not None and m.suspicion.proven and m.peer not in observers
        for observer in observers
        for m in swarm.cores[observer].membership.members.values()
    )


@pytest.mark.parametrize("pause_s", [0.1, 0.25, 0.8, 5.0, 60.0])
@pytest.mark.parametrize("core", [MemberCore, StallBlindCore])
def test_observers_that_stood_still_for_any_time_kill_nobody(
    pause_s: float, core: type[MemberCore]
) -> None:
    """On lossy links the pause begins at the worst moment: the accusation is the last message
    before it. A deaf observer also loses the messages of the pause."""
    for seed, (n, count, loss, deaf) in enumerate(
        [(5, 1, 0.0, False), (5, 2, 0.2, True), (4, 3, 0.2, False)]
    ):
        network = Network(LinkModel(loss=loss, delay_s=(0.0, 0.1)) if loss else LinkModel())
        swarm = member_swarm(n, seed, network, make=core)
        suite, observers = checked(swarm), range(n - count, n)
        swarm.run_for(2.0 + swarm.rng.uniform(0.0, 1.0))  # at a random phase of the probes
        if loss:
            swarm.run_until(lambda s=swarm, o=observers: suspects_one_awake(s, o), WORST_WITHIN_S)
        for observer in observers:
            swarm.pause(observer)
        swarm.run_for(pause_s)
        for observer in observers:
            if deaf:
                swarm.hosts[observer].waiting.clear()
            swarm.resume(observer)
        swarm.run_for(5.0)  # after the pause the observers judge with the loss of the pause
        network.default = LinkModel()
        suite.settle(swarm)


@pytest.mark.parametrize(
    ("n", "large", "connections_close"),
    [
        (30, SCANNED_MEMBERS, True),
        effort((30, 24, False), (SCANNED_MEMBERS + 6, SCANNED_MEMBERS, False)),
    ],
)
def test_a_swarm_agrees_after_a_tenth_of_it_crashed_at_once(
    n: int, large: int, connections_close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a swarm of more than ``SCANNED_MEMBERS``, helpers and audiences are drawn."""
    monkeypatch.setattr(table, "SCANNED_MEMBERS", large)
    silent = Network(closing_s=(1e9, 1e9), heartbeat_s=None)  # the kernel reports nothing
    swarm = member_swarm(n, 3, Network() if connections_close else silent, encoded=False)
    swarm.run_for(FIRST_TABLES_S)
    silence = lambda: not any(len(core.membership.rumors) for core in swarm.cores.values())  # noqa: E731
    swarm.run_until(silence, LIMIT_S)
    assert all_fine(swarm)
    swarm.outgoing = calm = TrafficMeter()
    calm_s = table_interval_s(n, MembershipSettings())
    swarm.run_for(calm_s)
    swarm.outgoing = after = TrafficMeter()
    crashed_at, victims = swarm.now, range(0, n, 10)
    for victim in victims:
        swarm.crash(victim)
    # A table is compared only every tenth of a second, because that takes long.
    while not all_fine(swarm):
        assert swarm.now < crashed_at + 3.5, swarm.summary()
        swarm.run_for(0.1)
    swarm.run_for(2.0)  # a peer that was wrongly accused in this time could be dead by now
    wrong = [c for what in ("suspect", "dead") for c in find_changes(swarm, what)]
    assert [c for c in wrong if c[0] < crashed_at or c[2].peer not in victims] == []
    first = {
        what: median(min(find_changes(swarm, what, about=v))[0] - crashed_at for v in victims)
        for what in ("suspect", "dead")
    }
    assert first["suspect"] < (0.01 if connections_close else 0.6)
    least_s = shortest_s(n, MembershipSettings())
    assert least_s == pytest.approx(0.8 * log10(n))
    # not before the suspicion's time, which shrinks as others die
    assert least_s - 0.1 < first["dead"]
    # A ping and an ack every 0.2 s with nothing to tell, and tables besides.
    assert 9.0 < calm.sent.total() / n / calm_s < 11.0
    tables_bytes = calm.largest["PushPull"] * calm.sent["PushPull"]
    assert (calm.by_peer.total() - tables_bytes) / n / calm_s < 500.0
    # each victim's accusations and death, more than once
    assert after.by_peer.total() / len(swarm.up) > n // 10 * 4 * 20
