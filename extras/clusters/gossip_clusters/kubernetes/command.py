"""``gossip kubernetes``: an indexed job for Kubernetes, in which each peer of a run is a pod. The
run continues if pods are lost."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from gossip.errors import ConfigError
from gossip.launch.optional import optional
from gossip.launch.schedulers import (
    check_fit,
    check_options,
    check_resume_elsewhere,
    environment_of,
    left_behind,
    patient,
    refuse,
    refuse_plan,
    resolved_for,
)

if TYPE_CHECKING:
    from gossip.config import RunConfig

NAME = re.compile(r"[a-z]([-a-z0-9]{0,46}[a-z0-9])?", re.ASCII)
"""Name of a job and of its service. Pods add their index and five letters to it, and the result may
have at most 63 characters."""
SHARED = "/shared"
JOIN_SERVER = 7421


def kubernetes(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[OPTIONS] SCRIPT [ARGS]",
            help="Arguments of gossip run in every pod.",
            show_default=False,
        ),
    ],
    peers: Annotated[int, optional("Number of pods, with one peer each.", "-n", "--peers", min=1)],
    image: Annotated[str, optional("Container image that contains gossip, torch and the script.")],
    claim: Annotated[
        str,
        optional(
            "Persistent volume claim that all pods may write to (ReadWriteMany). Pods then "
            "find each other by its files, not by names."
        ),
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the job, the service and the run.")] = "gossip",
    mount: Annotated[
        str, optional(f"With --claim: path of the volume in a pod; by default {SHARED}.")
    ] = "",
    port: Annotated[
        int,
        typer.Option(
            min=1, max=65535, help="Without --claim: port of the join server of each pod."
        ),
    ] = JOIN_SERVER,
    workdir: Annotated[str, optional("Folder in which the script starts.")] = "",
    user: Annotated[
        int | None, optional("User id of the pods; by default that of the image.", min=0)
    ] = None,
    cpus: Annotated[
        int, typer.Option(min=1, help="Number of processors and of threads of each peer.")
    ] = 1,
    memory: Annotated[
        str, typer.Option(help="Memory of each peer, in Kubernetes' format.")
    ] = "2Gi",
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each peer.")] = 0,
    restarts: Annotated[
        int, typer.Option(min=0, help="Maximum restarts of a pod that failed.")
    ] = 6,
    leave: Annotated[
        int,
        typer.Option(min=1, help="Seconds after which Kubernetes kills an evicted pod."),
    ] = 90,
    python: Annotated[str, typer.Option(help="Command of Python in the image.")] = "python",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="File for the manifest. Only you can read it."),
    ] = None,
) -> None:
    """Print a job for Kubernetes with a peer in each pod (no real cluster has run it yet):
    gossip kubernetes -n 8 --image IMAGE -- train.py --lr 0.1 | kubectl apply -f -

    Pods find each other by their names in a headless service, and need no volume. The
    settings and the swarm key are in a secret. No real Kubernetes cluster has run this yet:
    docs/schedulers.md lists the tests.
    """
    from .files import CONFIG, GIVEN, OWN, Pods, escaped

    if NAME.fullmatch(name) is None:
        raise ConfigError(
            f"--name {name}: use lower-case letters, digits and -, at most 48 characters",
            "--name my-run",
        )
    if mount and not claim:
        raise ConfigError(
            "--mount is the path of a volume, but there is no volume",
            "add --claim PVC, or leave out --mount",
        )
    mount = mount or SHARED
    if not PurePosixPath(mount).is_absolute() or ".." in PurePosixPath(mount).parts:
        raise ConfigError(f"--mount {mount} is not an absolute path", "for example --mount /shared")
    resolved, given, program = check_options(context, words, peers)
    refuse_plan(resolved, "Kubernetes")
    words, resolved = patient(words, resolved, "Kubernetes")
    folder = f"{mount.rstrip('/')}/runs/{name}" if claim else f"{OWN}/{name}"
    elsewhere = {
        "run_dir": f"the run's folder is {folder}",
        "peers": "-n already gives it",
        "name": "it is for --name",
    }
    refuse(
        resolved,
        elsewhere,
        "leave it out after --: -n and --name, or --mount with --claim, determine it",
    )
    check_resume_elsewhere(resolved)
    if claim:
        check_fit(resolved, peers)
        command = [
            "gossip.launch.cli",
            "run",
            "--task",
            f"$(JOB_COMPLETION_INDEX)/{peers}",
            "--run-dir",
            folder,
        ]
        command += map(escaped, words)
        files: Mapping[str, str] = {}
    else:
        config = resolved_for(resolved, peers, name, "Kubernetes").config.model_copy(
            update={"run_dir": ""}
        )
        files = {CONFIG: config.model_dump_json(), **key_file(given["key"], config)}
        command = [
            "gossip_clusters.kubernetes.peer",
            GIVEN,
            OWN,
            name,
            str(port),
            *map(escaped, program.words),
        ]
    pods = Pods(
        name=name,
        image=image,
        peers=peers,
        module=command[0],
        words=tuple(command[1:]),
        environment={"OMP_NUM_THREADS": str(cpus), **(environment_of(resolved) if claim else {})},
        claim=claim,
        mount=mount,
        port=port,
        workdir=workdir,
        python=python,
        cpus=cpus,
        memory=memory,
        gpus=gpus,
        restarts=restarts,
        leave=leave,
        user=-1 if user is None else user,
        given=files,
    )
    write(pods.text(), out)
    remark(given["config"] if claim else None)


def key_file(path: Path | None, config: RunConfig) -> dict[str, str]:
    """Return the text of the key file by its name; empty if the run has no keys. The key is that in
    ``path``, or a new key. Raises: ConfigError: The key is invalid."""
    from gossip.launch.local import own_key
    from gossip.run import SWARM_KEY, dump_pair
    from gossip.transport import new_pair

    pair = own_key(path, config)
    return {SWARM_KEY: dump_pair(pair or new_pair()).decode("ascii")} if config.keyed else {}


def write(text: str, out: Path | None) -> None:
    """Write the manifest. Raises: ConfigError: The file cannot be written."""
    if out is None:
        print(text, end="")
        return
    try:
        with open(
            os.open(out, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            os.fchmod(file.fileno(), 0o600)  # The file may exist, and it contains the key.
            file.write(text)
    except OSError as error:
        raise ConfigError(
            f"cannot write {out}: {error.strerror}", "use -o FILE with a writable folder"
        ) from error


def remark(config: Path | None) -> None:
    """Warn about settings of this machine that the pods do not receive."""
    if config is not None:
        print(
            f"! every pod reads --config {config}, so the file must be in the image",
            file=sys.stderr,
        )
    if left := left_behind():
        print(
            f"! not passed to the pods, because they describe this machine: {', '.join(left)}",
            file=sys.stderr,
        )
