"""``gossip kubernetes``: an indexed job whose pods are the peers of one run, and which goes on when pods are lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from gossip.errors import ConfigError

from .slurm import check_options

NAME = re.compile(r"[a-z]([-a-z0-9]{0,46}[a-z0-9])?", re.ASCII)
"""Of a job, whose pods add their number and five letters to it, and of a service: 63 characters at most."""
NO_USE = (2, 6)
"""Exit codes of a peer that would end the same way again: wrong settings, refused by the others."""


def kubernetes(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[OPTIONS] SCRIPT [ARGS]", help="What follows gossip run in every pod.", show_default=False),
    ],
    peers: Annotated[int, typer.Option("-n", "--peers", min=1, help="How many pods, a peer each.", show_default=False)],
    image: Annotated[str, typer.Option(help="With gossip, torch and the script in it.", show_default=False)],
    claim: Annotated[
        str,
        typer.Option(help="Persistent volume claim that all pods may write to (ReadWriteMany).", show_default=False),
    ],
    name: Annotated[str, typer.Option(help="Of the job, the service and the run.")] = "gossip",
    mount: Annotated[str, typer.Option(help="Where the volume is in a pod; the run's folder is runs/NAME below it.")] = "/shared",
    workdir: Annotated[str, typer.Option(help="Folder that the script is started in.", show_default=False)] = "",
    cpus: Annotated[int, typer.Option("--cpus", min=1, help="Processors, and so threads, of each peer.")] = 1,
    memory: Annotated[str, typer.Option(help="Of each peer, as Kubernetes writes it.")] = "2Gi",
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="GPUs of each peer.")] = 0,
    restarts: Annotated[int, typer.Option(min=0, help="How often a pod that failed is started again.")] = 6,
    leave: Annotated[int, typer.Option("--leave", min=1, help="Seconds that a pod that is asked to go has to leave.")] = 90,
    python: Annotated[str, typer.Option(help="Of the image.")] = "python",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write it there instead of printing it.")] = None,
) -> None:
    """Print a job whose pods are peers: gossip kubernetes -n 8 --image IMAGE --claim PVC -- train.py | kubectl apply -f -"""
    if NAME.fullmatch(name) is None:
        raise ConfigError(f"--name {name}: Kubernetes takes small letters, digits and -, 48 at most", "--name my-run")
    if not PurePosixPath(mount).is_absolute() or ".." in PurePosixPath(mount).parts:
        raise ConfigError(f"--mount {mount} is no path from the root of a pod", "--mount /shared")
    shown = check_options(words)
    for option, why in (("run_dir", f"the run's folder is {mount}/runs/{name}"), ("peers", "that is what -n says")):
        if shown[option]["source"] not in ("default", "drawn"):
            where = shown[option]["source"]
            raise ConfigError(f"{option} is set ({where}): {why}", "leave it out: --mount and --name, or -n, say it")
    container = {
        "name": "peer",
        "image": image,
        "command": [python, "-m", "gossip.launch.cli", "run"],
        "args": ["--task", f"$(JOB_COMPLETION_INDEX)/{peers}", "--run-dir", f"{mount.rstrip('/')}/runs/{name}", *escaped(words)],
        **({"workingDir": workdir} if workdir else {}),
        "env": [
            {"name": "GOSSIP_LISTEN", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "OMP_NUM_THREADS", "value": str(cpus)},
        ],
        "resources": {
            "requests": {"cpu": str(cpus), "memory": memory},
            "limits": {"memory": memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})},
        },
        "volumeMounts": [{"name": "shared", "mountPath": mount}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    text = manifest(name, peers, restarts, leave, claim, container)
    if out is None:
        print(text, end="")
    else:
        out.write_text(text, "utf-8")


def escaped(words: list[str]) -> list[str]:
    """``$(NAME)`` in a container's arguments is a variable of Kubernetes', ``$$(NAME)`` is not."""
    return [word.replace("$(", "$$(") for word in words]


def manifest(name: str, peers: int, restarts: int, leave: int, claim: str, container: Mapping[str, Any]) -> str:
    """A headless service, by which each pod has a name, and the job."""
    labels = {"app.kubernetes.io/name": "gossip", "app.kubernetes.io/instance": name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True},
    }
    pod = {
        "metadata": {"labels": labels},
        "spec": {
            "subdomain": name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": leave,
            "containers": [container],
            "volumes": [
                {"name": "shared", "persistentVolumeClaim": {"claimName": claim}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }
    codes = {"containerName": container["name"], "operator": "In", "values": list(NO_USE)}
    rules = [
        {"action": "FailIndex", "onExitCodes": codes},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": peers,
            "parallelism": peers,
            "backoffLimitPerIndex": restarts,
            "maxFailedIndexes": peers,
            "podFailurePolicy": {"rules": rules},
            "template": pod,
        },
    }
    head = (
        f"# {peers} peers, a pod each, that find each other in runs/{name} of the claim {claim}: all pods have to write there.\n"
        f"# A pod that is lost is started again and comes back as another life of its peer; the others go on meanwhile.\n"
        f"# How it went: {container['command'][0]} -m gossip.launch.task_runs FOLDER 0, wherever the volume is.\n"
    )
    return head + "---\n".join("".join(f"{line}\n" for line in lines(document)) for document in (service, job))


def lines(value: Any) -> Iterator[str]:
    """YAML of mappings, lists and scalars. A scalar is written as JSON, which means the same there and is never misread."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(inner, Mapping | list) and inner:
                yield f"{key}:"
                yield from (f"  {line}" for line in lines(inner))
            else:
                yield f"{key}: {json.dumps(inner, ensure_ascii=False)}"
    elif isinstance(value, list):
        for inner in value:
            first, *rest = lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield json.dumps(value, ensure_ascii=False)
