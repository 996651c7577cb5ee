"""Checkpoints of a pipeline's stages. The checkpoints of all stages at one step, from a run with
one cut (assignment of layers to stages), together contain the whole model. A run that resumes from
them may have another cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from gossip.errors import ConfigError

from .checkpoints import (
    Checkpoint,
    DamagedCheckpoint,
    is_step,
    listed,
    name_of,
    newest_good,
    open_at,
    stage_folders,
    verify,
)
from .untrusted import shown, whole

Cut: TypeAlias = tuple[tuple[int, int], ...]
"""First and last layer of each stage."""
OTHERS = "|others"
"""Suffix that a launcher adds to ``resume`` if other peers have checkpoints of this step. If a peer
finds no checkpoint of its layers in the folder, it then receives its state from another peer of its
stage."""


class LackingLayers(ConfigError):
    """Not all layers of a stage are in a folder."""


@dataclass(frozen=True, slots=True)
class SavedStage:
    """Checkpoint of one stage at one step.

    Attributes:
        cut: Cut of the run that saved the checkpoint.
        model: Digest of the model's layers, as in ``PipelineConfig``.
        folder: Folder with the checkpoints of this stage.
    """

    step: int
    stage: int
    cut: Cut
    model: str
    folder: str

    @property
    def layers(self) -> tuple[int, int]:
        """First and last layer of the stage."""
        return self.cut[self.stage]

    def has_of(self, layers: tuple[int, int]) -> bool:
        """Whether the checkpoint has any of these layers."""
        return self.layers[0] <= layers[1] and layers[0] <= self.layers[1]

    def to_json(self) -> dict[str, Any]:
        place = {"step": self.step, "stage": self.stage, "folder": self.folder}
        return {**about(self.cut, self.model), **place}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SavedStage | None:
        """Return the record in a JSON object, or None."""
        step, stage, cut = whole(fields.get("step")), whole(fields.get("stage")), _cut(fields)
        if step is None or stage is None or cut is None or stage >= len(cut):
            return None
        return cls(step, stage, cut, str(fields.get("model")), str(fields.get("folder")))

    def open(self) -> Checkpoint:
        """Open and verify the checkpoint. Raises: DamagedCheckpoint: A file differs from what was
        written."""
        found, _ = newest_good(Path(self.folder), self.step)
        assert found is not None, "the checkpoint of a given step is found, or is an error"
        return found


def about(cut: Cut, model: str) -> dict[str, Any]:
    """Return the fields about the pipeline for the manifest of a stage's checkpoint."""
    return {"stages": [list(layers) for layers in cut], "model": model}


def is_part(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has one stage of a pipeline, not a whole model."""
    return _cut(checkpoint.manifest) is not None


def where_and_step(resume: str) -> tuple[str, int | None]:
    """Split ``RUN|FOLDER[@STEP]`` into the name, and the step or None."""
    name, _, number = resume.rpartition("@")
    return (name, int(number)) if name and is_step(number) else (resume, None)


def parts_in(folder: Path) -> list[SavedStage]:
    """Return all checkpoints of stages in the folder to which a run saves. Checkpoints with missing
    files, or files of a wrong size, are skipped.

    Raises: ConfigError: A folder cannot be listed, or a checkpoint does not name its layers.
    """
    found = []
    for stage, place in stage_folders(folder).items():
        for _, path in listed(place):
            try:
                manifest = open_at(path).manifest
            except ConfigError:
                continue  # damaged, from another version of gossip, or just removed
            part = SavedStage.from_json({**manifest, "stage": stage, "folder": str(place)})
            if part is None:
                raise ConfigError(
                    f"{shown(path)} has no record of its layers",
                    "use the version of gossip that wrote it",
                )
            found.append(part)
    return found


def whole_steps(parts: Iterable[SavedStage]) -> dict[int, list[SavedStage]]:
    """Return the steps for which all stages of one cut have a checkpoint, in ascending order. The
    value has these checkpoints, in the order of the stages."""
    groups: dict[tuple[int, str, Cut], dict[int, SavedStage]] = {}
    for part in parts:
        groups.setdefault((part.step, part.model, part.cut), {}).setdefault(part.stage, part)
    return {
        step: [have[stage] for stage in range(len(cut))]
        for (step, _, cut), have in sorted(groups.items())
        if len(have) == len(cut)
    }


def newest_whole(folder: Path, step: int | None = None) -> list[SavedStage]:
    """Return the checkpoints of all stages at ``step``. If ``step`` is None, use the newest step
    with an undamaged checkpoint of every stage. Return [] if there is no checkpoint.

    Raises: ConfigError: ``step`` is incomplete or damaged, some stages have no folder here, a
        folder cannot be listed, every step has a damaged checkpoint, or all checkpoints come from
        another version of gossip.
    """
    parts = parts_in(folder)
    steps = whole_steps(parts)
    if parts and not steps:
        _check_all_here(folder, parts[-1].cut)
    if step is not None:
        if step not in steps:
            raise ConfigError(
                f"no set of stages in {shown(folder)} has the whole model of step {step}",
                f"complete are: {', '.join(map(str, steps)) or 'none'}",
            )
        for part in steps[step]:
            part.open()
        return steps[step]
    for found in reversed(steps.values()):
        if all(not verify(open_at(Path(part.folder) / name_of(part.step))) for part in found):
            return found
    if steps:
        raise ConfigError(
            f"each step in {shown(folder)} has a damaged part: {', '.join(map(str, steps))}",
            "gossip checkpoints --verify lists the damaged files of a stage's folder; without "
            "--resume the run starts from the beginning",
        )
    _check_version(folder)
    return []


def _check_version(folder: Path) -> None:
    """Raise ConfigError if a stage's checkpoint comes from another version of gossip."""
    for place in stage_folders(folder).values():
        for _, path in listed(place):
            try:
                open_at(path)
            except ConfigError as error:
                if path.is_dir() and not isinstance(error, DamagedCheckpoint):
                    raise


def _check_all_here(folder: Path, cut: Cut) -> None:
    """Raise ConfigError if a stage has no folder in ``folder``. If the file system is shared, every
    stage has created its folder there at the start."""
    here = stage_folders(folder)
    if missing := [str(stage) for stage in range(len(cut)) if stage not in here]:
        raise ConfigError(
            f"{shown(folder)} has {', '.join(f'stage {stage}' for stage in here)} of "
            f"{len(cut)} stages, and not {', '.join(missing)}: did they save on other machines?",
            "copy the folder that the script saves to from each host, as with rsync -a",
        )


def of_layers(folder: Path, step: int, layers: tuple[int, int], model: str) -> list[SavedStage]:
    """Return the checkpoints at ``step`` that have these layers, in the order of the stages. Other
    stages need not have a checkpoint in this folder.

    Raises: LackingLayers: Not all of these layers are in the folder. ConfigError: The checkpoints
        belong to another model.
    """
    here = [part for part in parts_in(folder) if part.step == step]
    if all(part.model != model for part in here):
        check_model(here, model, shown(folder))
    for cut in dict.fromkeys(part.cut for part in here if part.model == model):
        if wanted := covering([part for part in here if part.cut == cut], layers):
            return wanted
    raise LackingLayers(
        f"{shown(folder)} lacks layers {layers[0]} to {layers[1]} of step {step}: it has "
        f"{layers_in_words(here)}",
        "copy the folders of the stages that have these layers there",
    )


def covering(parts: Sequence[SavedStage], layers: tuple[int, int]) -> list[SavedStage]:
    """Return those of ``parts`` that have these layers, in the order of the stages; [] if some of
    the layers are missing. All parts must be of one step and cut."""
    wanted = sorted([part for part in parts if part.has_of(layers)], key=lambda part: part.stage)
    have = {at for part in wanted for at in range(part.layers[0], part.layers[1] + 1)}
    return wanted if have >= {*range(layers[0], layers[1] + 1)} else []


def layers_in_words(parts: Iterable[SavedStage]) -> str:
    """Return the layers of parts as text: ``0-3, 6-8``, or "none"."""
    found = sorted({part.layers for part in parts})
    return ", ".join([f"{first}-{last}" for first, last in found]) or "none"


def check_model(parts: Sequence[SavedStage], model: str, folder: str) -> None:
    """Check that the checkpoints belong to the model of the plan. Raises ConfigError."""
    for part in parts[:1]:
        if part.model != model:
            raise ConfigError(
                f"{folder} has checkpoints of the model {part.model}, and the plan is for {model}",
                "use a plan for the saved model, or save to another folder",
            )


def _cut(fields: Mapping[str, Any]) -> Cut | None:
    """Return the cut in a manifest; None if there is no valid cut."""
    stages = fields.get("stages")
    if not isinstance(stages, list) or not stages:
        return None
    cut: list[tuple[int, int]] = []
    for each in stages:
        numbers = [whole(at) for at in each] if isinstance(each, list) else []
        match numbers:
            case [int(first), int(last)] if first == (cut[-1][1] + 1 if cut else 0) <= last:
                cut.append((first, last))
            case _:
                return None
    return tuple(cut)
