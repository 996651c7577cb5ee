"""Every checker of gossip rounds, of what is committed, and of trust catches a violation planted
in a real swarm."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import pytest
from checked_swarm import Change, assert_sound, checked_swarm, each, recommitted, swapped, tamper

from gossip.core.events import (
    Aggregate,
    Aggregated,
    Apply,
    Committed,
    DataSlice,
    Effect,
    Event,
    Report,
    Send,
    StartRound,
)
from gossip.core.ledger.trust import TrustTable
from gossip.core.messages import Push
from gossip.core.peer import Peer
from gossip.core.settings import TrustSettings
from gossip.faults.kinds import ByzantineFault
from gossip.faults.world import Partition
from gossip_lab.simulation.checkers import Checker, CheckerSuite, Violation
from gossip_lab.simulation.checkers.liveness.consensus import BoundedConsensusDistance
from gossip_lab.simulation.checkers.liveness.pushes import DisjointSamples, PushesFollowPlan
from gossip_lab.simulation.checkers.safety.exchange import AggregatesMatchPushes
from gossip_lab.simulation.checkers.safety.results import (
    CommitsMatchRuleResults,
    GossipStepsMatchRuleResults,
)
from gossip_lab.simulation.checkers.trust.quarantine import (
    QuarantineFollowsCommits,
    QuarantineFollowsLocalMeasurements,
)
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.toy_payloads import payload_of
from gossip_lab.simulation.world.toy_rule import mean

ATTACKER = 3
SENDS = "random_k:k=2"


def watched(
    kind: type[Checker], topology: str = SENDS, **options: Any
) -> tuple[Swarm[Peer], Checker]:
    """A swarm that trains, under one checker, for a second."""
    checker = kind()
    swarm = checked_swarm(CheckerSuite([checker]), n=5, topology=topology, **options)
    swarm.run_for(1.0)
    assert checker.judged > 0
    return swarm, checker


def caught(swarm: Swarm[Peer], for_s: float = 3.0) -> str:
    with pytest.raises(Violation) as found:
        swarm.run_for(for_s)
    return found.value.text


def pushes(keep: Callable[[Send, Push], bool]) -> Callable[[Event, list[Effect]], list[Effect]]:
    """Sends those pushes only."""
    return each(
        Send,
        lambda send: (
            [send] if not isinstance(send.message, Push) or keep(send, send.message) else []
        ),
    )


# --- gossip rounds --------------------------------------------------------------------------------


def when_mixing(**fields: Any) -> Change:
    return each(Apply, lambda apply: [replace(apply, **fields) if apply.mix else apply])


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (
            PushesFollowPlan,
            pushes(lambda send, push: send.peer != min(range(1, 5))),
            "does not push its gradient",
        ),
        (
            PushesFollowPlan,
            pushes(lambda send, push: push.what == "gradient"),
            "does not push its parameters",
        ),
        (
            PushesFollowPlan,
            each(
                Send,
                lambda send: (
                    [replace(send, peer=p) for p in range(1, 5)]
                    if isinstance(send.message, Push)
                    else [send]
                ),
            ),
            "its plan does not name",
        ),
        (DisjointSamples, swapped(StartRound, samples=DataSlice(0, ((60, 64),))), "reads sample"),
        (GossipStepsMatchRuleResults, when_mixing(mix_scale=0.0), "is right"),
        (GossipStepsMatchRuleResults, when_mixing(mix_scale=0.9), "is right"),
        (
            GossipStepsMatchRuleResults,
            each(Apply, lambda apply: [replace(apply, mix=apply.mix and apply.payloads[0])]),
            "not towards its rule",
        ),
        (
            GossipStepsMatchRuleResults,
            swapped(Apply, payloads=()),
            "a vector other than the result of its rule",
        ),
        (
            GossipStepsMatchRuleResults,
            swapped(Aggregate, own_share=0.25),
            "with the rule's result of",
        ),
    ],
)
def test_a_peer_that_does_something_else_than_its_core_is_caught(
    kind: type[Checker], change: Change, words: str
) -> None:
    swarm, _ = watched(kind)
    tamper(swarm, 0, change)
    assert words in caught(swarm)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ask: [replace(ask, rows=ask.rows[:1])], "arrived or own are"),
        (lambda ask: [replace(ask, rows=ask.rows[::-1])], "arrived or own are"),
        (lambda ask: [], "which has arrived"),
    ],
)
def test_a_push_that_has_come_and_goes_into_no_aggregate_is_caught(
    change: Callable[[Aggregate], list[Effect]], words: str
) -> None:
    swarm, _ = watched(AggregatesMatchPushes)

    def faulty(event: Event, effects: list[Effect]) -> list[Effect]:
        changed = each(Aggregate, change)(event, effects)
        if len(changed) < len(effects):  # nobody was asked: it goes on by itself
            rounds: Any = swarm.hosts[0].core.rounds
            rounds._round.tickets.clear()
            changed += rounds._apply()
        return changed

    tamper(swarm, 0, faulty)
    assert words in caught(swarm)


def test_a_round_that_does_not_wait_for_its_sources_is_caught() -> None:
    swarm, _ = watched(AggregatesMatchPushes)
    core: Any = swarm.hosts[0].core
    core.rounds._awaited = list
    assert "before its grace period is over" in caught(swarm)


def test_who_is_released_at_the_end_of_the_very_round_that_did_not_wait_for_it_is_not_missed():
    """Seed 3127: of the sources one was dead and one in quarantine until then, so the round was
    closed and over in one breath."""
    faults = (ByzantineFault("nan", (0,), 1.0), Partition(((2,), (0, 1, 3, 4, 5)), 15.7, 0.6))
    schedule = Schedule(
        3127,
        peers=6,
        topology="ring",
        aggregator="trimmed_mean",
        faults=faults,
        compute_s=(0.46, 0.58),
    )
    outcome = assert_sound(
        replace(
            schedule, active_s=16.306, duration_s=16.306, rule_s=0.01, shards=(12,), commit_log=8
        )
    )
    assert outcome.reports["parole"] > 0


def test_sources_that_the_plan_does_not_name_are_caught() -> None:
    swarm, _ = watched(AggregatesMatchPushes)
    plan: Any = swarm.hosts[0].core.rounds.plans.plan  # type: ignore[union-attr]
    core: Any = swarm.hosts[0].core
    core.rounds.plans.plan = lambda round_id, peers: plan(round_id + 1, peers)
    assert caught(swarm)


def test_waiting_for_one_that_is_skipped_is_caught() -> None:
    swarm, _ = watched(AggregatesMatchPushes, topology="full")
    core: Any = swarm.hosts[0].core
    rounds = core.rounds
    rounds._awaited = lambda: rounds.pushes.missing(
        ("gradient",), rounds._round.sources, rounds.round_id
    )
    swarm.crash(2)
    assert "which have nothing to push" in caught(swarm)


def test_a_push_that_the_sender_s_trainer_never_made_is_caught() -> None:
    swarm, _ = watched(AggregatesMatchPushes)
    forged = payload_of(payload_of(swarm.trainer(1).parameters).data + 1.0)  # type: ignore[attr-defined]
    tamper(swarm, 1, each(Send, lambda send: [replace(send, payload=send.payload and forged)]))
    assert "has never contributed" in caught(swarm)


def test_replicas_that_are_far_apart_in_the_calm_are_caught() -> None:
    checker = BoundedConsensusDistance()
    suite = CheckerSuite([checker])
    swarm = checked_swarm(suite, n=5, topology=SENDS)
    ones = lambda apply: (payload_of(apply.payloads[0].data * 0 + 1),)  # noqa: E731
    tamper(swarm, 0, swapped(Apply, payloads=ones, mix=None))
    swarm.run_for(3.0)
    with pytest.raises(Violation, match="away from their mean"):
        suite.settle(swarm)


# --- what is committed ----------------------------------------------------------------------------


def reweighted(contributors: Any) -> tuple[Any, ...]:
    return tuple(replace(each, weight=0.5) for each in contributors)


def when_made(**fields: Any) -> Change:
    change = recommitted(**fields)
    return each(Committed, lambda done: change(None, [done]) if done.made else [done])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (when_made(digest=b"another digest!!"), "with the digest"),
        (when_made(contributors=lambda it: it.contributors[:1]), "and averaged"),
        (when_made(contributors=lambda it: reweighted(it.contributors)), "with the verdicts"),
        (
            swapped(
                Aggregate,
                rows=lambda ask: (replace(ask.rows[0], payload=ask.rows[1].payload), *ask.rows[1:]),
            ),
            "is not what its trainer has contributed",
        ),
    ],
)
def test_a_commit_of_something_the_rule_did_not_make_is_caught(change: Change, words: str) -> None:
    swarm, _ = watched(CommitsMatchRuleResults, topology="rolling")
    for peer in range(5):
        tamper(swarm, peer, change)
    assert words in caught(swarm)


# --- trust ----------------------------------------------------------------------------------------


STOPS = 30  # the round in which it stands out no more


def one_stands_out_until(end: float, ask: Aggregate) -> Aggregated:
    """The attacker stands out before the round ``end``, if all five peers are measured."""
    far = 50.0 if len(ask.rows) + len(ask.outside) == 5 and ask.round_id < end else 1.0
    measured, outside = (
        tuple([far if row.peer == ATTACKER else 1.0 for row in rows])
        for rows in (ask.rows, ask.outside)
    )
    even = (1.0 / len(ask.rows),) * len(ask.rows)
    return replace(mean(ask), weights=even, outlyingness=measured, outside=outside)


one_stands_out = partial(one_stands_out_until, inf)
one_stands_out_at_first = partial(one_stands_out_until, STOPS)
nobody_stands_out = partial(one_stands_out_until, 0)


TRUST = [(QuarantineFollowsCommits, "rolling"), (QuarantineFollowsLocalMeasurements, "full")]


def judging(kind: type[Checker], topology: str, aggregate: Any = one_stands_out) -> Swarm[Peer]:
    return watched(kind, topology, f=1, aggregate=aggregate, compute_s=0.04)[0]


def table_of(core: Any) -> Any:
    return core.rounds.replicated.trust if hasattr(core.rounds, "replicated") else core.rounds.trust


@pytest.mark.parametrize(("kind", "topology"), TRUST)
def test_who_stands_out_is_locked_up_and_released_and_that_is_found_right(
    kind: type[Checker], topology: str
) -> None:
    swarm = judging(kind, topology)
    swarm.run_for(3.0)
    told = [
        report.event for report in swarm.reports(0) if report.event in ("quarantined", "parole")
    ]
    assert told[:2] == ["quarantined", "parole"]


@pytest.mark.parametrize(("kind", "topology"), TRUST)
@pytest.mark.parametrize(
    ("faulty", "words"),
    [
        (
            lambda table: setattr(table, "_quarantine", lambda round_id, roster: []),
            "is not in quarantine",
        ),
        (lambda table: setattr(table, "quarantined", frozenset), "which are in quarantine"),
        (
            lambda table: setattr(table, "settings", replace(table.settings, quarantine_rounds=3)),
            "is released with round",
        ),
        (
            lambda table: setattr(table, "settings", replace(table.settings, quarantine_rounds=90)),
            "is in quarantine for|is to tolerate|are only measured, without quarantine",
        ),
        (lambda table: setattr(table, "settings", replace(table.settings, memory=0.5)), "required"),
    ],
)
def test_trust_that_does_not_follow_from_the_verdicts_is_caught(
    kind: type[Checker], topology: str, faulty: Callable[[Any], None], words: str
) -> None:
    swarm = judging(kind, topology)
    for peer in range(5):
        faulty(table_of(swarm.hosts[peer].core))
    assert re.search(words, caught(swarm, 6.0))


def judging_one_who_stops(kind: type[Checker], topology: str, **options: Any) -> Swarm[Peer]:
    options = {"aggregate": one_stands_out_at_first, "quarantine_rounds": 500, **options}
    return watched(kind, topology, f=1, compute_s=0.04, **options)[0]


@pytest.mark.parametrize(
    ("kind", "topology", "sizes"),
    [
        (QuarantineFollowsCommits, "rolling", (8,)),
        (QuarantineFollowsCommits, "rolling", (5, 3)),
        (QuarantineFollowsLocalMeasurements, "full", (8,)),
    ],
)
def test_who_stops_standing_out_is_released_within_the_bound_and_that_is_found_right(
    kind: type[Checker], topology: str, sizes: tuple[int, ...]
) -> None:
    swarm = judging_one_who_stops(kind, topology, sizes=sizes)
    swarm.run_for(6.0)
    told = [report for report in swarm.reports(0) if report.event in ("quarantined", "parole")]
    assert [report.event for report in told] == ["quarantined", "parole"]
    settings = TrustSettings()
    most = settings.updates_to_return * (settings.measured_every if topology == "rolling" else 1)
    assert 0 < told[1].fields["round"] - STOPS <= most


@pytest.mark.parametrize(("kind", "topology"), TRUST)
@pytest.mark.parametrize(
    ("answer", "words"),
    [(False, "is in quarantine after 10 ordinary"), (True, "is released with round")],
)
def test_a_quarantine_that_ends_too_late_or_too_early_is_caught(
    kind: type[Checker], topology: str, answer: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = judging_one_who_stops(kind, topology)
    monkeypatch.setattr(TrustTable, "_is_trusted_again", lambda table, standing: answer)
    assert words in caught(swarm, 6.0)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (QuarantineFollowsCommits, swapped(Aggregate, outside=()), "are to be measured"),
        (
            CommitsMatchRuleResults,
            recommitted(
                rejected=lambda it: tuple(replace(r, outlyingness=2.0) for r in it.rejected)
            ),
            "of peers in quarantine",
        ),
    ],
)
def test_servers_that_do_not_measure_those_in_quarantine_or_misstate_it_are_caught(
    kind: type[Checker], change: Change, words: str
) -> None:
    swarm = judging_one_who_stops(kind, "rolling")
    for peer in range(5):
        tamper(swarm, peer, change)
    assert words in caught(swarm, 6.0)


@pytest.mark.parametrize(("kind", "topology"), TRUST)
def test_a_rule_that_is_told_of_fewer_liars_than_there_may_be_is_caught(
    kind: type[Checker], topology: str
) -> None:
    swarm = judging(kind, topology, nobody_stands_out)
    for peer in range(5):
        tamper(swarm, peer, swapped(Aggregate, f=0))
    assert "is to tolerate 0 Byzantine peers" in caught(swarm)


def test_one_who_serves_from_quarantine_is_caught() -> None:
    swarm = judging(QuarantineFollowsCommits, "rolling")
    for peer in range(5):
        table_of(swarm.hosts[peer].core).may_serve = lambda peer: True
    assert "which must not serve" in caught(swarm, 6.0)


def test_trust_that_blames_an_honest_peer_is_caught() -> None:
    swarm = judging(QuarantineFollowsCommits, "rolling", nobody_stands_out)
    blame = Report("quarantined", {"subject": 1, "trust": 0.1, "reasons": [], "round": 0})
    tamper(
        swarm,
        0,
        lambda event, effects: (
            [blame, *effects] if any(isinstance(e, Committed) for e in effects) else effects
        ),
    )
    assert "of 16 required" in caught(swarm)
