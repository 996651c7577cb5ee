"""The clock of a simulated machine: it drifts, timers fire by it and never early; and the queue of
what is to happen."""

from __future__ import annotations

import random

import pytest

from gossip_lab.simulation.world.machine import NS, Machine, to_ns
from gossip_lab.simulation.world.network import Network
from gossip_lab.simulation.world.timeline import SimulationStuck, Timeline


def test_a_healthy_clock_shows_the_worlds_time() -> None:
    assert Machine().clock_s(1_234_567_890) == 1.23456789


def test_a_clock_that_drifts_goes_on_from_where_it_was() -> None:
    machine = Machine()
    machine.set_clock(10 * NS, rate=1.5)
    assert machine.clock_s(10 * NS) == 10.0
    assert machine.clock_s(12 * NS) == 13.0
    machine.set_clock(12 * NS, rate=0.5)
    assert machine.clock_s(14 * NS) == 14.0
    machine.set_clock(14 * NS, jump_s=100.0)
    assert machine.clock_s(16 * NS) == 115.0, "a jump leaves the rate"


@pytest.mark.parametrize("rate", [1.0, 0.3, 0.97, 1.0001, 3.0])
def test_no_timer_fires_before_its_clock_shows_the_time(rate: float) -> None:
    machine, rng = Machine(), random.Random(rate)
    if rate != 1.0:
        machine.set_clock(rng.randrange(NS), rate)
    for _ in range(2000):
        at_s = rng.uniform(1.0, 1e5)
        due_ns = machine.due_ns(at_s)
        assert machine.clock_s(due_ns) >= at_s
        assert machine.clock_s(due_ns - 100) < at_s, "nor much later"


def test_late_timers_are_late_by_just_that() -> None:
    machine = Machine(late_ns=to_ns(0.25))
    assert machine.due_ns(2.0) == to_ns(2.25)


def test_what_is_asked_for_first_happens_first_at_one_time() -> None:
    line, done = Timeline(Network()), list[str]()
    line.at(2.0, lambda: done.append("c"))
    line.at(1.0, lambda: done.append("a"))
    line.at(1.0, lambda: (done.append("b"), line.at(0.5, lambda: done.append("past")))[0])
    line.run_for(1.5)
    assert done == ["a", "b", "past"]
    assert line.now == 1.5
    line.run_for(0.5)
    assert done[-1] == "c"


def test_many_small_steps_do_not_add_up_to_an_error() -> None:
    line, at = Timeline(Network()), list[int]()

    def again() -> None:
        at.append(line.now_ns)
        line.at_ns(line.now_ns + to_ns(0.1), again)

    again()
    line.run_for(100.0)
    assert at[-1] == 100 * NS


def test_waiting_for_what_does_not_come_ends() -> None:
    line = Timeline(Network())
    line.at(5.0, lambda: None)
    with pytest.raises(SimulationStuck, match="not met after 1 s"):
        line.run_until(lambda: False, 1)
    assert line.now_ns == 0, "nothing happened within that second"
