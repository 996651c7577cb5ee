"""What is said of f before the first round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# whether a rule goes with so many peers is then found out in this process
import torch  # noqa: F401

from gossip.config import Resolved, resolve
from gossip.launch.local import runs
from gossip.run import fitting, tolerance


def settled(**options: Any) -> Resolved:
    return fitting.check_rule(resolve(options))


def said(**options: Any) -> str:
    lines: list[str] = []
    runs.print_tolerance(settled(**options), lines.append)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"peers": 3},
            "f=0: guarded_mean tolerates no broken peer among 3 peers (by default). "
            f"{tolerance.ADVERSARIES}",
        ),
        (
            {"peers": 3, "aggregator": "krum"},
            "! f=0: krum tolerates no Byzantine peer among 3 peers (by default). "
            "6 peers would tolerate one",
        ),
        (
            {"peers": 3, "faults": ["sign_flip:2"]},
            "! f=0: guarded_mean tolerates no broken peer among 3 peers (by default)"
            f", and the fault plan makes peer 2 Byzantine. {tolerance.ADVERSARIES}",
        ),
        (
            {"peers": 3, "faults": ["crash:2@5"]},
            "f=0: guarded_mean tolerates no broken peer among 3 peers (by default). "
            f"{tolerance.ADVERSARIES}",
        ),
        (
            {"peers": 3, "f": 1},
            f"f=1: suspicion tolerates 1 Byzantine peer among 3 peers (given: flag). "
            f"{tolerance.COSTS}",
        ),
        (
            {"peers": 8},
            "f=2: guarded_mean tolerates 2 broken peers among 8 peers (by default). "
            f"{tolerance.ADVERSARIES}",
        ),
        (
            {"peers": 4, "faults": ["sign_flip:2,3"]},
            "! f=1: guarded_mean tolerates 1 broken peer among 4 peers (by default)"
            f", and the fault plan makes peers 2, 3 Byzantine. {tolerance.ADVERSARIES}",
        ),
        (
            {"peers": 2, "aggregator": "mean"},
            "f=0: mean tolerates no Byzantine peer, however many peers there are. "
            "suspicion would tolerate one of 4 peers",
        ),
        (
            {"peers": 8, "aggregator": "mean", "faults": ["sign_flip:2"]},
            "! f=2, but mean tolerates no Byzantine peer, however many peers there are, "
            "and the fault plan makes peer 2 Byzantine. suspicion would tolerate one of 4 peers",
        ),
        ({"peers": 1}, ""),
    ],
)
def test_the_user_is_told_how_many_liars_are_borne(options: dict[str, Any], line: str) -> None:
    assert said(**options) == line


def test_a_topology_that_no_rule_tolerates_a_byzantine_peer_with_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from gossip.topologies import Plan, topology\n"
        "@topology\n"
        "def apart(roster, round_id, seed):\n"
        "    return Plan(pushes={peer: () for peer in roster.peers})\n"
    )
    apart = f"{tmp_path}/mine.py:apart"
    assert said(peers=5, f=0, aggregator="suspicion", topology=apart) == (
        f"f=0: suspicion tolerates no Byzantine peer with --topology {apart}, however many peers "
        "there are. suspicion would tolerate one of 4 peers with --topology rolling"
    )


@pytest.mark.parametrize("rule", ["suspicion", "krum", "bulyan", "median", "trimmed_mean"])
def test_so_many_peers_do_tolerate_one_and_one_less_does_not(rule: str) -> None:
    enough = settled(peers=8, aggregator=rule).config.peers_for_one
    assert enough
    assert settled(peers=enough, aggregator=rule).config.f == 1
    assert settled(peers=enough - 1, aggregator=rule).config.f == 0


@pytest.mark.parametrize(
    ("rule", "peers", "f"), [("krum", 5, 0), ("krum", 6, 1), ("bulyan", 11, 1)]
)
def test_a_run_with_the_default_f_bears_the_loss_of_a_peer(rule: str, peers: int, f: int) -> None:
    """krum needs 2 f + 3 updates, bulyan 4 f + 3."""
    assert settled(peers=peers, aggregator=rule).config.f == f


def test_where_f_comes_from_is_not_said_where_nobody_knows() -> None:
    config = settled(peers=3, f=1).config
    line = tolerance.describe(config)
    assert line == "f=1: suspicion tolerates 1 Byzantine peer among 3 peers"
    line = tolerance.describe(config.model_copy(update={"aggregator": "mine.py:rule"}))
    assert line == "f=1: mine.py:rule is assumed to tolerate 1 Byzantine peer among 3 peers"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, ""),
        (
            {"reference_samples": 64},
            "judged_clipping: updates are judged by 64 samples (reference_samples are given, and "
            "no aggregator)",
        ),
        ({"reference_samples": 64, "aggregator": "zeno_pp"}, ""),
        (
            {"reference_samples": 64, "aggregator": "krum"},
            "! reference_samples = 64 (flag): krum does not use them (flag). judged_clipping does, "
            "in rolling rounds",
        ),
        (
            {"reference_samples": 64, "topology": "ring"},
            "! reference_samples = 64 (flag): suspicion does not use them (the topology has "
            "no servers, and no aggregator is given). judged_clipping does, in rolling rounds",
        ),
    ],
)
def test_whoever_asks_for_a_reference_hears_whether_anybody_judges_by_it(
    options: dict[str, object], line: str
) -> None:
    resolved = resolve(options)
    assert tolerance.judges(resolved.config, resolved.sources) == line
