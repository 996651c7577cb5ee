"""L2: peers that a server waits for. S14: its accusations. A planted fault of each is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from checked_swarm import assert_sound, checked_swarm
from impatient import as_it_was
from test_checkers_gossip import caught

from gossip.core.messages import Accusation, PeerId
from gossip.core.peer import Peer
from gossip.faults.world import NodeAttack
from gossip_lab.simulation.campaign.play import make_swarm, run
from gossip_lab.simulation.checkers import Checker, CheckerSuite
from gossip_lab.simulation.checkers.liveness.server_waits import NoFutileGracePeriods
from gossip_lab.simulation.checkers.trust.quarantine import AccusationsHaveLocalEvidence
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.nemesis import Nemesis
from gossip_lab.simulation.world.observer import Observer

QUICK = Schedule(7, peers=5, active_s=5.0, duration_s=5.0, compute_s=(0.05, 0.08))
BYZANTINE = replace(QUICK, aggregator="median", faults=(NodeAttack("scaled_results", (0,)),))


def swarm_of(schedule: Schedule, checker: Checker) -> Swarm[Peer]:
    swarm = make_swarm(schedule, Nemesis(schedule))
    swarm.hooks.append(CheckerSuite([checker]))
    return swarm


class Faulty(Observer):
    """Makes the core of every life faulty."""

    def __init__(self, plant: Callable[[Any], None]) -> None:
        self.plant = plant

    def on_start(self, swarm: Swarm[Any], peer: PeerId) -> None:
        self.plant(swarm.hosts[peer].core)


# --- in vain --------------------------------------------------------------------------------------


def waits_for_the_silent(core: Any) -> None:
    core.rounds.future_buffer.why_not = lambda peer: ""


@pytest.mark.parametrize("faulty", [True, False])
def test_l2_waiting_for_one_that_is_back_without_a_state_is_caught(
    faulty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_was(monkeypatch)
    checker = NoFutileGracePeriods()
    swarm = swarm_of(replace(QUICK, compute_s=(0.3, 0.4), prepare_s=1.0), checker)
    swarm.hooks.extend([Faulty(waits_for_the_silent)] if faulty else [])
    swarm.run_for(2.0)
    swarm.restart(1)
    if faulty:
        assert (
            "for the update of peer 1, which has reported no round since its link broke"
            in caught(swarm, 1.0)
        )
        return
    swarm.run_for(3.0)
    assert swarm.reports(1, "restored")
    judged = checker.judged
    swarm.stop_trainer(1)
    swarm.run_for(1.0)
    assert checker.judged > judged, "others may be waited for"


class _Forgetful(set[PeerId]):
    def __contains__(self, peer: object) -> bool:
        return False


def waits_for_the_refused(core: Any) -> None:
    judge = core.rounds.participant.result_validator.judge

    def forgets(sender: PeerId, shard: Any, *rest: Any) -> Any:
        shard.rejected_from = _Forgetful(shard.rejected_from)
        return judge(sender, shard, *rest)

    core.rounds.participant.result_validator.judge = forgets


def test_l2_waiting_for_one_that_holds_a_refused_result_is_caught() -> None:
    found = run(BYZANTINE, [Faulty(waits_for_the_refused)]).violation
    assert found.invariant == "L2"
    assert "for the update of peer 0, which holds a result that it has rejected" in found.text


def test_servers_that_refuse_results_and_say_whose_are_sound() -> None:
    outcome = assert_sound(BYZANTINE)
    assert outcome.reports["refused_result"]
    assert outcome.judged_by["AccusationsHaveLocalEvidence"]


# --- charges --------------------------------------------------------------------------------------


def test_s14_a_charge_of_one_whose_results_it_has_not_refused_is_caught() -> None:
    swarm = checked_swarm(CheckerSuite([AccusationsHaveLocalEvidence()]), n=5, f=1)
    swarm.run_for(1.0)
    result_validator: Any = swarm.cores[0].rounds.participant.result_validator  # type: ignore[union-attr]
    result_validator.accusations = lambda: (Accusation(2, 3),)
    assert "accuses peer 2 of a result of round 3, but it has rejected none by it" in caught(swarm)
