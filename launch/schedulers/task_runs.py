"""``gossip run`` as a task of a scheduler. The task runs one peer of a run, and other tasks run the
other peers. This module also determines the outcome of the whole run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gossip.config import Resolved, RunConfig
from gossip.errors import ConfigError
from gossip.launch.local import Program, RunOutcome, Supervisor, feasible, runs, telling
from gossip.launch.report import Screen, counted, missed, summary
from gossip.launch.track import tracked
from gossip.run import (
    Task,
    answers,
    meet,
    read_seed,
    shown,
    slurm_task,
    tolerance,
)

from . import planned_task
from .condor_job import condor_task


def find_task(given: str | None, resolved: Resolved) -> Task | None:
    """Return the task of this process, from ``--task`` or the scheduler's environment variables;
    None if this process is not a task.

    Raises: ConfigError: ``--task`` is invalid or used without ``--run-dir``, or the variables are
    inconsistent.
    """
    plan = resolved.config.pipeline
    if given is None:
        found = slurm_task(os.environ) or condor_task(os.environ)
        if found is None or plan is None:
            return found
        return planned_task.on_node(found, plan.names, os.environ)
    if plan is not None and "/" not in given:
        peer, peers = planned_task.number_of(given, plan.names)
    else:
        peer, peers = _numbers(given)
    if not resolved.config.run_dir:
        raise ConfigError(
            f"--task {given} needs a folder that all tasks share",
            "use --run-dir FOLDER, the same for all of them",
        )
    return Task(
        "--task",
        Path(resolved.config.run_dir).name,
        peer,
        peers,
        one_host=resolved.config.host == "127.0.0.1" and not os.environ.get("GOSSIP_LISTEN"),
        comes_back=True,
    )


def _numbers(given: str) -> tuple[int, int]:
    """Return the two numbers of ``I/N``. Raises: ConfigError: It has another form, or I is not
    below N."""
    numbers = re.fullmatch(r"(\d+)/(\d+)", given)
    if numbers is None or int(numbers[1]) >= int(numbers[2]):
        raise ConfigError(
            f"--task {given}: it must be I/N: the number of the task, from 0, of N tasks",
            "--task 3/8; with --plan also the name of a peer",
        )
    return int(numbers[1]), int(numbers[2])


def train(
    task: Task, resolved: Resolved, program: Program, screen: Screen, track: Sequence[str] = ()
) -> tuple[Path, RunOutcome]:
    """Run the peer of the task until it ends. Return the run's folder and the outcome.

    Args:
        track: Names of trackers. Only the first task uses them.
    """
    feasible.check_memory(1)
    meeting = meet(task, resolved, sys.argv, program.folder)
    where = f" at {meeting.listen}" if meeting.listen else ""
    life = f", incarnation {meeting.incarnation}" if meeting.incarnation else ""
    screen.print_line(
        f"{meeting.config.name}: peer {task.peer} of {task.peers}"
        f"{_place(meeting.config, task.peer)}{life}{where}, in {meeting.folder}"
    )
    if displaced := displaces(meeting.folder, task.peer):
        screen.print_line(displaced)
    if task.peer == 0:
        if judge := tolerance.judges(meeting.config, resolved.sources):
            screen.print_line(judge)
        screen.print_line(tolerance.describe(meeting.config))
        runs.record_command(meeting.folder, program)
    environment = {"GOSSIP_LISTEN": meeting.listen} if meeting.listen else {}
    share = {task.peer: meeting.incarnation}
    supervisor = Supervisor(
        meeting.config, program, screen, environment, share=share, files=f"-{task.peer}"
    )
    names = track if task.peer == 0 else ()
    with tracked(names, meeting.folder, screen.print_line):
        return meeting.folder, runs.supervise(supervisor)


def _place(config: RunConfig, peer: int) -> str:
    """Return the position of a peer in the pipeline, such as ``, lab2 in stage 1``; "" without a
    pipeline."""
    plan = config.pipeline
    return "" if plan is None else f", {plan.names[peer]} in stage {plan.stage_of(peer)}"


def displaces(folder: Path, peer: int) -> str:
    """Return a warning if an earlier incarnation of the peer still runs, otherwise "". The other
    peers accept only the later incarnation."""
    former = read_seed(folder / "seeds", peer)
    if former is None or former.ended or not answers(former):
        return ""
    runs = f"peer {peer} runs already: its incarnation {former.incarnation} answers at"
    return (
        f"! {runs} {former.control}. This incarnation replaces it; to run both, give each "
        "a different number"
    )


def verdict(folder: Path, code: int) -> int:
    """Return the exit code for a batch script. If any peer has finished, this is the exit code of
    the run: 0, unless all rounds were lost or the replicas diverged. Otherwise it is ``code``; if
    ``code`` is 0, it follows from the exit codes of the peers."""
    if not (folder / "config.json").is_file():
        print(f"error: there is no run in {folder}: no task has begun", file=sys.stderr)
        return code or ConfigError.exit_code
    found = summary.write(folder, code, 0.0)
    # ``code`` may be 0 because the caller does not have the exit codes of the tasks.
    if not found["finished"] and not found["exit_code"]:
        found = summary.write(folder, telling(summary.codes(folder)), 0.0)
    finished = found["finished"]
    others = [peer for peer in range(found["peers"]) if peer not in finished]
    lost = f"; not: {', '.join(map(str, others))}" if others else ""
    came = ", ".join(map(str, finished)) or "no peer"
    print(f"{found['status']} after {counted(found['rounds'], 'round')}; finished: {came}{lost}")
    for line in missed.format_lines(found["faults_missed"]):
        print(shown(line))
    return int(found["exit_code"]) if finished else code or int(found["exit_code"])


if __name__ == "__main__":
    sys.exit(verdict(Path(sys.argv[1]), int(sys.argv[2])))
