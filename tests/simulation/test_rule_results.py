"""A rule that makes nothing of good updates is found, and a campaign says which rules it played and
how far they came."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from checked_swarm import assert_sound, checked_swarm
from typer.testing import CliRunner

from gossip.core.events import Aggregate, Aggregated
from gossip.errors import ConfigError
from gossip.launch.cli import app
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.campaign.runner import CampaignTally
from gossip_lab.simulation.checkers import Violation
from gossip_lab.simulation.checkers.safety.results import RuleAvailability
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.toy_rule import mean

QUICK = Schedule(3, peers=5, topology="full", compute_s=(0.05, 0.1), active_s=1.0, duration_s=1.5)
PLAN = (
    "[simulate]\npeers = 4\ntopology = 'rolling'\nactive_s = 1.0\nduration_s = 1.5\ncompute_s = "
    "[0.05, 0.1]\n"
)
RULES = """
from gossip.errors import AggregationError

def nans(updates, *, f):
    return updates.mean(0) * float("nan")

def refuses(updates, *, f):
    if len(seen) == 3:
        raise AggregationError("the stars stand badly")
    seen.append(1)
    return updates.mean(0)

def raises(updates, *, f):
    if len(seen) == 3:
        raise ValueError("too few stars")
    seen.append(1)
    return updates.mean(0)

seen = []

def always_refuses(updates, *, f):
    raise AggregationError("there are no stars")

def drawn(updates, *, f, round_id):
    return updates.roll(round_id, 0).median(0).values

def halves(updates, *, f):
    return updates.median(0).values / 2
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(RULES)
    return path


@pytest.mark.parametrize("topology", ["rolling", "full"])
def test_a_rule_that_makes_no_finite_aggregate_is_caught_and_the_mean_is_not(topology: str) -> None:
    checker = RuleAvailability()
    checked_swarm(checker, topology=topology).run_for(2.0)
    assert checker.judged > 5

    def now_and_then(ask: Aggregate) -> Aggregated:
        return mean(ask) if ask.previous is None else Aggregated(ask.ticket, None, reason="no luck")

    with pytest.raises(
        Violation, match=r"S11.*of \d finite updates.*the rule has no result: no luck"
    ):
        checked_swarm(RuleAvailability(), topology=topology, aggregate=now_and_then).run_for(2.0)


def test_a_rule_that_never_gets_the_updates_it_needs_breaks_nothing_and_proves_nothing() -> None:
    outcome = assert_sound(replace(QUICK, peers=4, aggregator="multi_krum"))
    tally = CampaignTally()
    tally.add(outcome)
    assert "multi_krum never had enough updates" in tally.vacuous
    tally.add(run(replace(QUICK, aggregator="multi_krum")))
    assert not [line for line in tally.vacuous if "multi_krum" in line]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nans", "non_finite result"),
        ("refuses", "the stars stand badly"),
        ("raises", "raises failed: ValueError: too few stars"),
    ],
)
def test_the_command_fails_for_a_rule_that_answers_nothing_and_quotes_it(
    name: str, words: str, rules: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    command = [
        "simulate",
        "--aggregator",
        f"{rules}:{name}",
        "--faults",
        str(plan),
        "--out",
        str(tmp_path),
    ]
    done = CliRunner().invoke(app, [*command, "--seeds", "1", "--jobs", "1"])
    assert done.exit_code == 1
    assert f"the rule has no result: {words}" in done.output


def test_a_rule_that_refuses_everything_is_refused_before_anything_is_played(rules: Path) -> None:
    done = CliRunner().invoke(
        app, ["simulate", "--aggregator", f"{rules}:always_refuses", "--jobs", "1"]
    )
    assert isinstance(done.exception, ConfigError), done.output
    assert "there are no stars" in str(done.exception)


def test_the_command_names_the_rules_and_how_far_they_came(rules: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    command = [
        "simulate",
        "--aggregator",
        f"{rules}:halves",
        "--faults",
        str(plan),
        "--seeds",
        "2",
        "--jobs",
        "1",
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert f"rules: {rules}:halves 2; called " in done.output
    assert "way to the optimum left at the end: " in done.output
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert found["aggregators"] == {f"{rules}:halves": 2}
    mean = json.loads(CliRunner().invoke(app, [*command, "--aggregator", "mean", "--json"]).stdout)
    assert 0.0 < mean["way_left"]["median"] < found["way_left"]["median"] < 1.0, (
        "half steps take twice as long"
    )
    one = CliRunner().invoke(
        app, ["simulate", "--aggregator", "mean", "--faults", str(plan), "--replay", "4"]
    )
    assert "the rule: way to the optimum left at the end: " in one.output
