"""What of HTCondor there is without a pool: the rules of its two languages, and a tiny pool whose
jobs are processes here.

The rules are those of HTCondor's public manual (condor_submit, DAGMan), as far as ``gossip condor``
uses them; what is not in them is refused. Jobs get what the manual promises: a scratch folder with
the files that go with them, the ads beside them, variables and nothing of the environment of who
submits, ``condor_chirp`` where asked for, SIGTERM and then SIGKILL when evicted.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import zygote

BOOLEAN, NUMBER, SIZE, TEXT = r"true|false", r"\d+", r"\d+ ?[KMGT]B?", r"\S.*"
QUOTED = r'"([^"]|"")*"'
EXPRESSION = r"[\w\s().=!<>&|?+*-]+"
COMMANDS = {
    "universe": r"vanilla|local",
    "executable": TEXT,
    "transfer_executable": BOOLEAN,
    "arguments": QUOTED,
    "environment": QUOTED,
    "initialdir": r"/.*",
    "batch_name": TEXT,
    "output": TEXT,
    "error": TEXT,
    "log": TEXT,
    "stream_output": BOOLEAN,
    "stream_error": BOOLEAN,
    "request_cpus": NUMBER,
    "request_memory": SIZE,
    "request_disk": SIZE,
    "request_gpus": NUMBER,
    "kill_sig": r"SIG[A-Z]+|\d+",
    "job_max_vacate_time": NUMBER,
    "want_graceful_removal": BOOLEAN,
    "max_retries": NUMBER,
    "retry_until": EXPRESSION,
    "periodic_release": EXPRESSION,
    "should_transfer_files": r"YES|NO|IF_NEEDED",
    "when_to_transfer_output": r"ON_EXIT|ON_EXIT_OR_EVICT|ON_SUCCESS",
    "transfer_input_files": TEXT,
    "encrypt_input_files": TEXT,
    "transfer_output_files": TEXT,
    "requirements": EXPRESSION,
    "rank": EXPRESSION,
}
ATTRIBUTE = re.compile(r"\+[A-Za-z_]\w*")
NODE = re.compile(r"[A-Za-z]\w*")
VARIABLE = re.compile(r' (\w+)="((?:[^"\\]|\\.)*)"')
MACRO = re.compile(r"(?<!\$)\$\((\w+)(?::((?:[^()]|\([^()]*\))*))?\)")
PATIENCE_S = 150.0

Dag = tuple[dict[str, tuple[Path, dict[str, str]]], Path]


class Wrong(AssertionError):
    """Not what HTCondor's manual says."""


class Description:
    """A submit description: commands, attributes of the job, and how many to queue."""

    def __init__(self, text: str) -> None:
        self.commands: dict[str, str] = {}
        self.attributes: dict[str, str] = {}
        *rows, last = [row for row in text.splitlines() if row.strip() and not row.startswith("#")]
        if not re.fullmatch(r"queue( \S+)?", last):
            raise Wrong(f"the last line is no queue: {last}")
        self.count = last.removeprefix("queue").strip() or "1"
        for row in rows:
            name, equals, value = (part.strip() for part in row.partition("="))
            known = self.attributes if name.startswith("+") else self.commands
            if (
                not equals
                or name in known
                or (name not in COMMANDS and not ATTRIBUTE.fullmatch(name))
            ):
                raise Wrong(f"no command, or one that was given before: {row}")
            if name in COMMANDS and not re.fullmatch(COMMANDS[name], value):
                raise Wrong(f"{name} may not be {value}")
            known[name] = value
        self._check()

    def _check(self) -> None:
        """What holds between commands."""
        given = self.commands
        if missing := {"executable"} - set(given):
            raise Wrong(f"missing: {missing}")
        for stream in ("output", "error"):
            if given.get(f"stream_{stream}") == "true" and stream not in given:
                raise Wrong(f"stream_{stream} without {stream}")
        inputs = split(given.get("transfer_input_files", ""))
        if not set(split(given.get("encrypt_input_files", ""))) <= set(inputs):
            raise Wrong("only what is transferred can be encrypted")
        if given.get("should_transfer_files") == "NO" and {
            "transfer_input_files",
            "transfer_output_files",
        } & set(given):
            raise Wrong("nothing is transferred")
        if len({Path(path).name for path in inputs}) < len(inputs):
            raise Wrong("two files of one name in one folder")

    def jobs(
        self, cluster: int, given: Mapping[str, str] | None = None
    ) -> Iterator[dict[str, str]]:
        """The commands and attributes of each, with macros put in."""
        macros = {
            **self.commands,
            **(given or {}),
            "Cluster": str(cluster),
            "ClusterId": str(cluster),
        }
        for process in range(int(expand(self.count, macros))):
            own = {**macros, "Process": str(process), "ProcId": str(process)}
            everything = {
                **self.commands,
                **self.attributes,
                "+ClusterId": str(cluster),
                "+ProcId": str(process),
            }
            yield {name: expand(value, own) for name, value in everything.items()}


def expand(text: str, macros: Mapping[str, str]) -> str:
    """``$(name)``, ``$(name:default)``; ``$$(...)`` is for when the job has a machine."""

    def put(found: re.Match[str]) -> str:
        if found[1] == "DOLLAR":
            return "\0"
        value = macros.get(found[1], found[2])
        if value is None:
            raise Wrong(f"{found[0]} is nothing")
        return expand(value, macros)

    return MACRO.sub(put, text).replace("\0", "$")


def words(text: str) -> list[str]:
    """Of ``arguments`` or ``environment`` in the new syntax, as a machine gets them."""
    inner = text[1:-1].replace('""', '"')
    found: list[str] = []
    for match in re.finditer(r"\s*((?:'(?:[^']|'')*'|[^\s'])+)", inner):
        word = re.sub(r"'((?:[^']|'')*)'", lambda quoted: quoted[1].replace("''", "'"), match[1])
        found.append(word.replace("$$(DOLLARDOLLAR)", "$$"))
    return found


def split(text: str) -> list[str]:
    return [part for part in re.split(r"[,\s]+", text) if part]


def read_dag(text: str) -> Dag:
    """Nodes with their descriptions and variables, and the description of the last node. Other
    commands are refused."""
    nodes: dict[str, tuple[Path, dict[str, str]]] = {}
    final: list[Path] = []
    for row in text.splitlines():
        command, _, rest = row.partition(" ")
        if not row or row.startswith("#"):
            continue
        name, _, rest = rest.partition(" ")
        if not NODE.fullmatch(name):
            raise Wrong(f"no name of a node: {row}")
        if command == "VARS":
            if name not in nodes or VARIABLE.sub("", f" {rest}"):
                raise Wrong(f"of no node, or no variables: {row}")
            nodes[name][1].update(VARIABLE.findall(f" {rest}"))
        elif command in ("JOB", "FINAL"):
            if name in nodes or not re.fullmatch(r"\S+", rest):
                raise Wrong(f"twice, or no file: {row}")
            if command == "JOB":
                nodes[name] = Path(rest), {}
            else:
                final.append(Path(rest))
        else:
            raise Wrong(f"no command of a DAG that is used here: {row}")
    if len(final) != 1:
        raise Wrong(f"{len(final)} last nodes")
    return nodes, final[0]


CHIRP = """#!/bin/sh
cd "$(cat "$_CONDOR_SCRATCH_DIR/.chirp.config")" || exit 1
case "$*" in
  "fetch "*" -") cat "$2" ;;
  "put -mode cwa -perm 600 - "*) umask 077; cat >> "$7" ;;
  *) echo "condor_chirp: $*?" >&2; exit 1 ;;
esac
"""


class Pool:
    """A pool of this machine: its jobs run when a test says so, as many as it likes at once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "libexec"
        self._cluster, self._starts = 76, 0
        self.bin.mkdir(parents=True)
        (self.bin / "condor_chirp").write_text(CHIRP)
        (self.bin / "condor_chirp").chmod(0o755)
        self.jobs: list[CondorJob] = []

    def submit(
        self, description: Path, given: Mapping[str, str] | None = None, dag: int | None = None
    ) -> list[CondorJob]:
        self._cluster += 1
        read = Description(description.read_text())
        made = [CondorJob(self, each, dag) for each in read.jobs(self._cluster, given)]
        self.jobs += made
        return made

    def submit_dag(self, path: Path) -> tuple[dict[str, CondorJob], Path, int]:
        """The job of each node, and what the last one is to be submitted with."""
        self._cluster += 1
        dag, (nodes, final) = self._cluster, read_dag(path.read_text())
        found: dict[str, CondorJob] = {}
        for name, (file, given) in nodes.items():
            (found[name],) = self.submit(file, given, dag)
        return found, final, dag

    def scratch(self) -> Path:
        self._starts += 1
        path = self.folder / f"dir_{self._starts}"
        path.mkdir(mode=0o700)
        return path

    def close(self) -> None:
        for job in self.jobs:
            job.kill()


class CondorJob:
    """A job in the queue; ``starts`` counts how often it was started."""

    def __init__(self, pool: Pool, said: Mapping[str, str], dag: int | None) -> None:
        self.pool, self.said, self.starts = pool, said, 0
        self.scratch, self._spool = (
            Path(),
            pool.folder / f"spool-{said['+ClusterId']}.{said['+ProcId']}",
        )
        self.process: subprocess.Popen[bytes] | None = None
        self._ad = {name[1:]: value for name, value in said.items() if name.startswith("+")}
        self._ad.update({"DAGManJobId": str(dag)} if dag is not None else {})
        self.transfers = said.get("should_transfer_files") == "YES"

    @property
    def log(self) -> str:
        return Path(self.said["output"]).read_text()

    def start(self) -> None:
        """On some machine: a scratch folder of its own,
        and what the manual says that a job finds."""
        self.scratch, iwd = self.pool.scratch(), Path(self.said["initialdir"])
        if self.transfers:
            for path in map(Path, split(self.said.get("transfer_input_files", ""))):
                # permissions are those of the machine's umask
                copy = shutil.copytree if path.is_dir() else shutil.copyfile
                copy(path, self.scratch / path.name)
            if self._spool.exists():
                shutil.copytree(self._spool, self.scratch, dirs_exist_ok=True)
        (self.scratch / ".job.ad").write_text(
            "".join(f"{name} = {value}\n" for name, value in self._ad.items())
        )
        (self.scratch / ".machine.ad").write_text(
            'Cpus = 1\nMyAddress = "<127.0.0.1:9618?addrs=127.0.0.1-9618&alias=here>"\n'
        )
        if self._ad.get("WantIOProxy") == "true":
            (self.scratch / ".chirp.config").write_text(f"{iwd}\n")
        environment = {
            "PATH": f"{self.pool.bin}:/usr/bin:/bin",
            "BATCH_SYSTEM": "HTCondor",
            "_CONDOR_SCRATCH_DIR": str(self.scratch),
            "_CONDOR_JOB_AD": str(self.scratch / ".job.ad"),
            "_CONDOR_MACHINE_AD": str(self.scratch / ".machine.ad"),
            "_CONDOR_JOB_IWD": str(iwd),
            # as the administrator of a machine may say; all of them are this one
            "GOSSIP_LISTEN": "127.0.0.1",
            **{
                name: os.environ[name]
                for name in ("PYTHONPATH", "GOSSIP_TEST_MARK")
                if name in os.environ
            },
            **dict(word.split("=", 1) for word in words(self.said.get("environment", '""'))),
        }
        command = [self.said["executable"], *words(self.said["arguments"])]
        with (
            Path(self.said["output"]).open("ab") as out,
            Path(self.said["error"]).open("ab") as err,
        ):
            self.process = zygote.Popen(
                command,
                cwd=self.scratch if self.transfers else iwd,
                env=environment,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.starts += 1

    def evict(self, vacate_s: float | None = None) -> int:
        """SIGTERM to the job, SIGKILL to all that is left of it after the time that it asks for.
        Returns how the job ended."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        allowed_s = float(self.said["job_max_vacate_time"]) if vacate_s is None else vacate_s
        try:
            code = self.process.wait(allowed_s)
        except subprocess.TimeoutExpired:
            code = self.kill()
        if self.transfers and self.said["when_to_transfer_output"] == "ON_EXIT_OR_EVICT":
            self._bring_back(self._spool)
        return code

    def kill(self) -> int:
        """All of its processes, whatever their sessions: HTCondor follows a family."""
        if self.process is None or self.process.poll() is not None:
            return 0
        family = [
            psutil.Process(self.process.pid),
            *psutil.Process(self.process.pid).children(recursive=True),
        ]
        for one in family:
            with suppress(psutil.NoSuchProcess):  # it has ended by itself meanwhile
                one.kill()
        return self.process.wait()

    def finish(self) -> int:
        """Waits for its end, and brings back what it is to bring back. A job that does not leave
        that would be held."""
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        if self.transfers:
            self._bring_back(Path(self.said["initialdir"]))
        return code

    def _bring_back(self, target: Path) -> None:
        for name in split(self.said["transfer_output_files"]):
            if not (self.scratch / name).exists():
                raise Wrong(f"held: {name} is not there")
            shutil.copytree(self.scratch / name, target / name, dirs_exist_ok=True)


def wait_until(what: str, done: Callable[[], object], log: Callable[[], str]) -> None:
    """Until ``done()``; the time between two looks is not what is waited for."""
    until = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < until, f"{what} never came\n{log()}"
        time.sleep(0.05)
