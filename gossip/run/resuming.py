"""Selects and verifies the checkpoint to resume from, before any peer starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gossip.config import Resolved
from gossip.errors import ConfigError

from .checkpoints import folder_of, listed, newest_good, open_at, resolve, stage_folders
from .stage_parts import check_model, is_part, newest_whole, parts_in, whole_steps
from .untrusted import shown

AUTO = "auto"
"""Value of ``resume`` that selects the newest checkpoint in the folder to which the script saves.
Only the script knows this folder."""


def settled_resume(resolved: Resolved, tell: Callable[[str], None]) -> Resolved:
    """Return the config in which ``resume`` is an absolute path, if the run resumes from a named
    checkpoint. All peers then resume from this checkpoint.

    Args:
        tell: Function that gets a line about each damaged checkpoint that is skipped, and a line
            about later checkpoints that remain in the folder.
    Raises: ConfigError: There is no such checkpoint, or it is damaged, or it does not fit the run.
    """
    given = resolved.config.resume
    if given in ("", AUTO):
        return resolved
    folder, step = resolve(given)
    plan = resolved.config.pipeline
    _check_kind(folder, plan is not None)
    if plan is not None:
        parts = newest_whole(folder, step)
        if not parts:
            raise ConfigError(
                f"resume = {given!r}: no step in {shown(folder)} is complete in every stage",
                f"gossip checkpoints {shown(folder / 'stage-0')} --verify lists the damaged files",
            )
        check_model(parts, plan.model, shown(folder))
        return _with(resolved, f"{folder}@{parts[0].step}")
    checkpoint, damaged = newest_good(folder, step)
    for line in damaged:
        tell(line)
    if checkpoint is None:
        raise ConfigError(
            f"resume = {given!r}: no checkpoint in {shown(folder)} is complete",
            "gossip checkpoints --verify lists the damaged files",
        )
    later = [str(each) for each, _ in listed(folder) if each > checkpoint.step]
    if step is not None and later:
        tell(
            f"{shown(folder)} keeps later checkpoints ({', '.join(later)}): --resume auto would "
            "resume from them, so move them away if they are not needed"
        )
    return _with(resolved, str(folder) if step is None else f"{folder}@{step}")


def newest_saved(run_dir: Path) -> tuple[int, Path] | None:
    """Return the newest step that a run has saved, and the folder of checkpoints. In a pipeline,
    this is the newest step that all stages have saved. Return None if there is no readable
    checkpoint; ``--resume`` then reports the reason."""
    try:
        folder = folder_of(run_dir)
        if folder is None:
            return None
        steps = [*whole_steps(parts_in(folder))] or [step for step, _ in listed(folder)]
    except ConfigError:
        return None
    return (max(steps), folder) if steps else None


def _check_kind(folder: Path, has_plan: bool) -> None:
    """Check that a pipeline resumes from checkpoints of stages, and that a run without a plan
    resumes from checkpoints of whole models. Raises ConfigError."""
    of_stages, of_models = bool(stage_folders(folder)), bool(listed(folder))
    if of_models and not of_stages and _is_of_stage(folder):
        whole = shown(folder.parent)
        raise ConfigError(
            f"{shown(folder)} has one stage of a pipeline",
            f"--resume {whole} resumes from all of them"
            if has_plan
            else f"--plan plan.toml --resume {whole}; gossip checkpoints export {whole} makes one "
            "model of all of them",
        )
    if has_plan and of_models and not of_stages:
        raise ConfigError(
            f"{shown(folder)} has checkpoints of a run without a plan, and this one has a plan",
            "leave out --plan, or let the script load the model and begin without --resume",
        )
    if of_stages and not of_models and not has_plan:
        raise ConfigError(
            f"{shown(folder)} has the stages of a pipeline, and this run has no plan",
            f"--plan plan.toml; gossip checkpoints export {shown(folder)} makes one model of them",
        )


def _is_of_stage(folder: Path) -> bool:
    """Whether the checkpoints in a folder are of a stage of a pipeline. The newest readable
    checkpoint decides."""
    for _, path in reversed(listed(folder)):
        with suppress(ConfigError):
            return is_part(open_at(path))
    return False


def _with(resolved: Resolved, where: str) -> Resolved:
    return resolved.with_values(resolved.sources.get("resume", "default"), resume=where)
