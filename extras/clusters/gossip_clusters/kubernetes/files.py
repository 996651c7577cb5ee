"""Manifest of ``gossip kubernetes``: a headless service, an indexed job, and a secret if the pods
share no volume."""

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
"""Paths in a pod: of the secret, and of its own run's folder."""
ONLY_OWNER = 0o400
FROM_POD = {
    "GOSSIP_LISTEN": "status.podIP",
    "JOB_UID": "metadata.labels['batch.kubernetes.io/controller-uid']",
    "JOB_FAILURES": "metadata.annotations['batch.kubernetes.io/job-index-failure-count']",
    "JOB_FAILURES_IGNORED": (
        "metadata.annotations['batch.kubernetes.io/job-index-ignored-failure-count']"
    ),
}
"""Variables that Kubernetes sets in a pod: its address, its job, and its numbers of failures,
counted towards the limit or not."""


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods to be created by Kubernetes.

    Attributes:
        module: Module that each pod runs with ``python -m``, with ``words`` as its arguments.
        claim: Volume that all pods share, at ``mount``; "" means none.
        port: Port of each pod's join server.
        user: User id of all processes; -1 means that of the image.
        given: Texts of the files in the secret, by name; none if there is no secret.
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
                f"Outcome: {self.python} -m gossip.launch.schedulers.task_runs FOLDER 0, "
                "wherever the volume is."
            )
        else:
            meets = (
                f"by their names, {self.name}-INDEX.{self.name}: any running pod has the "
                "addresses of all others"
            )
            told = (
                f"Outcome: kubectl logs -l app.kubernetes.io/instance={self.name} --prefix, "
                "as long as the pods are kept."
            )
        secret = (
            f"# The secret holds {SWARM_KEY}: with it any process can take part. Keep this file "
            "secret.\n"
            if SWARM_KEY in self.given
            else ""
        )
        return (
            f"# {counted(self.peers, 'peer')}, a pod each, that find each other {meets}.\n"
            "# A lost pod is restarted as the next life of its peer; the others go on without it "
            "until then.\n"
            f"# {told}\n{secret}"
        )

    @property
    def _metadata(self) -> dict[str, Any]:
        return {"name": self.name, "labels": self._labels}

    @property
    def _labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "gossip", "app.kubernetes.io/instance": self.name}

    def _secret(self) -> dict[str, Any]:
        # Another manifest with this name has another key, so the peers of this one would reject its
        # peers.
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": self._metadata,
            "immutable": True,
            "stringData": self.given,
        }

    def _service(self) -> dict[str, Any]:
        """Return the service that gives each pod a name, even before it is ready: readiness is not
        checked."""
        spec = {"clusterIP": "None", "selector": self._labels, "publishNotReadyAddresses": True}
        return {"apiVersion": "v1", "kind": "Service", "metadata": self._metadata, "spec": spec}

    def _job(self) -> dict[str, Any]:
        volumes = {name: volume for name, volume, _ in self._volumes()}
        owner = {"runAsUser": self.user, "runAsGroup": self.user, "fsGroup": self.user}
        pod = {
            "metadata": {"labels": self._labels},
            "spec": {
                "subdomain": self.name,
                # The variables of a service named gossip-x would be read as settings.
                "enableServiceLinks": False,
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
        """Return names, volumes, and mounts."""
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
    """Return a word for a container's arguments and variables: ``$(NAME)`` is a variable of
    Kubernetes, ``$$(NAME)`` is not."""
    return word.replace("$(", "$$(")


def names_of(name: str, peers: Sequence[int]) -> list[str]:
    """Return the names of the pods of a job with a service of the same name."""
    return [f"{name}-{peer}.{name}" for peer in peers]


def lines(value: Any) -> Iterator[str]:
    """Yield the lines of a YAML document of mappings, lists and scalars. A scalar is written as
    JSON, which has the same meaning in YAML and is unambiguous."""
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
