"""Runs that resumed from a checkpoint of another run."""

from __future__ import annotations

from collections.abc import Sequence

from gossip.launch.report import lineage

from .incidents import Continuation
from .recorded import RecordedRun, read


def resumed(runs: Sequence[RecordedRun]) -> list[tuple[RecordedRun, RecordedRun, float]]:
    """Pairs of runs of which the second went on from a checkpoint of the first, and the seconds
    between them: both save to the same folder, and the second was told to resume."""
    found = []
    ordered = sorted(runs, key=lambda run: run.began)
    for at, run in enumerate(ordered):
        later = [
            other
            for other in ordered[at + 1 :]
            if other.settings.resume
            and run.saves_to is not None
            and other.saves_to == run.saves_to
            and other.began >= run.ended
        ]
        if later:
            found.append((run, later[0], later[0].began - run.ended))
    return found


def resumed_by(run: RecordedRun) -> Continuation | None:
    """The first run beside this one that went on from a checkpoint of it; None: there is none that
    is known."""
    beside = lineage.runs_beside(run.folder, run.saves_to)
    later = [each for each in beside if each.resumes and each.began >= run.ended]
    if not later:
        return None
    first = min(later, key=lambda each: each.began)
    return continuation(read(run.folder.parent / first.name))


def continuation(later: RecordedRun) -> Continuation:
    """Describe a resumed run as the continuation of the run before it."""
    return Continuation(later.name, later.began, _begins_after(later))


def _begins_after(run: RecordedRun) -> int:
    """How many steps of the script lie behind a run when it begins; 0 or less: it begins anew."""
    each = run.view.local_steps
    if len(run.commits):
        return int(run.commits.round.min()) * each
    steps = run.series.steps
    return int(min([float(steps.y(peer)[0]) for peer in steps.peers], default=each)) - each


def resumed_from(run: RecordedRun) -> tuple[str, int] | None:
    """Name of the last run beside this one from whose checkpoint it went on, and after how many
    steps; None: it began anew, or that is not known."""
    step = _begins_after(run)
    if not run.settings.resume or step <= 0:
        return None
    name = lineage.last_before(run.folder, run.saves_to, run.began)
    return (name, step) if name is not None else None
