"""S14: who is passed over because its results do not come, when, and for how long. A planted fault
of each kind is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from checked_swarm import assert_sound, core_settings
from test_checkers_server_waits import QUICK, Faulty

from gossip.core.events import Effect, Report
from gossip.core.messages import Accusation, Commit, PeerId
from gossip.faults.world import NodeAttack
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.checkers.trust.omissions import OmissionRecord
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.observer import Observer

SILENT = 0
KEEPING = replace(
    QUICK,
    active_s=8.0,
    duration_s=8.0,
    compute_s=(0.02, 0.04),
    aggregator="median",
    round_timeout_s=0.5,
    faults=(NodeAttack("kept_results", (SILENT,)),),
)


def says_nothing(core: Any) -> None:
    core.rounds.participant.result_validator._waited = type(
        "Nothing", (dict,), {"__setitem__": lambda self, key, value: None}
    )()


def believes_anybody(core: Any) -> None:
    core.rounds.replicated.omissions._suspend_servers = lambda roster, locked: [(2, "passed_over")]


def passes_over_nobody(core: Any) -> None:
    core.rounds.replicated.omissions._suspend_servers = lambda roster, locked: []


def rests_too_long(core: Any) -> None:
    omissions = core.rounds.replicated.omissions
    omissions.settings = replace(omissions.settings, quarantine_rounds=40)


def lets_it_serve(core: Any) -> None:
    core.rounds.replicated.omissions.may_serve = lambda peer: True


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (says_nothing, "has waited for peer 0 in round"),
        (
            believes_anybody,
            "peer 2 is skipped with round 0: more than f have waited without a result in 0, of 3",
        ),
        (passes_over_nobody, "peer 0 still serves after round"),
        (rests_too_long, "peer 0 does not serve again after round"),
    ],
)
def test_s14_what_does_not_follow_from_who_has_waited_in_vain_is_caught(
    plant: Callable[[Any], None], words: str
) -> None:
    found = run(KEEPING, [Faulty(plant)]).violation
    assert found.invariant == "S14", found
    assert words in found.text


class SpeaksAgain(Observer):
    """Nobody lies any more once somebody is passed over."""

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Report) and effect.event == "passed_over":
            swarm.outgoing.active = False


def test_s14_a_result_of_one_that_is_passed_over_is_caught() -> None:
    found = run(KEEPING, [Faulty(lets_it_serve), SpeaksAgain()]).violation
    assert "was made by peer 0, which is skipped" in found.text


def test_a_server_that_keeps_its_results_is_judged_and_all_is_sound() -> None:
    outcome = assert_sound(KEEPING)
    assert outcome.judged_by["OmissionSkipsFollowCommits"] > 50
    assert outcome.reports["passed_over"]
    assert outcome.reports["serves_again"]


def waited(round_id: int, server: int, *silent: int, digest: bytes = b"d" * 16) -> Commit:
    accusations = tuple(Accusation(peer, round_id, True) for peer in silent)
    where = b"l", round_id, 0, 0, 0, server, b"p" * 16, digest
    return Commit(*where, (), (), (0, 1, 2, 3, 4), None, "", accusations=accusations)


def test_a_result_that_comes_between_starts_the_count_of_those_in_a_row_anew() -> None:
    history = OmissionRecord(core_settings(4, 0))
    for round_id in range(2):
        history = history.after([waited(round_id, 1, 0)], (), ())
    history = history.after([waited(2, 0)], (), ())
    history = history.after([waited(3, 1, 0)], (), ())
    assert history.rounds[0] == (3, 1)
    assert history.wrong is None
