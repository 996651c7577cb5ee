"""``gossip run --plan``: what a run is started with, and what is refused before anything starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gossip.config import RunConfig, resolve
from gossip.errors import ConfigError
from gossip.run import fitting
from gossip.training.start import _alone
from gossip_pipelines.plan import options_of
from gossip_pipelines.planning import PipelinePlan, PlannedStage, write_plan

STAGES = (PlannedStage((0, 1), ("lab2",)), PlannedStage((2, 5), ("lab1", "lab3", "lab4")))
PLAN = PipelinePlan("0123456789abcdef", 8, 4, 1, 0.1, STAGES)


def written(folder: Path, **changed: Any) -> Path:
    path = folder / "plan.toml"
    path.write_text(write_plan(dataclasses.replace(PLAN, **changed)))
    return path


def test_peers_are_numbered_as_the_plan_names_them(tmp_path: Path) -> None:
    resolved = resolve(options_of(written(tmp_path), None))
    config = resolved.config
    assert (config.peers, config.aggregator) == (4, "mean")
    assert config.pipeline.names == ("lab2", "lab1", "lab3", "lab4")
    assert [config.pipeline.stage_of(peer) for peer in range(4)] == [0, 1, 1, 1]
    assert [config.peers_alike(peer) for peer in range(4)] == [1, 3, 3, 3]
    assert (config.pipeline.micro_batches, config.pipeline.samples) == (8, 4)
    fitting.check(config)
    settled = resolved.with_values("test", run="00" * 8, f=0).config
    pipeline = settled.settings().pipeline
    assert (pipeline.stages, pipeline.micro_batches) == (((0,), (1, 2, 3)), 8)
    settled.dump(tmp_path / "config.json")
    assert RunConfig.load(tmp_path / "config.json") == settled
    (tmp_path / "config.toml").write_text(resolved.to_toml())
    assert resolve({}, tmp_path / "config.toml").config.pipeline == config.pipeline


def test_another_rule_may_be_named_and_each_stage_must_be_enough_for_it(tmp_path: Path) -> None:
    options = {**options_of(written(tmp_path), 4), "aggregator": "trimmed_mean"}
    resolved = resolve(options)
    assert resolved.config.aggregator == "trimmed_mean"
    assert fitting.check_rule(resolved).config.f == 0
    with pytest.raises(ConfigError, match=r"needs 3 .* f=1 .*, got 1") as refused:
        fitting.check_rule(resolve({**options, "f": 1}))
    assert refused.value.hint == "a plan with at least 3 peers in each stage"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"stage": STAGES[:1]}, "has one stage; a pipeline needs at least two"),
        ({"stage": (STAGES[1],)}, "stage 0 begins with layer 2, but layer 0 is next"),
        (
            {"stage": (*STAGES, PlannedStage((5, 6), ("lab9",)))},
            "begins with layer 5, but layer 6 is",
        ),
        (
            {"stage": (*STAGES, PlannedStage((6, 6), ("lab1",)))},
            "the peer lab1 is in the plan twice",
        ),
        ({"members_least": 2}, "stage 0 has 1 of the 2 peers that members_least requires"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        options_of(written(tmp_path, **changed), None)


def test_a_plan_for_another_number_of_peers_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(ConfigError, match=r"-n 5: .* has 4 peers in 2 stages"):
        options_of(path, 5)
    with pytest.raises(ConfigError, match="-n 1: ") as fewer_than_stages:
        options_of(path, 1)
    assert fewer_than_stages.value.hint is not None
    assert "each stage needs at least one peer" in fewer_than_stages.value.hint
    config = resolve(options_of(path, None) | {"peers": 3}).config
    with pytest.raises(ConfigError, match="3 peers start, and the plan has 4"):
        fitting.check(config)


@pytest.mark.parametrize(
    "option",
    [
        {"topology": "random-k"},
        {"room": 6},
        {"encoding": "bf16"},
        {"sender": "momentum:beta=0.9"},
        {"local_steps": 3},
        {"min_peers": 3},
        {"server_weights": "0:2"},
    ],
)
def test_what_a_pipeline_cannot_do_yet_is_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    config = resolve(options_of(written(tmp_path), None) | option).config
    with pytest.raises(
        ConfigError, match=rf"{next(iter(option))}.*: a pipeline does not support that"
    ):
        fitting.check(config)
    fitting.check(resolve(options_of(written(tmp_path), None) | {"resume": "auto"}).config)


def test_audits_need_a_plan_and_a_stage_of_three(tmp_path: Path) -> None:
    audited = resolve({**options_of(written(tmp_path), None), "audit": 0.05})
    fitting.check(audited.config)
    settled = audited.with_values("test", run="00" * 8, f=0).config
    pipeline = settled.settings().pipeline
    assert pipeline.audit == 0.05
    with pytest.raises(ConfigError, match="the run has no plan"):
        fitting.check(resolve({"audit": 0.05}).config)
    few = (STAGES[0], PlannedStage((2, 5), ("lab1", "lab3")))
    options = options_of(written(tmp_path, stage=few), None)
    with pytest.raises(ConfigError, match="largest stage has 2 peers, and 3 are needed"):
        fitting.check(resolve({**options, "audit": 0.05}).config)


def test_of_what_a_lost_stage_is_made_is_no_option_without_a_plan(tmp_path: Path) -> None:
    fitting.check(resolve({**options_of(written(tmp_path), None), "lost_stage": "fresh"}).config)
    with pytest.raises(ConfigError, match=r"lost_stage = fresh: .* the run has no plan"):
        fitting.check(resolve({"lost_stage": "fresh"}).config)


def test_what_is_said_of_stages_refuses_no_script_that_is_started_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a plan it computes all layers, whatever settings the project has for its runs."""
    monkeypatch.setenv("GOSSIP_LOST_STAGE", "neighbours")
    monkeypatch.setenv("GOSSIP_AUDIT", "0.05")
    config = _alone({}).config
    assert (config.audit, config.lost_stage) == (0.0, "checkpoint")
