"""Manifest of ``gossip kubernetes``: a headless service and an indexed job. If the pods share no
volume, there is also a secret."""

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
"""Paths in a pod: files of the secret, and the folder of the pod's own files."""
ONLY_OWNER = 0o400
FROM_POD = {
    "GOSSIP_LISTEN": "status.podIP",
    "JOB_UID": "metadata.labels['batch.kubernetes.io/controller-uid']",
    "JOB_FAILURES": "metadata.annotations['batch.kubernetes.io/job-index-failure-count']",
    "JOB_FAILURES_IGNORED": (
        "metadata.annotations['batch.kubernetes.io/job-index-ignored-failure-count']"
    ),
}
"""Variables with values from Kubernetes: the address of the pod, its job, and two counts of its
failures. The second counts the failures that are not limited."""


@dataclass(frozen=True, slots=True)
class Pods:
    """Description of the pods.

    Attributes:
        module: Module that each pod runs with ``python -m``; ``words`` are its arguments.
        claim: Claim of the volume that all pods share at ``mount``; "" if they share no volume.
        port: Port of the join server in each pod.
        user: User id of all processes; -1 for the user of the image.
        given: Texts of the files in the secret, by name; empty if there is no secret.
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
            meets = f"in runs/{self.name} of the claim {self.claim}. All pods must write there"
            told = (
                f"Outcome: {self.python} -m gossip.launch.schedulers.task_runs FOLDER 0, "
                "wherever the volume is."
            )
        else:
            meets = (
                f"by their names, {self.name}-INDEX.{self.name}. Any running pod has the "
                "addresses of all others"
            )
            told = (
                f"Outcome: kubectl logs -l app.kubernetes.io/instance={self.name} --prefix, "
                "as long as the pods are kept."
            )
        secret = (
            f"# The secret contains {SWARM_KEY}. With it any process can take part. Keep this file "
            "secret.\n"
            if SWARM_KEY in self.given
            else ""
        )
        return (
            f"# {counted(self.peers, 'peer')}, each in a pod. They find each other {meets}.\n"
            "# A lost pod is restarted as the next incarnation of its peer. The other peers "
            "continue without it until then.\n"
            f"# {told}\n{secret}"
        )

    @property
    def _metadata(self) -> dict[str, Any]:
        return {"name": self.name, "labels": self._labels}

    @property
    def _labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "gossip", "app.kubernetes.io/instance": self.name}

    def _secret(self) -> dict[str, Any]:
        # Immutable, because the manifest of another run with this name has another key. Peers with
        # different keys reject each other.
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": self._metadata,
            "immutable": True,
            "stringData": self.given,
        }

    def _service(self) -> dict[str, Any]:
        """Return the service that gives each pod a name. The name resolves before the pod is ready,
        because readiness is not checked."""
        spec = {"clusterIP": "None", "selector": self._labels, "publishNotReadyAddresses": True}
        return {"apiVersion": "v1", "kind": "Service", "metadata": self._metadata, "spec": spec}

    def _job(self) -> dict[str, Any]:
        volumes = {name: volume for name, volume, _ in self._volumes()}
        owner = {"runAsUser": self.user, "runAsGroup": self.user, "fsGroup": self.user}
        pod = {
            "metadata": {"labels": self._labels},
            "spec": {
                "subdomain": self.name,
                # Without this, variables of a service named gossip-x would be read as settings of
                # gossip.
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
        """Return name, volume and mount of each volume."""
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
    """Escape a word for the arguments or variables of a container. Kubernetes would expand
    ``$(NAME)``, but not ``$$(NAME)``."""
    return word.replace("$(", "$$(")


def names_of(name: str, peers: Sequence[int]) -> list[str]:
    """Return the host names of the pods of these peers. ``name``: name of the job and of its
    service."""
    return [f"{name}-{peer}.{name}" for peer in peers]


def lines(value: Any) -> Iterator[str]:
    """Yield the lines of a YAML document from mappings, lists and scalars. Scalars are written as
    JSON, which means the same in YAML and has no special cases."""
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
