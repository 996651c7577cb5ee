"""``gossip slurm``: writes the batch script of a job. Every task of the job is one peer of the same
run, which continues after the loss of a node."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import Annotated

import typer

from gossip.errors import ConfigError
from gossip.interpreter import python_command
from gossip.launch.optional import optional

from .task_words import check, check_fit, to_stderr

SCRIPT = """\
#!/bin/bash
{options}
# --no-kill, here and for srun: a lost node ends its own tasks, but not the job.
# --signal: every task receives SIGTERM before the time limit, and its peer leaves after its round.
# --requeue: a requeued job is another run, in another folder. With --resume auto it continues from
# the newest checkpoint; without a checkpoint there is no state to continue from.

cd "$SLURM_SUBMIT_DIR" || exit 2
{environment}run="runs/slurm-$SLURM_JOB_ID"
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || run="$run-r$SLURM_RESTART_COUNT"

# --kill-on-bad-exit=0, --wait=0: the end of a task does not end the others.
srun --no-kill --kill-on-bad-exit=0 --wait=0{srun} \\
  {python} -m gossip.launch.cli run --run-dir "$run" {words}

# The exit code of srun is the worst of its tasks. The job succeeds if peers have finished.
{python} -m gossip.launch.schedulers.task_runs "$run" $?
"""


def slurm(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[OPTIONS] SCRIPT [ARGS]",
            help="Arguments of gossip run in every task.",
            show_default=False,
        ),
    ],
    nodes: Annotated[int, optional("Number of machines.", "-N", "--nodes", min=1)],
    per_node: Annotated[int, typer.Option(min=1, help="Peers on each machine.")] = 1,
    time: Annotated[str | None, optional("Time limit of the job, in sbatch's format.")] = None,
    cpus: Annotated[int, typer.Option(min=1, help="Processors, and so threads, of each peer.")] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each peer.")] = 0,
    partition: Annotated[str | None, optional("As for sbatch.", "-p", "--partition")] = None,
    account: Annotated[str | None, optional("As for sbatch.", "-A", "--account")] = None,
    leave: Annotated[
        int,
        typer.Option(
            min=0, help="Seconds before the end of the job at which peers are told to leave."
        ),
    ] = 90,
    more: Annotated[
        list[str] | None,
        optional("One more option for sbatch: --sbatch=--mem=8G. Repeatable.", "--sbatch"),
    ] = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="Submit the script with sbatch instead of printing it.")
    ] = False,
) -> None:
    """Print or --submit a Slurm job that survives lost nodes: gossip slurm -N 4 --per-node 2 --time
    2:00:00 -- train.py --lr 0.1

    In any srun with several tasks, each task that runs gossip run train.py is one peer of the run,
    also without this command: docs/schedulers.md.
    """
    from gossip.run import settled_resume

    resolved, _, program = check(context, words, nodes * per_node)
    settled_resume(resolved, to_stderr)  # Tasks share folders with this machine.
    check_fit(resolved, nodes * per_node)
    options = {
        "job-name": program.name,
        "nodes": str(nodes),
        "ntasks-per-node": str(per_node),
        "cpus-per-task": str(cpus),
        "gpus-per-task": str(gpus) if gpus else None,
        "time": time,
        "partition": partition,
        "account": account,
        "signal": f"TERM@{leave}" if leave else None,
        "open-mode": "append",
    }
    lines = [f"#SBATCH --{key}={value}" for key, value in options.items() if value is not None]
    lines += [
        "#SBATCH --no-kill",
        "#SBATCH --requeue",
        *(f"#SBATCH {option}" for option in more or ()),
    ]
    text = SCRIPT.format(
        options="\n".join(lines),
        environment=f"export OMP_NUM_THREADS={cpus}\n",
        srun=f" --cpus-per-task={cpus}" + (f" --gpus-per-task={gpus}" if gpus else ""),
        python=shlex.join(python_command()),
        words=shlex.join(words),
    )
    if submit:
        send(text)
    else:
        print(text, end="")


def send(text: str) -> None:
    """Submit the script. Raises: ConfigError: There is no sbatch, or it rejects the job."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "there is no sbatch on this machine",
            "submit on a machine of the cluster; without --submit the script is printed",
        )
    done = subprocess.run(
        ["sbatch", "--parsable"], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ConfigError(
            f"sbatch rejects the job: {said}",
            "print the script without --submit, change it, and submit it by hand",
        )
    job = done.stdout.strip().partition(";")[0]
    print(
        f"job {job}: runs/slurm-{job}, output in slurm-{job}.out\n  watch: squeue -j {job}    "
        f"stop: scancel {job}"
    )
