"""Profiles and plans as files: what a person edits, or somebody else sends, is checked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gossip.errors import ConfigError
from gossip.launch.cli import app
from gossip_pipelines.planning import (
    CostLine,
    LayerProfile,
    PeerProfile,
    TrainingStep,
    check_plan,
    costs_of,
    read_plan,
    read_profile,
    write_plan,
    write_profile,
)

LAYERS = tuple(
    LayerProfile(
        f"{at} Linear",
        f"{at:016x}",
        parameter_bytes=4_000_000,
        output_bytes=1024.0,
        kept_bytes=2048.0,
        forward=CostLine(1e-4, 1e-3),
        backward=CostLine(2e-4, 2e-3),
    )
    for at in range(4)
)
LAB1 = PeerProfile("lab1", 2**30, (2, 16), LAYERS, {"lab2": CostLine(2e-4, 8e-8)})
LAB2 = replace(LAB1, peer="lab2", links={})


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the profiles of two peers, in which the command is called."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab1.toml").write_text(write_profile(LAB1))
    (tmp_path / "lab2.toml").write_text(write_profile(LAB2))
    return tmp_path


def plan(*words: str) -> str:
    """What ``gossip plan`` prints. Raises what it raises."""
    return CliRunner().invoke(app, ["plan", *words], catch_exceptions=False).output


def test_a_profile_is_read_back(files: Path) -> None:
    assert read_profile(files / "lab1.toml") == LAB1


def test_a_link_from_the_other_end_counts() -> None:
    costs = costs_of([LAB2, LAB1])
    assert costs.link_each_s[0, 1] == costs.link_each_s[1, 0] == 8e-8


def test_activations_as_bf16_take_half_the_bytes_and_stand_in_the_plan(files: Path) -> None:
    costs = costs_of([LAB1, LAB2])
    exact, half = (TrainingStep(2, 4, activations=each) for each in ("exact", "bf16"))
    assert list(costs.sent_bytes(exact)) == [4096.0] * 4
    assert list(costs.sent_bytes(half)) == [2048.0] * 4
    words = "lab1.toml", "lab2.toml", "--batch", "8", "--samples", "4"
    plan(*words)
    assert "pipeline, 2 stages, 2 x 4, bf16" in plan(
        *words, "--activations", "bf16", "--out", "half.toml"
    )
    before, after = read_plan(files / "plan.toml"), read_plan(files / "half.toml")
    assert (before.activations, after.activations) == ("exact", "bf16")
    # A micro-batch's way there and back is 4 KiB shorter, over 8e-8 s a byte.
    saved = before.predicted_step_s - after.predicted_step_s
    assert saved == pytest.approx(4096 * 8e-8, rel=0.05)
    assert check_plan(after, costs).stage_costs.work.activations == "bf16"
    text = (files / "half.toml").read_text()
    (files / "half.toml").write_text(text.replace('"bf16"  #', '"int8"  #'))
    with pytest.raises(ConfigError, match=r"activations cannot be .int8") as refused:
        read_plan(files / "half.toml")
    assert "'exact' or 'bf16'" in (refused.value.hint or "")


def test_a_plan_is_made_edited_and_checked(files: Path) -> None:
    said = plan("lab1.toml", "lab2.toml", "--batch", "8", "--show")
    assert "pipeline, 2 stages" in said
    assert "rolling, 30 local steps" in said
    assert "gossip run --plan PLAN SCRIPT runs a plan" in said
    assert "<- slowest" in said
    made = read_plan(files / "plan.toml")
    assert [stage.peers for stage in made.stage] in ([("lab1",), ("lab2",)], [("lab2",), ("lab1",)])
    text = (files / "plan.toml").read_text()
    cut = made.stage[0].layers[1]
    edited = text.replace(f"layers = [0, {cut}]", "layers = [0, 0]")
    edited = edited.replace(f"layers = [{cut + 1}, 3]", "layers = [1, 3]")
    (files / "plan.toml").write_text(edited)
    shown = json.loads(plan("show", "plan.toml", "lab1.toml", "lab2.toml", "--json"))
    assert [stage["layers"] for stage in shown["stages"]] == [[0, 0], [1, 3]]
    assert shown["step_s"] > made.predicted_step_s
    assert shown["slowest"] == {"stage": 1, "link": False}


def test_a_plan_is_not_written_over_unasked(files: Path) -> None:
    plan("lab1.toml", "lab2.toml")
    (files / "plan.toml").write_text("mine")
    with pytest.raises(ConfigError, match=r"plan\.toml exists"):
        plan("lab1.toml", "lab2.toml")
    assert (files / "plan.toml").read_text() == "mine"
    plan("lab1.toml", "lab2.toml", "--replace")
    assert read_plan(files / "plan.toml").model == LAB1.model


def test_the_json_has_every_way(files: Path) -> None:
    found = json.loads(plan("lab1.toml", "lab2.toml", "--json", "--local-steps", "50"))
    assert [len(each["stages"]) for each in found["pipelines"]] == [2]
    ways = {each["name"]: each["step_s"] for each in found["others"]}
    assert ways.keys() == {"rolling", "rolling, 50 local steps"}
    assert ways["rolling, 50 local steps"] < ways["rolling"]
    assert found["plan"] == "plan.toml"


Edit = Callable[[str], str]


def to(old: str, new: str) -> Edit:
    def edit(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, 1)

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (to("memory_bytes = 1073741824", "memory_bytes = 0"), "memory_bytes cannot be 0"),
        (to("forward = [0.0001, 0.001]", "forward = [-1.0, 0.001]"), "forward.* cannot be"),
        (to("forward = [0.0001, 0.001]", "forward = [nan, 0.001]"), "forward.* cannot be"),
        (to("forward = [0.0001, 0.001]", "forward = [inf, 0.001]"), "forward.* cannot be"),
        (to("forward = [0.0001, 0.001]", "forward = [1e30, 0.001]"), "forward.* cannot be"),
        (to("forward = [0.0001, 0.001]", "forward = [0.001]"), "forward 1 is missing"),
        (to("forward = [0.0001, 0.001]", 'forward = "1 ms"'), "forward.* cannot be"),
        (to("parameter_bytes = 4000000", "parameter_bytes = 1e99"), "bytes cannot be 1e\\+99"),
        (to("parameter_bytes = 4000000", "parameter_bytes = true"), "bytes cannot be True"),
        (to("kept_bytes = 2048.0", "kept_byte = 2048"), "Did you mean 'kept_bytes'"),
        (to("lab2 = [0.0002, 8e-08]", "lab2 = [0.0002, -8e-08]"), "links lab2 1 cannot"),
        (to("lab2 = ", "lab1 = "), "leads to lab1 itself"),
        (to('peer = "lab1"', 'peer = "../../etc"'), "peer cannot be"),
        (to('peer = "lab1"', 'peer = "\\u001b[2J"'), "peer cannot be"),
        (to('name = "0 Linear"', "name = 7"), "name cannot be 7"),
        (to("gossip.profile/1", "gossip.profile/9"), "schema is 'gossip.profile/9'"),
        (to("[[layers]]", "[[layers"), "is not TOML"),
        (lambda text: text.partition("\n[[layers]]")[0], "layers is missing"),
        (lambda text: text.partition("\n[links]")[0] + "[[layers]]\n" * 600, "layers"),
        (lambda text: "#" * (2 * 2**20) + text, "has more than 2097152 bytes"),
        (lambda text: "x = " + "[" * 20_000, "is not TOML"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(files: Path, edit: Edit, said: str) -> None:
    (files / "lab1.toml").write_text(edit(write_profile(LAB1)))
    with pytest.raises(ConfigError, match=said):
        plan("lab1.toml", "lab2.toml")
    assert not (files / "plan.toml").exists()


def test_no_profile_can_show_control_characters(files: Path) -> None:
    text = write_profile(LAB1).replace('name = "0 Linear"', 'name = "\\u001b[2J Linear"')
    (files / "lab1.toml").write_text(text)
    assert "\x1b" not in plan("lab1.toml", "lab2.toml", "--show", "--stages", "2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lab1.toml", "nothing.toml"), r"there is no file nothing\.toml"),
        (("lab1.toml", "lab1.toml"), "two profiles are of the peer lab1"),
        (("lab1.toml", "lab2.toml", "--stages", "3"), "3 stages need 3 peers, and there are 2"),
        (("lab1.toml", "lab2.toml", "--crashes", "2", "--stages", "2"), "2 stages need 6 peers"),
        (("lab1.toml", "lab2.toml", "--crashes", "1", "--liars", "1"), "set only the option"),
        (("lab1.toml", "lab2.toml", "--batch", "9", "--samples", "2"), "do not divide"),
    ],
)
def test_what_nobody_can_plan_is_refused(files: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(*words)


def test_a_link_that_nobody_measured_is_named(files: Path) -> None:
    (files / "lab1.toml").write_text(write_profile(replace(LAB1, links={})))
    with pytest.raises(ConfigError, match="no link between lab1 and lab2 was measured"):
        plan("lab1.toml", "lab2.toml")
    assert "pipeline, 2 stages" in plan("lab1.toml", "lab2.toml", "--mbit", "100")


def test_profiles_of_two_models_are_told_apart(files: Path) -> None:
    other = (*LAYERS[:2], replace(LAYERS[2], name="2 Conv", signature="f" * 16), LAYERS[3])
    (files / "lab2.toml").write_text(write_profile(replace(LAB2, layers=other)))
    with pytest.raises(ConfigError, match="layer 2 is 2 Conv and 2 Linear"):
        plan("lab1.toml", "lab2.toml")
    (files / "lab2.toml").write_text(write_profile(replace(LAB2, layers=LAYERS[:3])))
    with pytest.raises(ConfigError, match="3 layers and 4"):
        plan("lab1.toml", "lab2.toml")


def test_a_layer_that_fits_no_peer_is_named(files: Path) -> None:
    small = replace(LAB1, memory_bytes=10_000_000), replace(LAB2, memory_bytes=9_000_000)
    for profile in small:
        (files / f"{profile.peer}.toml").write_text(write_profile(profile))
    with pytest.raises(ConfigError, match=r"layer 0 \(0 Linear\) fits no peer"):
        plan("lab1.toml", "lab2.toml")
    assert not (files / "plan.toml").exists()


PLAN = f"""schema = "gossip.plan/1"
model = "{LAB1.model}"
micro_batches = 4
samples = 2
members_least = 1
predicted_step_s = 0.02

[[stage]]
layers = [0, 1]
peers = ["lab1"]

[[stage]]
layers = [2, 3]
peers = ["lab2"]
"""


def test_a_plan_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    found = read_plan(tmp_path / "plan.toml")
    (tmp_path / "again.toml").write_text(write_plan(found))
    assert read_plan(tmp_path / "again.toml") == found
    placement = check_plan(found, costs_of([LAB1, LAB2]))
    assert placement.groups == ((0,), (1,))
    assert placement.cut.bounds == (0, 2, 4)
    assert math.isfinite(placement.step_s)


def test_a_profile_is_no_plan_and_a_plan_no_profile(files: Path) -> None:
    (files / "plan.toml").write_text(PLAN)
    with pytest.raises(ConfigError, match=r"'gossip.profile/1', not 'gossip.plan/1'"):
        plan("show", "lab1.toml", "lab1.toml", "lab2.toml")
    with pytest.raises(ConfigError, match=r"'gossip.plan/1', not 'gossip.profile/1'"):
        plan("show", "plan.toml", "plan.toml", "lab2.toml")


def test_where_there_is_no_plan_and_no_profile_it_says_what_makes_one(files: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file") as refused:
        plan("show", "none.toml", "lab1.toml")
    assert refused.value.hint.startswith("gossip plan PROFILE")
    (files / "plan.toml").write_text(PLAN)
    with pytest.raises(ConfigError, match="there is no file") as refused:
        plan("show", "plan.toml", "none.toml")
    assert refused.value.hint.startswith("gossip plan profile")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (to(LAB1.model, "0" * 16), "the plan is for the model 0000000000000000"),
        (to('peers = ["lab2"]', 'peers = ["lab3"]'), "lab3, of which there is no profile. Did you"),
        (to('peers = ["lab2"]', 'peers = ["lab1"]'), "lab1 is in the plan twice"),
        (to('peers = ["lab2"]', "peers = []"), "peers cannot be"),
        (
            to("layers = [2, 3]", "layers = [1, 3]"),
            "stage 1 begins with layer 1, but layer 2 is next",
        ),
        (
            to("layers = [2, 3]", "layers = [3, 3]"),
            "stage 1 begins with layer 3, but layer 2 is next",
        ),
        (to("layers = [2, 3]", "layers = [2, 2]"), "3 layers together, the model 4"),
        (to("layers = [2, 3]", "layers = [2, 9]"), "10 layers together, the model 4"),
        (to("layers = [2, 3]", "layers = [3, 2]"), "cannot be"),
        (to("layers = [2, 3]", "layers = [2.5, 3]"), "cannot be"),
        (to("members_least = 1", "members_least = 2"), "has 1 of the 2 peers"),
        (to("micro_batches = 4", "micro_batches = 0"), "micro_batches cannot be 0"),
        (to("samples = 2", "samples = 600000"), "stage 0 needs .* GiB of each of its peers"),
        (to("[[stage]]", "[[stages]]"), "Did you mean 'stage'"),
        (lambda text: text.partition("\n[[stage]]")[0], "stage is missing"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(files: Path, edit: Edit, said: str) -> None:
    (files / "plan.toml").write_text(edit(PLAN))
    with pytest.raises(ConfigError, match=said):
        plan("show", "plan.toml", "lab1.toml", "lab2.toml")
