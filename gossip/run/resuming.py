"""Checkpoint that a run resumes from, verified before any of its peers starts."""

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
"""The newest checkpoint in the folder that the script saves to: only the script knows which."""


def settled_resume(resolved: Resolved, tell: Callable[[str], None]) -> Resolved:
    """The same with an absolute path in ``resume``, which means the same to all peers, when there
    is a checkpoint to go on from.

    Args:
        tell: Gets a line on each damaged checkpoint that is passed over, and on what else the user
            may not expect.
    Raises: ConfigError: There is no such checkpoint, or it is damaged.
    """
    said = resolved.config.resume
    if said in ("", AUTO):
        return resolved
    folder, step = resolve(said)
    plan = resolved.config.pipeline
    _check_kind(folder, plan is not None)
    if plan is not None:
        parts = newest_whole(folder, step)
        if not parts:
            raise ConfigError(
                f"resume = {said!r}: no step in {shown(folder)} is whole in every stage",
                f"gossip checkpoints {shown(folder / 'stage-0')} --verify says what is damaged",
            )
        check_model(parts, plan.model, shown(folder))
        return _with(resolved, f"{folder}@{parts[0].step}")
    checkpoint, damaged = newest_good(folder, step)
    for line in damaged:
        tell(line)
    if checkpoint is None:
        raise ConfigError(
            f"resume = {said!r}: no checkpoint in {shown(folder)} is whole",
            "gossip checkpoints --verify says what is damaged",
        )
    later = [str(each) for each, _ in listed(folder) if each > checkpoint.step]
    if step is not None and later:
        tell(
            f"{shown(folder)} keeps later checkpoints ({', '.join(later)}): --resume auto would go "
            "on from them, so move them away if they are not wanted"
        )
    return _with(resolved, str(folder) if step is None else f"{folder}@{step}")


def newest_saved(run_dir: Path) -> tuple[int, Path] | None:
    """The newest step that a run has saved, of a pipeline the newest that every stage has, and the
    folder that it saves to. None: there is none, or whoever resumes is told what is wrong with
    it."""
    try:
        folder = folder_of(run_dir)
        if folder is None:
            return None
        steps = [*whole_steps(parts_in(folder))] or [step for step, _ in listed(folder)]
    except ConfigError:
        return None
    return (max(steps), folder) if steps else None


def _check_kind(folder: Path, has_plan: bool) -> None:
    """Raises ConfigError: A pipeline is to go on from checkpoints of whole models, or a run without
    a plan from those of a pipeline."""
    of_stages, of_models = bool(stage_folders(folder)), bool(listed(folder))
    if of_models and not of_stages and _is_of_stage(folder):
        whole = shown(folder.parent)
        raise ConfigError(
            f"{shown(folder)} has one stage of a pipeline",
            f"--resume {whole} goes on from all of them"
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
    """Whether the checkpoints in a folder are parts of a pipeline, by the newest that can be
    read."""
    for _, path in reversed(listed(folder)):
        with suppress(ConfigError):
            return is_part(open_at(path))
    return False


def _with(resolved: Resolved, where: str) -> Resolved:
    return resolved.with_values(resolved.sources.get("resume", "default"), resume=where)
