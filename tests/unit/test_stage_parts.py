"""Checkpoints of a pipeline's stages: which of them make a whole model, under whatever cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossip.config import Resolved, resolve
from gossip.errors import ConfigError
from gossip.run import checkpoints, settled_resume, stage_parts
from gossip.run.checkpoints import DamagedCheckpoint

MODEL = "0123456789abcdef"
THREE, TWO = ((0, 1), (2, 3), (4, 5)), ((0, 3), (4, 5))


def save(folder: Path, step: int, cut: stage_parts.Cut, *stages: int) -> None:
    for stage in stages or range(len(cut)):
        place = checkpoints.stage_folder(folder, stage)
        about = stage_parts.about(cut, MODEL)
        checkpoints.write(place, step, {"model": b"x%d" % stage}, about, keep=9)


def steps(folder: Path) -> list[tuple[int, int]]:
    """Of each whole step how many stages it has."""
    whole = stage_parts.whole_steps(stage_parts.parts_in(folder))
    return [(step, len(parts)) for step, parts in whole.items()]


def test_a_step_is_whole_when_each_stage_of_one_cut_has_it(tmp_path: Path) -> None:
    save(tmp_path, 4, THREE)
    save(tmp_path, 8, THREE)
    save(tmp_path, 12, THREE, 0, 2)
    assert steps(tmp_path) == [(4, 3), (8, 3)]
    assert [part.stage for part in stage_parts.newest_whole(tmp_path)] == [0, 1, 2]
    # The run goes on under another plan: what is left of the third stage is of the former one.
    save(tmp_path, 16, TWO)
    save(tmp_path, 16, THREE, 2)
    assert steps(tmp_path)[-1] == (16, 2)


def test_a_damaged_part_makes_the_step_before_it_the_newest(tmp_path: Path) -> None:
    save(tmp_path, 4, THREE)
    save(tmp_path, 8, THREE)
    damaged = checkpoints.stage_folder(tmp_path, 1) / checkpoints.name_of(8) / "model"
    damaged.write_bytes(b"y1")
    assert stage_parts.newest_whole(tmp_path)[0].step == 4
    with pytest.raises(DamagedCheckpoint):
        stage_parts.newest_whole(tmp_path, 8)
    with pytest.raises(ConfigError, match="whole model of step 5") as refused:
        stage_parts.newest_whole(tmp_path, 5)
    assert refused.value.hint == "complete are: 4, 8"
    (damaged.parents[1] / checkpoints.name_of(4) / "model").write_bytes(b"y1")
    with pytest.raises(ConfigError, match="has a damaged part: 4, 8"):
        stage_parts.newest_whole(tmp_path)


def test_parts_of_another_version_alone_are_refused_and_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as former:
        former.setattr(checkpoints, "FORMAT", 1)
        save(tmp_path, 4, THREE)
    with pytest.raises(ConfigError, match="has format 1, this gossip reads 2"):
        stage_parts.newest_whole(tmp_path)
    save(tmp_path, 2, THREE)
    assert stage_parts.newest_whole(tmp_path)[0].step == 2


def test_a_pipeline_and_a_run_without_a_plan_do_not_go_on_from_each_other(tmp_path: Path) -> None:
    save(tmp_path / "stages", 4, THREE)
    checkpoints.write(tmp_path / "whole", 4, {"model": b"x"}, {}, keep=9)
    with pytest.raises(ConfigError, match="has the stages of a pipeline, and this run has no plan"):
        settled_resume(resolve({"resume": str(tmp_path / "stages"), "peers": 3}), print)
    with pytest.raises(ConfigError, match="has checkpoints of a run without a plan, and this"):
        settled_resume(pipeline(str(tmp_path / "whole")), print)


@pytest.mark.parametrize("has_plan", [True, False])
def test_the_folder_of_one_stage_names_the_one_with_all(tmp_path: Path, has_plan: bool) -> None:
    save(tmp_path, 4, THREE)
    for said in (f"{tmp_path}/stage-1", f"{tmp_path}/stage-1/step-000000004"):
        run = pipeline(said) if has_plan else resolve({"resume": said, "peers": 3})
        with pytest.raises(ConfigError, match=r"stage-1 has one stage of a pipeline$") as refused:
            settled_resume(run, print)
        assert f"--resume {tmp_path}" in str(refused.value.hint)
    checkpoints.write(tmp_path / "a" / "stage-1", 4, {"model": b"x"}, {}, keep=9)
    own = resolve({"resume": f"{tmp_path}/a/stage-1", "peers": 3})
    assert settled_resume(own, print).config.resume == f"{tmp_path}/a/stage-1"


def test_layers_are_found_in_the_stages_that_had_them(tmp_path: Path) -> None:
    save(tmp_path, 4, THREE)

    def stages(first: int, last: int) -> list[int]:
        found = stage_parts.of_layers(tmp_path, 4, (first, last), MODEL)
        return [part.stage for part in found]

    assert (stages(0, 1), stages(1, 2), stages(3, 5)) == ([0], [0, 1], [1, 2])
    with pytest.raises(ConfigError, match="of the model 0123456789abcdef, and the plan is for f"):
        stage_parts.of_layers(tmp_path, 4, (0, 1), "f" * 16)


def test_on_a_host_that_has_only_some_stages_only_their_layers_are_found(tmp_path: Path) -> None:
    save(tmp_path, 4, THREE, 1)
    assert len(stage_parts.of_layers(tmp_path, 4, (2, 3), MODEL)) == 1
    with pytest.raises(stage_parts.LackingLayers, match=r"lacks layers 2 to 4 .* it has 2-3"):
        stage_parts.of_layers(tmp_path, 4, (2, 4), MODEL)
    with pytest.raises(ConfigError, match="has stage 1 of 3 stages, and not 0, 2"):
        stage_parts.newest_whole(tmp_path)
    assert stage_parts.newest_whole(tmp_path / "none") == []


def test_a_part_that_does_not_say_its_layers_is_refused(tmp_path: Path) -> None:
    checkpoints.write(checkpoints.stage_folder(tmp_path, 0), 4, {"model": b"x"}, {}, keep=9)
    with pytest.raises(ConfigError, match="has no record of its layers"):
        stage_parts.parts_in(tmp_path)


def pipeline(resume: str) -> Resolved:
    stages = [{"layers": layers, "peers": (at,)} for at, layers in enumerate(TWO)]
    plan = {"model": MODEL, "micro_batches": 2, "samples": 1, "names": ("a", "b"), "stages": stages}
    return resolve({"peers": 2, "pipeline": plan, "resume": resume})


def test_all_peers_are_told_the_step_that_they_go_on_from(tmp_path: Path) -> None:
    save(tmp_path, 4, THREE)
    save(tmp_path, 8, THREE)
    found = settled_resume(pipeline(str(tmp_path)), print)
    assert found.config.resume == f"{tmp_path}@8"
    assert stage_parts.where_and_step(found.config.resume) == (str(tmp_path), 8)
    assert settled_resume(pipeline(f"{tmp_path}@4"), print).config.resume == f"{tmp_path}@4"
    with pytest.raises(ConfigError, match="of step 5"):
        settled_resume(pipeline(f"{tmp_path}@5"), print)
