"""What of Kubernetes there is without a cluster: a reader of the manifest, and pods that are
processes of this machine.

A pod gets what Kubernetes' documentation promises of an indexed job with a headless service: its
index, an address of its own (of loopback here), a name that others can look up as long as it is
there, files of secrets with the mode that is asked for, empty folders and the volume of a claim,
and how often its index has failed before. A pod that failed is started again, unless the rules of
the job say that its exit code is of no use.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import zygote

FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
LABEL, COUNTED, IGNORED = (
    f"batch.kubernetes.io/{name}"
    for name in ("controller-uid", "job-index-failure-count", "job-index-ignored-failure-count")
)
NAMES = """
import json, runpy, socket, sys
file, module, *words = sys.argv[1:]
look_up = socket.getaddrinfo

def getaddrinfo(host, *others, **options):
    known = json.load(open(file))
    if host in known:
        host = known[host]
    elif not host[:1].isdigit():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return look_up(host, *others, **options)

socket.getaddrinfo = getaddrinfo
sys.argv = [module, *words]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def read(text: str) -> list[Any]:
    """The documents in a manifest: mappings, lists, and scalars written as JSON; what is written
    otherwise is refused."""
    documents = []
    for part in text.split("---\n"):
        rows = [line for line in part.splitlines() if line and not line.startswith("#")]
        value, rest = _block([(len(row) - len(row.lstrip()), row.strip()) for row in rows])
        assert not rest, rest
        documents.append(value)
    return documents


def _block(rows: list[tuple[int, str]]) -> tuple[Any, list[tuple[int, str]]]:
    indent, is_list = rows[0][0], rows[0][1].startswith("- ")
    items: list[Any] = []
    fields: dict[str, Any] = {}
    while rows and rows[0][0] == indent:
        (_, text), rows = rows[0], rows[1:]
        if is_list:
            text = text.removeprefix("- ")
            if re.match(r'[^"]*?:( |$)', text):
                value, rows = _block([(indent + 2, text), *rows])
            else:
                value = json.loads(text)
            items.append(value)
            continue
        key, _, scalar = text.partition(":")
        assert key not in fields, key
        if scalar:
            fields[key] = json.loads(scalar)
        else:
            fields[key], rows = _block(rows)
    return items if is_list else fields, rows


class Cluster:
    """The pods of one job. A test says when which of them is started or lost.

    Args:
        counts: The job's controller writes down how often an index has failed.
    """

    def __init__(self, folder: Path, text: str, *, uid: str = "0f3c", counts: bool = True) -> None:
        self.folder, self._uid, self._counts = folder, uid, counts
        kinds = {document["kind"]: document for document in read(text)}
        self.job, self.service = kinds["Job"], kinds["Service"]
        self.secrets = (
            {kinds["Secret"]["metadata"]["name"]: kinds["Secret"]["stringData"]}
            if "Secret" in kinds
            else {}
        )
        self.pods: dict[int, Pod] = {}
        self.failed: dict[int, int] = {}
        self.claims = folder / "claims"
        self._known: dict[str, str] = {}
        self._starts = 0
        self.names = folder / "names.json"
        self._publish()

    def start(self, index: int, named: bool = True) -> Pod:
        """A new pod of an index: another address,
        and nothing of what its former one wrote but on claims.

        Args:
            named: Its name is known at once, and not only when ``name`` is called.
        """
        assert index not in self.pods or self.pods[index].process.poll() is not None, (
            "two pods of an index"
        )
        self._starts += 1
        # Pods of two tests at once, each in a worker of pytest, need addresses of their own.
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        address = f"127.{worker}.{self._starts}.{10 + index}"
        counts = {COUNTED: str(self.failed.get(index, 0))} if self._counts else {}
        pod = self.pods[index] = Pod(
            self, self.folder / f"pod-{self._starts}", index, address, counts
        )
        if named:
            self.name(index)
        pod.start()
        return pod

    def name(self, *indexes: int) -> None:
        """From now on their names can be looked up."""
        self._known.update({self._name(index): self.pods[index].address for index in indexes})
        self._publish()

    def lose(self, index: int) -> int:
        """All processes of a pod at once, and its name with them. Returns how it ended."""
        code = self.pods[index].kill()
        self.failed[index] = self.failed.get(index, 0) + 1
        del self._known[self._name(index)]
        self._publish()
        return code

    def starts_again(self, index: int, code: int) -> bool:
        """Whether the job's controller makes another pod after this exit code."""
        rules = self.job["spec"]["podFailurePolicy"]["rules"]
        useless = [rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "FailIndex"]
        limit = self.job["spec"]["backoffLimitPerIndex"]
        return (
            code != 0
            and all(code not in codes for codes in useless)
            and self.failed.get(index, 0) <= limit
        )

    def log(self) -> str:
        return "\n".join(
            f"--- pod {index}\n{pod.log()[-3000:]}" for index, pod in sorted(self.pods.items())
        )

    def close(self) -> None:
        for pod in self.pods.values():
            pod.kill()

    def _name(self, index: int) -> str:
        """Of a pod of an indexed job: its host's, and in the service's domain when that is the
        pod's subdomain."""
        spec = self.job["spec"]["template"]["spec"]
        assert spec["subdomain"] == self.service["metadata"]["name"]
        return f"{self.job['metadata']['name']}-{index}.{spec['subdomain']}"

    def _publish(self) -> None:
        scratch = self.names.with_suffix(".new")
        scratch.write_text(json.dumps(self._known))
        scratch.rename(self.names)


class Pod:
    """What a kubelet would start, as a process here; the image is this interpreter."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        index: int,
        address: str,
        annotations: Mapping[str, str],
    ) -> None:
        self.cluster, self.folder, self.address = cluster, folder, address
        self._told = {
            "status.podIP": address,
            f"labels {LABEL}": cluster._uid,
            **{f"annotations {name}": value for name, value in annotations.items()},
        }
        self.environment = {"JOB_COMPLETION_INDEX": str(index)}
        self._out = folder / "out"
        folder.mkdir()

    def start(self) -> None:
        spec = self.cluster.job["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        for variable in container["env"]:
            path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            self.environment[variable["name"]] = (
                self._expanded(variable["value"]) if path is None else self._field(path)
            )
        places = {volume["name"]: self._volume(volume) for volume in spec["volumes"]}
        mounts = {mount["mountPath"]: places[mount["name"]] for mount in container["volumeMounts"]}
        python, *words = [
            self._placed(self._expanded(word), mounts)
            for word in (*container["command"], *container["args"])
        ]
        assert (python, *words[:2]) == ("python", "-P", "-m")
        self.words = [sys.executable, "-c", NAMES, str(self.cluster.names), *words[2:]]
        with self._out.open("ab") as out:
            self.process = zygote.Popen(
                self.words,
                cwd=self.cluster.folder,
                env={**os.environ, **self.environment},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def log(self) -> str:
        return self._out.read_text()

    def kill(self) -> int:
        """With its container end all processes of it."""
        if self.process.poll() is None:
            family = [
                psutil.Process(self.process.pid),
                *psutil.Process(self.process.pid).children(recursive=True),
            ]
            for one in family:
                one.kill()
        return self.process.wait()

    def _field(self, path: str) -> str:
        """Of a label or an annotation that is not there: nothing."""
        found = FIELD.fullmatch(path)
        return self._told.get(f"{found[1]} {found[2]}" if found else path, "" if found else "?")

    def _expanded(self, word: str) -> str:
        known = self.environment
        return re.sub(
            r"\$(\$?)\((\w+)\)", lambda m: f"$({m[2]})" if m[1] else known.get(m[2], m[0]), word
        )

    def _placed(self, word: str, mounts: Mapping[str, Path]) -> str:
        for mount, place in mounts.items():
            if word == mount or word.startswith(f"{mount}/"):
                return f"{place}{word[len(mount) :]}"
        return word

    def _volume(self, volume: Mapping[str, Any]) -> Path:
        place = self.folder / str(volume["name"])
        if "persistentVolumeClaim" in volume:
            place = self.cluster.claims / volume["persistentVolumeClaim"]["claimName"]
        place.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            for name, text in self.cluster.secrets[volume["secret"]["secretName"]].items():
                (place / name).write_text(text)
                (place / name).chmod(volume["secret"]["defaultMode"])
        return place
