"""Manifest that ``gossip kubernetes`` writes: a headless service, an indexed job, and a secret
where the pods share no volume."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossip.interpreter import python_command
from gossip.launch.report import counted
from gossip.launch.schedulers import NO_USE
from gossip.run import SWARM_KEY

CONFIG = "config.json"
GIVEN, OWN = "/etc/gossip", "/run/gossip"
"""In a pod: where the secret is, and where its own run's folder."""
ONLY_OWNER = 0o400
FROM_POD = {
    "GOSSIP_LISTEN": "status.podIP",
    "JOB_UID": "metadata.labels['batch.kubernetes.io/controller-uid']",
    "JOB_FAILURES": "metadata.annotations['batch.kubernetes.io/job-index-failure-count']",
    "JOB_FAILURES_IGNORED": (
        "metadata.annotations['batch.kubernetes.io/job-index-ignored-failure-count']"
    ),
}
"""Variables that Kubernetes sets in a pod: its address, the job that it belongs to,
and how often it has failed before, counted or not."""


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods to be created by Kubernetes.

    Attributes:
        module: Module that each pod runs with ``python -m``, with ``words`` as its arguments.
        claim: The volume that all share, at ``mount``; "": they share none.
        port: Port of each pod's join server.
        user: User id of all processes; -1: that of the image.
        given: Names and texts of the files in the secret; none: there is none.
    """

    name: str
    image: str
    peers: int
    module: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    claim: str
    mount: str
    port: int
    workdir: str
    python: str
    cpus: int
    memory: str
    gpus: int
    restarts: int
    leave: int
    user: int
    given: Mapping[str, str]

    def text(self) -> str:
        documents = [*([self._secret()] if self.given else []), self._service(), self._job()]
        return self._head() + "---\n".join(
            "".join(f"{line}\n" for line in lines(document)) for document in documents
        )

    def _head(self) -> str:
        if self.claim:
            meets = f"in runs/{self.name} of the claim {self.claim}: all pods have to write there"
            told = (
                f"How it went: {self.python} -m gossip.launch.schedulers.task_runs FOLDER 0, "
                "wherever the volume is."
            )
        else:
            meets = (
                f"by their names, {self.name}-INDEX.{self.name}: any pod that is there knows "
                "all others"
            )
            told = (
                f"How it went: kubectl logs -l app.kubernetes.io/instance={self.name} --prefix, "
                "as long as the pods are kept."
            )
        secret = (
            f"# The secret holds {SWARM_KEY}: with it anybody can take part. Keep this file "
            "secret.\n"
            if SWARM_KEY in self.given
            else ""
        )
        return (
            f"# {counted(self.peers, 'peer')}, a pod each, that find each other {meets}.\n"
            "# A pod that is lost is started again and comes back as another life of its peer; "
            "the others go on meanwhile.\n"
            f"# {told}\n{secret}"
        )

    @property
    def _metadata(self) -> dict[str, Any]:
        return {"name": self.name, "labels": self._labels}

    @property
    def _labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "gossip", "app.kubernetes.io/instance": self.name}

    def _secret(self) -> dict[str, Any]:
        # Another manifest of this name has another key: who was started with it would be refused by
        # those who are there.
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": self._metadata,
            "immutable": True,
            "stringData": self.given,
        }

    def _service(self) -> dict[str, Any]:
        """By it each pod has a name, also before it is ready: nobody looks whether it is."""
        spec = {"clusterIP": "None", "selector": self._labels, "publishNotReadyAddresses": True}
        return {"apiVersion": "v1", "kind": "Service", "metadata": self._metadata, "spec": spec}

    def _job(self) -> dict[str, Any]:
        volumes = {name: volume for name, volume, _ in self._volumes()}
        owner = {"runAsUser": self.user, "runAsGroup": self.user, "fsGroup": self.user}
        pod = {
            "metadata": {"labels": self._labels},
            "spec": {
                "subdomain": self.name,
                "enableServiceLinks": False,  # of a service named gossip-x they would be settings
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": self.leave,
                **({"securityContext": owner} if self.user >= 0 else {}),
                "containers": [self._container()],
                "volumes": [{"name": name, **volume} for name, volume in volumes.items()],
            },
        }
        codes = {"containerName": "peer", "operator": "In", "values": list(NO_USE)}
        rules = [
            {"action": "FailIndex", "onExitCodes": codes},
            {
                "action": "Ignore",
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
            },
        ]
        spec = {
            "completionMode": "Indexed",
            "completions": self.peers,
            "parallelism": self.peers,
            "backoffLimitPerIndex": self.restarts,
            "maxFailedIndexes": self.peers,
            "podFailurePolicy": {"rules": rules},
            "template": pod,
        }
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": self._metadata, "spec": spec}

    def _container(self) -> dict[str, Any]:
        told = {"GOSSIP_LISTEN": FROM_POD["GOSSIP_LISTEN"]} if self.claim else FROM_POD
        limits = {
            "memory": self.memory,
            **({"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}),
        }
        return {
            "name": "peer",
            "image": self.image,
            "command": python_command("-m", self.module, python=self.python),
            "args": list(self.words),
            **({"workingDir": self.workdir} if self.workdir else {}),
            "env": [
                *(
                    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                    for name, path in told.items()
                ),
                *(
                    {"name": name, "value": escaped(value)}
                    for name, value in self.environment.items()
                ),
            ],
            **({} if self.claim else {"ports": [{"name": "join", "containerPort": self.port}]}),
            "resources": {
                "requests": {"cpu": str(self.cpus), "memory": self.memory},
                "limits": limits,
            },
            "volumeMounts": [{"name": name, **mount} for name, _, mount in self._volumes()],
        }

    def _volumes(self) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Names, volumes, and where they are."""
        shm = ("shm", {"emptyDir": {"medium": "Memory"}}, {"mountPath": "/dev/shm"})
        if self.claim:
            return [
                (
                    "shared",
                    {"persistentVolumeClaim": {"claimName": self.claim}},
                    {"mountPath": self.mount},
                ),
                shm,
            ]
        secret = {"secret": {"secretName": self.name, "defaultMode": ONLY_OWNER}}
        return [
            ("given", secret, {"mountPath": GIVEN, "readOnly": True}),
            ("own", {"emptyDir": {}}, {"mountPath": OWN}),
            shm,
        ]


def escaped(word: str) -> str:
    """``$(NAME)`` in a container's arguments and variables is a variable of Kubernetes',
    ``$$(NAME)`` is not."""
    return word.replace("$(", "$$(")


def names_of(name: str, peers: Sequence[int]) -> list[str]:
    """Return the names of the pods of a job with a service of the same name."""
    return [f"{name}-{peer}.{name}" for peer in peers]


def lines(value: Any) -> Iterator[str]:
    """YAML of mappings, lists and scalars. A scalar is written as JSON, which means the same there
    and is never misread."""
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
