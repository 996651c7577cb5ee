"""Nobody waits in vain: for a server that it skips, when all updates are there, or without asking
for what it lacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from checked_swarm import checked_swarm, tamper
from impatient import as_it_was

from gossip.core.events import Aggregate, Contributed, Effect, Event, Received, StartRound
from gossip.core.messages import Commit, Hello, NotServing, PeerId
from gossip.core.peer import Peer
from gossip.core.rounds.arrivals import FORGOTTEN_S, GAPS, TransferTracker
from gossip.core.rounds.rolling import RollingRounds
from gossip.core.rounds.server import Server
from gossip.faults.kinds import Hang, Slow
from gossip.faults.world import CrashBroadcast, HangServer, Leave, Loss, Narrow, Partition, Reset
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.checkers import Checker, Panel, RunConditions, Violation
from gossip_lab.simulation.checkers.disturbances import Disturbances
from gossip_lab.simulation.checkers.liveness.promptness import (
    AsksForWhatItLacks,
    NobodyIsStuck,
    NobodyWaitsForTheSkipped,
    OverWhenAllIsThere,
    TakesAStateInstead,
)
from gossip_lab.simulation.checkers.safety.rounds import AppliedOnce
from gossip_lab.simulation.schedules.generator import generate
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.observer import Observer


def under(kind: Callable[..., Checker], **options: Any) -> Swarm[Peer]:
    """A swarm that has trained for a while, under one checker."""
    disturbances = Disturbances()
    checker = kind(disturbances) if kind in (NobodyIsStuck, OverWhenAllIsThere) else kind()
    swarm = checked_swarm(Panel([disturbances, checker]), **{"compute_s": 0.5, **options})
    swarm.run_for(3.3)
    return swarm


ONE_SIDED = Schedule(
    19,
    active_s=6.471,
    duration_s=6.471,
    compute_s=(0.46, 0.58),
    rule_s=0.1,
    probe_interval_s=1.0,
    round_timeout_s=3.0,
    batch_policy="fixed_global",
    faults=(Reset(0.57, 5.313, 1.058, (2,)),),
)
"""Only one of the two has seen the link break, and each waits for the other: one to serve, one to
send its update."""


def test_an_ack_tells_that_a_peer_behind_a_new_link_is_the_one_that_was_there() -> None:
    outcome = run(ONE_SIDED)
    assert outcome.violation is None, outcome.violation


def test_l2_a_silence_that_only_a_round_ends_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RollingRounds, "on_progress", RollingRounds._on_progress)
    monkeypatch.setattr(Server, "request_from_newcomers", lambda self, shard: [])  # which heals it
    violation = run(ONE_SIDED).violation
    assert violation is not None
    assert violation.invariant == "L2"


BETWEEN_PAYLOADS = Schedule(
    2,
    peers=4,
    active_s=12.66,
    duration_s=12.66,
    shards=(4,) * 5,
    compute_s=(0.46, 0.58),
    rule_s=0.1,
    probe_interval_s=1.0,
    round_timeout_s=3.0,
    prepare_s=1.0,
    faults=(Narrow(63.995, 16.0, 2.3, 4.0), HangServer(6.4, 6.2)),
)
"""A round waits for 3 s in which no payload is on its way, since its update found a full queue. The
server of the next round then stands still for 6 s."""


def test_one_that_wakes_up_asks_for_what_it_lacks_whatever_it_had_waited_for_before() -> None:
    outcome = run(BETWEEN_PAYLOADS)
    assert outcome.violation is None, outcome.violation


def test_l5_one_that_takes_silence_between_payloads_for_that_of_a_slow_link_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = TransferTracker.record_progress

    def as_before(
        self: TransferTracker, peer: PeerId, received: int, pause_s: float, now: float
    ) -> None:
        at, _ = self._told.get(peer, (float("-inf"), 0))
        gap_s = now - at
        told(self, peer, received, GAPS * gap_s if gap_s <= FORGOTTEN_S else 0.0, now)

    monkeypatch.setattr(TransferTracker, "record_progress", as_before)
    violation = run(BETWEEN_PAYLOADS).violation
    assert violation is not None
    assert violation.invariant == "L5"


def caught(swarm: Swarm[Peer], invariant: str, for_s: float = 8.0) -> Violation:
    with pytest.raises(Violation) as found:
        swarm.run_for(for_s)
    assert found.value.invariant == invariant
    return found.value


def server_of(swarm: Swarm[Peer]) -> PeerId:
    """Whoever serves the round in which all are."""
    rounds: Any = swarm.hosts[0].core.rounds
    shard = rounds._shards[0]
    return int(shard.server_of(shard.attempt))


# --- planted violations ---------------------------------------------------------------------------


def test_l3_one_that_does_not_notice_whom_it_skips_is_caught() -> None:
    swarm = under(NobodyWaitsForTheSkipped)
    server = server_of(swarm)
    waiting: Any = swarm.hosts[(server + 1) % 4].core.rounds
    waiting.on_view_change = lambda now: []
    swarm.crash(server)
    found = caught(swarm, "L3")
    assert f"for peer {server}, which it skips (disconnected)" in found.text


def test_l3_one_that_waits_for_a_server_that_has_finished_is_caught() -> None:
    swarm = under(NobodyWaitsForTheSkipped)
    server = server_of(swarm)
    waiting: Any = swarm.hosts[(server + 1) % 4].core.rounds

    def notes(sender: PeerId, hello: Hello, now: float) -> list[Effect]:
        if hello.stage != "ready":
            waiting.departures.record_departure(sender, hello)
        return []

    waiting.on_hello = notes
    swarm.stop(server)
    assert "it has finished" in caught(swarm, "L3").text


def test_l3_one_that_offers_its_update_to_a_skipped_server_is_caught() -> None:
    swarm = under(NobodyWaitsForTheSkipped)
    server = server_of(swarm)
    stubborn: Any = swarm.hosts[(server + 1) % 4].core.rounds
    stubborn._next_attempt = lambda shard, first, now: first
    swarm.crash(server)
    # It is the server again whenever its turn comes in the order,
    # until a commit leaves it out of the roster.
    stubborn.on_view_change = lambda now: []
    assert caught(swarm, "L3").peer == (server + 1) % 4


def loses_an_aggregate(
    circumstances: RunConditions, after_s: float = 0.0
) -> tuple[Swarm[Peer], Panel, list[bool]]:
    """A swarm of which the next server loses what it asks its rule for, once, in ``after_s`` or
    later; and whether it has."""
    panel = Panel([disturbances := Disturbances(), OverWhenAllIsThere(disturbances, circumstances)])
    swarm, lost = checked_swarm(panel, compute_s=0.5), list[bool]()
    swarm.run_for(3.3)
    from_s = swarm.now + after_s

    def drops(event: Event, effects: list[Effect]) -> list[Effect] | None:
        asks = any(isinstance(effect, Aggregate) for effect in effects)
        if lost or swarm.now < from_s or not asks:
            return None
        lost.append(True)
        return [effect for effect in effects if not isinstance(effect, Aggregate)]

    tamper(swarm, server_of(swarm), drops)
    return swarm, panel, lost


def test_l2_a_round_that_is_not_over_when_all_is_there_is_caught() -> None:
    swarm, _, _ = loses_an_aggregate(RunConditions())
    assert "with nobody missing" in caught(swarm, "L2").text


LATE = RunConditions.of((3,), lies=("wrong_size",))
IN_TIME = RunConditions.of((3,), lies=("sign_flip",))


def test_l2_a_round_that_a_liar_may_have_held_up_before_the_calm_is_not_judged_in_it() -> None:
    """Seed 732: what the others were sent is not what its trainer had come with."""
    swarm, panel, lost = loses_an_aggregate(LATE)
    swarm.run_until(lambda: bool(lost), 3.0)
    panel.begin_calm(swarm)
    swarm.run_for(8.0)
    assert panel.judged()["L2"] > 0


def test_l2_a_round_that_is_under_way_when_the_calm_begins_is_not_judged_either() -> None:
    """All updates of it come in the calm. But who was told of a later turn before waits there."""
    swarm, panel, lost = loses_an_aggregate(LATE)
    panel.begin_calm(swarm)
    swarm.run_for(8.0)
    assert lost
    assert panel.judged()["L2"] > 0


@pytest.mark.parametrize(
    ("circumstances", "calm_first"),
    [(LATE, True), (IN_TIME, False)],
    ids=["of the calm", "of no such liar"],
)
def test_l2_a_round_that_no_liar_can_have_held_up_is_judged_in_the_calm(
    circumstances: RunConditions, calm_first: bool
) -> None:
    swarm, panel, lost = loses_an_aggregate(circumstances, 1.0 if calm_first else 0.0)
    if not calm_first:
        swarm.run_until(lambda: bool(lost), 3.0)
    panel.begin_calm(swarm)
    assert "with nobody missing" in caught(swarm, "L2").text
    assert lost


def test_l2_one_that_is_stuck_where_nothing_is_in_its_way_is_caught() -> None:
    swarm = under(NobodyIsStuck, compute_s=0.4)
    tamper(
        swarm,
        2,
        lambda event, effects: (
            [] if isinstance(event, Received) and isinstance(event.message, Commit) else None
        ),
    )
    tamper(
        swarm,
        2,
        lambda event, effects: [effect for effect in effects if not isinstance(effect, Aggregate)],
    )
    assert "nothing in its way" in caught(swarm, "L2").text


def test_l5_one_that_is_told_that_it_is_behind_and_does_not_ask_is_caught() -> None:
    swarm = under(AsksForWhatItLacks, compute_s=0.2)
    core: Any = swarm.hosts[2].core
    handle, core.rounds.lag_detector.behind = core.handle, lambda *told: []

    def misses_commits(event: Event, now: float) -> list[Effect]:
        lost = (
            isinstance(event, Received)
            and isinstance(event.message, Commit)
            and event.message.round_id <= core.rounds.round_id
        )
        return [] if lost else list(handle(event, now))

    core.handle = misses_commits
    found = caught(swarm, "L5")
    assert found.peer == 2
    assert "has asked for nothing since" in found.text


@pytest.mark.parametrize("ahead", [1, 1000])
@pytest.mark.parametrize("takes_a_state", [True, False])
def test_l5_one_that_cannot_go_on_by_commits_and_takes_no_state_is_caught(
    takes_a_state: bool, ahead: int
) -> None:
    swarm = under(TakesAStateInstead)
    core: Any = swarm.hosts[2].core
    here, lag_detector = core.rounds.round_id, core.rounds.lag_detector
    lag_detector._open = (1, here) if ahead == 1 else None
    if not takes_a_state:
        lag_detector.not_kept = lambda *told: []
    told = Received(
        1, 0, NotServing(core.settings.lineage, here, 0, 0, here + ahead, core.rounds.chain)
    )
    if takes_a_state:
        swarm.inject(2, told)
        assert core.phase == "recovering"
        return
    with pytest.raises(Violation, match=f"cannot go on from round {here} by commits"):
        swarm.inject(2, told)


def test_s8_a_trainer_that_is_told_to_compute_a_round_again_is_caught() -> None:
    swarm = under(AppliedOnce)
    tamper(
        swarm,
        1,
        lambda event, effects: [
            new for old in effects for new in ([old, old] if isinstance(old, StartRound) else [old])
        ],
    )
    assert "to compute round" in caught(swarm, "S8").text


def test_rounds_are_judged_while_two_cannot_reach_each_other() -> None:
    judging = OverWhenAllIsThere(disturbances := Disturbances())
    judged: list[int] = []

    class Looks(Observer):
        def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
            if isinstance(effect, StartRound) and swarm.network.cuts:
                judged.append(judging.judged)

    schedule = Schedule(
        2, peers=4, faults=(Partition(((0,), (1,)), 3.0, 6.0),), active_s=9.0, duration_s=9.0
    )
    outcome = run(schedule, [Panel([disturbances, judging]), Looks()])
    assert outcome.violation is None
    assert judged[-1] - judged[0] >= 5


# --- what they have found -------------------------------------------------------------------------


def test_what_a_server_that_leaves_has_in_hand_is_handed_on_at_its_word() -> None:
    """They waited until it was gone, which it is when everybody has sent it the update that
    it has no use for."""
    swarm = checked_swarm(compute_s=0.5)
    swarm.run_for(3.3)
    server = server_of(swarm)
    others = [peer for peer in range(4) if peer != server]
    rounds = [swarm.hosts[peer].core.rounds.round_id for peer in others]
    swarm.stop(server)
    swarm.run_for(0.005)
    assert [swarm.reports(peer, "attempt")[-1].fields["reason"] for peer in others] == [
        f"{server} is skipped: it has finished"
    ] * 3
    assert [swarm.hosts[peer].core.rounds.round_id for peer in others] == rounds


def test_s10_a_commit_that_only_a_newcomer_was_told_of_does_not_exist() -> None:
    """Seeds 1, 5: the server died when it had told the lowest peer alone, which was about to return
    to the roster. Nobody asks such a one, so the round was committed again without it."""
    faults = (CrashBroadcast(3.0, 0, 2.0), CrashBroadcast(6.0, 1, 2.0))
    outcome = run(Schedule(1, peers=4, faults=faults, active_s=9.0, duration_s=12.0))
    assert outcome.violation is None, outcome.violation
    assert outcome.struck == {"crash_broadcast": 2}


@pytest.mark.parametrize("seed", range(3))
def test_s10_a_server_that_stood_still_for_less_than_a_probe_interval_commits_nothing(
    seed: int,
) -> None:
    """Seed 2087: others find a silent link in 0.3 s and go on, which a probe interval of a second
    made nothing of."""
    schedule = Schedule(
        seed,
        peers=6,
        probe_interval_s=1.0,
        faults=(HangServer(3.0, 0.45),),
        active_s=6.0,
        duration_s=8.0,
    )
    outcome = run(schedule)
    assert outcome.violation is None, outcome.violation
    assert outcome.struck == {"hang_server": 1}


def test_a_trainer_that_computes_applies_nothing_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a real one: the rounds that were committed meanwhile wait,
    and its update comes too late for its round."""
    as_it_was(monkeypatch)
    late: list[tuple[int, int]] = []

    class Watches(Observer):
        def on_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
            if (
                isinstance(event, Contributed)
                and event.round_id != swarm.hosts[peer].core.rounds.round_id
            ):
                late.append((peer, event.round_id))

    outcome = run(
        Schedule(4, peers=5, faults=(Slow(1, 3.0),), active_s=6.0, duration_s=8.0), [Watches()]
    )
    assert outcome.violation is None, outcome.violation
    assert late
    assert {peer for peer, _ in late} == {1}


def test_seed_1676_a_sleeper_that_promised_later_attempts_takes_the_commits_that_it_asks_for() -> (
    None
):
    """It was sent them under their own attempts and refused them, asked for all of them twice a
    second, and came back only with the next attempt of each shard: 3.5 s later, and then a crash
    cost five rounds, because its rule needs five of six peers."""
    slept = Schedule(
        1676,
        peers=6,
        aggregator="multi_krum",
        faults=(Hang(2, None, 3.846, 5.026), CrashBroadcast(11.082, 1, 5.107)),
        compute_s=(0.46, 0.58),
        rule_s=0.0001,
        shards=(4, 4, 4),
        probe_interval_s=1.0,
        round_timeout_s=3.0,
        commit_log=64,
    )
    outcome = run(slept)
    assert outcome.violation is None, outcome.violation
    assert outcome.struck["hang"] == outcome.struck["crash_broadcast"] == 1


def test_l2_who_wait_for_a_rule_that_needs_more_peers_are_not_stuck() -> None:
    # One of six has crashed for good and one has left: with multi_krum, four can tolerate nobody.
    # No schedule is drawn so.
    waits = run(dataclasses.replace(generate(881210), aggregator="multi_krum"))
    assert waits.violation is None
    assert waits.reports["paused"] >= 4
    goes_on = run(dataclasses.replace(generate(881210), aggregator="median"))
    assert goes_on.violation is None
    assert goes_on.rounds > waits.rounds + 20


def test_l2_the_pace_is_that_of_peers_that_run_and_are_not_sent_far_ahead_by_a_liar() -> None:
    assert run(generate(881030)).violation is None


ALONE_AFTER_STANDING_STILL = Schedule(
    750,
    peers=6,
    aggregator="geometric_median",
    faults=(Partition(((3,), (0, 1, 2, 4, 5)), 10.7, 0.6), HangServer(8.3, 1.5)),
    active_s=11.301,
    duration_s=11.301,
    compute_s=(0.46, 0.58),
    rule_s=0.01,
    shards=(12,),
    probe_interval_s=0.5,
    commit_log=64,
    prepare_s=0.2,
    piece_bytes=4,
)
MOST_LEAVE_UNHEARD = Schedule(
    1266,
    peers=9,
    aggregator="mean",
    faults=(*[Leave(peer, 8.0) for peer in range(6)], Loss(0.4, 7.8, 0.4)),
    active_s=8.291,
    duration_s=20.291,
    rounds_min=50,
    compute_s=(0.46, 0.58),
    rule_s=0.3,
    shards=(12,),
    probe_interval_s=1.0,
    commit_log=64,
    stable_addresses=False,
    prepare_s=0.2,
)


def test_seed_750_who_stood_still_serves_again_when_it_skips_everybody_else() -> None:
    """It had handed its round on to somebody who is skipped, and offered its update there once it
    could serve itself."""
    outcome = run(ALONE_AFTER_STANDING_STILL)
    assert outcome.violation is None, outcome.violation


def test_seed_1266_who_has_missed_that_another_leaves_is_told_when_it_counts_on_that_one() -> None:
    """Six of nine left while messages were lost for 0.4 s. Nobody heard their word, and three
    waited for ever."""
    outcome = run(MOST_LEAVE_UNHEARD)
    assert outcome.violation is None, outcome.violation


def test_seed_20261267_who_comes_after_the_others_were_asked_is_asked_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its round began at the attempt that the others had handed on, and the server waited for the
    update until its patience ended."""
    outcome = run(generate(20261267))
    assert outcome.violation is None, outcome.violation
    monkeypatch.setattr(Server, "request_from_newcomers", lambda self, shard: [])
    violation = run(generate(20261267)).violation
    assert violation is not None
    assert violation.invariant == "L2"


def test_l5_seed_584_who_stood_still_was_not_silent_for_that_long() -> None:
    """It had asked, heard once more that others are ahead, and was stopped; pings came first when
    it went on, and the checker took the pause for silence."""
    outcome = run(generate(584))
    assert outcome.violation is None, outcome.violation
