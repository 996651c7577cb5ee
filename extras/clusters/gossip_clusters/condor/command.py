"""``gossip condor``: a DAG for HTCondor, in which each peer of a run is a job. The run continues if
jobs are evicted or begin late."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gossip.errors import ConfigError, RunExists
from gossip.launch.optional import optional
from gossip.launch.report import counted
from gossip.launch.schedulers import (
    check,
    check_resume_elsewhere,
    environment_of,
    patient,
    refuse,
    refuse_plan,
    resolved_for,
)

if TYPE_CHECKING:
    from gossip.config import Resolved

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,79}", re.ASCII)


def condor(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[OPTIONS] SCRIPT [ARGS]",
            help="Arguments of gossip run in every job.",
            show_default=False,
        ),
    ],
    peers: Annotated[int, optional("Number of jobs, with one peer each.", "-n", "--peers", min=2)],
    name: Annotated[str, optional("Name of the submission; by default that of the script.")] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="New folder for the written files; by default condor-NAME."
        ),
    ] = None,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="All machines share this folder. The jobs run in it, and no file is transferred.",
        ),
    ] = False,
    inputs: Annotated[
        list[Path] | None,
        optional(
            "Another file or folder that is transferred with each job. Repeatable.", "--input"
        ),
    ] = None,
    cpus: Annotated[
        int, typer.Option(min=1, help="Number of processors and of threads of each peer.")
    ] = 1,
    memory: Annotated[str, typer.Option(help="Memory of each peer, in HTCondor's format.")] = "2GB",
    disk: Annotated[
        str, typer.Option(help="Disk space of each peer, in HTCondor's format.")
    ] = "1GB",
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each peer.")] = 0,
    restarts: Annotated[
        int, typer.Option(min=0, help="Maximum restarts of a job that failed or was held.")
    ] = 6,
    leave: Annotated[
        int,
        typer.Option(min=1, help="Seconds after which HTCondor kills an evicted job."),
    ] = 90,
    python: Annotated[
        str, optional("Path of Python on all machines; by default that of this command.")
    ] = "",
    more: Annotated[
        list[str] | None,
        optional(
            "Another line for the submit files: --condor 'rank = Mips'. Repeatable.", "--condor"
        ),
    ] = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="Also submit it with condor_submit_dag.")
    ] = False,
) -> None:
    """Write a DAG for HTCondor with a peer in each job, and submit it if --submit is set (no real
    cluster has run it yet): gossip condor -n 8 -- train.py --lr 0.1

    Without --shared, the settings, the key and the script are transferred with the jobs. The jobs
    find each other through a contact file on the submitting machine (condor_chirp), and connect to
    each other directly. No real HTCondor pool has run this yet: docs/schedulers.md lists the tests.
    """
    from .files import DAG, MORE_SUB, Submission

    resolved, _, program = check(context, words, peers)
    refuse_plan(resolved, "HTCondor")
    words, resolved = patient(words, resolved, "HTCondor")
    if program.module and not shared:
        raise ConfigError(
            f"-m {program.script}: without --shared, your packages are not on the machines of jobs",
            "add --shared, or use a script in place of -m, and pass its files with --input",
        )
    name = name or re.sub(r"[^\w.-]", "_", program.name, flags=re.ASCII)
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            f"--name {name}: use letters, digits, _, . and -, at most 80", "--name my-run"
        )
    if submit and shutil.which("condor_submit_dag") is None:
        raise ConfigError(
            "there is no condor_submit_dag on this machine",
            "use a machine with HTCondor's commands, or leave out --submit and submit the "
            "written files by hand",
        )
    elsewhere = {
        "run_dir": "each submission has its own folder",
        "peers": "-n already gives it",
        "name": "it is for --name",
    }
    refuse(resolved, elsewhere, "leave it out after --")
    check_resume_elsewhere(resolved)
    folder = (out or Path(f"condor-{name}")).resolve()
    for path in (folder, Path.cwd()):
        check_path(path)
    if broken := [line for line in more or () if re.search(r"[\r\n]|\\$", line)]:
        raise ConfigError(f"--condor {broken[0]!r} is not one line of a submit file", None)
    sources = environment_of(resolved) if shared else {}
    resolved = resolved_for(resolved, peers, name, "HTCondor")
    sent = () if shared else sent_files([Path(program.script), *(inputs or ())], resolved)
    sent_words = (Path(program.script).name, *program.arguments)
    submission = Submission(
        name=name,
        folder=folder,
        workdir=Path.cwd() if shared else None,
        python=python or sys.executable,
        peers=peers,
        command=tuple(words) if shared else sent_words,
        joining=tuple(program.words) if shared else sent_words,
        room=resolved.config.room > peers,
        inputs=sent,
        keyed=resolved.config.keyed,
        environment={"OMP_NUM_THREADS": str(cpus), **sources},
        cpus=cpus,
        memory=memory,
        disk=disk,
        gpus=gpus,
        restarts=restarts,
        leave=leave,
        more=tuple(more or ()),
    )
    texts = submission.files()
    make_folder(folder, None if shared else resolved)
    for file, text in texts.items():
        (folder / file).write_text(text, "utf-8")
    print(f"{counted(peers, 'job')}, each with one peer: {folder}")
    if submit:
        send(folder / DAG)
    else:
        print(f"  submit: condor_submit_dag {folder / DAG}")
    if submission.room:
        print(f"  later:  condor_submit {folder / MORE_SUB}    adds a peer to the running jobs")


def sent_files(paths: Sequence[Path], resolved: Resolved) -> tuple[str, ...]:
    """Return the paths of the files that are transferred with each job. All files go into one
    folder. Raises: ConfigError: A file is missing, or its name cannot be used in that folder."""
    for path in paths:
        if not path.exists():
            raise ConfigError(
                f"there is no {path}", "--input is for files and folders on this machine"
            )
        check_path(path.resolve())
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two files with the same name cannot be in one folder: {', '.join(names)}",
            "rename one of them",
        )
    config = resolved.config
    for spec in (config.aggregator, config.topology, config.sender):
        for file in re.findall(r"[^+:]+\.py(?=:)", spec):
            if file not in names:
                raise ConfigError(
                    f"the run uses {file}, which would be missing in the folder of a job",
                    f"--input {Path(file).name}",
                )
    return tuple(str(path.resolve()) for path in paths)


def check_path(path: Path) -> None:
    """Check that HTCondor can read a path. Raises: ConfigError: HTCondor would read it as several
    paths or as a macro."""
    if wrong := re.search(r"[\s,$;\\\"']", str(path)):
        raise ConfigError(
            f"{path}: HTCondor's files cannot contain a path with {wrong[0]!r}",
            "use another folder",
        )


def make_folder(folder: Path, resolved: Resolved | None) -> None:
    """Create the folder of a submission. If files are transferred, it contains the settings and the
    key. Raises: ConfigError: The folder exists."""
    from gossip.launch.local import feasible
    from gossip.run import SWARM_KEY, write_pair
    from gossip.transport import new_pair

    from .files import CONFIG

    try:
        feasible.make_run_folder(folder)
    except RunExists:
        raise ConfigError(
            f"the folder {folder} of another submission already exists",
            "use -o FOLDER or another --name, or move the old folder",
        ) from None
    if resolved is None:
        return
    resolved.config.model_copy(update={"run_dir": ""}).dump(folder / CONFIG)
    if resolved.config.keyed:
        write_pair(folder / SWARM_KEY, new_pair())


def send(dag: Path) -> None:
    """Submit the DAG. Raises: ConfigError: HTCondor rejects it."""
    done = subprocess.run(
        ["condor_submit_dag", str(dag)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise ConfigError(
            f"condor_submit_dag rejects {dag}: {said}",
            "the files were written: change them, and submit them by hand",
        )
    number = re.search(r"submitted to cluster (\d+)", done.stdout)
    job = number[1] if number else "?"
    print(
        f"  DAG {job}: condor-{job}\n  watch: condor_q -nobatch -const DAGManJobId=={job}    "
        f"stop: condor_rm {job}"
    )
