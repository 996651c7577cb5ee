"""Files that ``gossip condor`` writes for HTCondor: descriptions of jobs, and a DAG with one node
per peer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gossip.errors import ConfigError
from gossip.interpreter import python_command
from gossip.launch.report import counted
from gossip.launch.schedulers import NO_USE, PEER, PEERS
from gossip.run import SWARM_KEY

PEER_SUB = "peer.sub"
MORE_SUB = "more.sub"
VERDICT_SUB = "verdict.sub"
DAG = "swarm.dag"
CONTACT = "contact"
CONFIG = "config.json"
HELD_S = 60
"""Time until a held job is released, in seconds. The cause may have disappeared by then."""
BY_USER = 1
"""Reason code of a hold by ``condor_hold``. Only users release such holds."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Description of a submission to HTCondor.

    Attributes:
        folder: Folder of the files of HTCondor, of the contact file and of the results.
        workdir: Working directory of the jobs, in a folder that all machines share. None if there
            is no shared folder; then files are transferred with the jobs.
        command: The script and its arguments. With a shared folder, the options of ``gossip run``
            come first.
        joining: The script and its arguments for peers that join later.
        room: Whether peers may join later.
        inputs: Files that are transferred with each job. The first file is the script.
        more: Additional lines for the job descriptions, from the user.
    """

    name: str
    folder: Path
    workdir: Path | None
    python: str
    peers: int
    command: tuple[str, ...]
    joining: tuple[str, ...]
    room: bool
    inputs: tuple[str, ...]
    keyed: bool
    environment: Mapping[str, str]
    cpus: int
    memory: str
    disk: str
    gpus: int
    restarts: int
    leave: int
    more: tuple[str, ...]

    def files(self) -> dict[str, str]:
        """Return the texts of the files, by name. The settings and the key are not included."""
        later = {MORE_SUB: self._more_sub()} if self.room else {}
        return {
            PEER_SUB: self._peer_sub(),
            **later,
            VERDICT_SUB: self._verdict_sub(),
            DAG: self._dag(),
        }

    def _peer_sub(self) -> str:
        peer = "$(peer:$(Process))"
        words = (
            ["run", *self.command] if self.workdir else [str(self.folder / CONTACT), *self.command]
        )
        module = "gossip.launch.cli" if self.workdir else "gossip_clusters.condor.peer"
        return (
            (
                f"# Each job is one of {self.peers} peers. The DAG has a node for each, which "
                "determines its peer.\n"
                f"# condor_submit {PEER_SUB} queues all of them without a DAG. The number of a "
                "process is then the number of its peer.\n"
            )
            + self._job(module, words, f"peer-{peer}")
            + f"+{PEER} = {peer}\n+{PEERS} = {self.peers}\n"
            + f"queue $(count:{self.peers})\n"
        )

    def _more_sub(self) -> str:
        contact = "" if self.workdir else str(self.folder / CONTACT)
        return (
            (
                f"# Another peer for a run in progress: condor_submit {MORE_SUB}, or two of them "
                "with count=2.\n"
                "# It joins the newest run of this submission, if there is room.\n"
            )
            + self._job(
                "gossip_clusters.condor.join",
                [contact, *self.joining],
                "more-$(ClusterId)-$(Process)",
            )
            + "queue $(count:1)\n"
        )

    def _verdict_sub(self) -> str:
        """Return the description of the last job. It runs on the submitting machine, without a
        slot."""
        where = self.workdir or self.folder
        return (
            (
                "# The last node of the DAG. The run has succeeded if at least one peer has "
                "finished.\n"
            )
            + lines(
                {
                    "universe": "local",
                    "executable": self.python,
                    "transfer_executable": "false",
                    "arguments": quoted(python_command("-m", "gossip_clusters.condor.verdict")[1:]),
                    "initialdir": str(where),
                    "output": str(self.folder / "verdict.out"),
                    "error": str(self.folder / "verdict.err"),
                    "log": str(self.folder / "swarm.log"),
                }
            )
            + "queue\n"
        )

    def _dag(self) -> str:
        """Return the DAG. It has one node for each peer, because HTCondor removes all jobs of a
        node if one of these jobs fails."""
        peers = counted(self.peers, "peer")
        rows = [
            (
                f"# {peers}, each with its own node, so that the failure of one does not stop the "
                "others. HTCondor restarts a job that is evicted"
            ),
            (
                "# or fails, as the next incarnation of its peer. The last node determines the "
                "outcome. If no peer has finished, the"
            ),
            "# DAG has failed, and condor_submit_dag starts it again as another run.",
        ]
        for peer in range(self.peers):
            rows += [
                f"JOB peer{peer} {self.folder / PEER_SUB}",
                f'VARS peer{peer} peer="{peer}" count="1"',
            ]
        return "\n".join([*rows, f"FINAL verdict {self.folder / VERDICT_SUB}", ""])

    def _job(self, module: str, words: Sequence[str], output: str) -> str:
        out = str(self.folder / f"{output}.out")
        useless = " || ".join(f"ExitCode =?= {code}" for code in NO_USE)
        return (
            lines(
                {
                    "executable": self.python,
                    "transfer_executable": "false",
                    "arguments": quoted(python_command("-m", module, *words)[1:]),
                    "environment": quoted(
                        [f"{name}={value}" for name, value in self.environment.items()]
                    ),
                    "initialdir": str(self.workdir or self.folder),
                    "batch_name": self.name,
                    "output": out,
                    "error": out,
                    "stream_output": "true",
                    "stream_error": "true",
                    "log": str(self.folder / "swarm.log"),
                    "request_cpus": str(self.cpus),
                    "request_memory": self.memory,
                    "request_disk": self.disk,
                    **({"request_gpus": str(self.gpus)} if self.gpus else {}),
                }
            )
            + (
                "# A job that is evicted or removed receives SIGTERM, and its peer leaves after "
                "its round.\n"
            )
            + lines(
                {
                    "kill_sig": "SIGTERM",
                    "job_max_vacate_time": str(self.leave),
                    "want_graceful_removal": "true",
                }
            )
            + (
                "# Evicted jobs are always restarted. Failed jobs are restarted up to max_retries "
                "times, except after a permanent error.\n"
            )
            + lines({"max_retries": str(self.restarts), "retry_until": useless})
            + (
                "# A job that HTCondor holds, such as after a failed transfer, is released. A job "
                "that you hold is not.\n"
            )
            + lines(
                {
                    "periodic_release": (
                        f"HoldReasonCode =!= {BY_USER} && NumHolds <= {self.restarts} && time() - "
                        f"EnteredCurrentStatus > {HELD_S}"
                    )
                }
            )
            + self._transfer()
            + "".join(f"{line}\n" for line in self.more)
        )

    def _transfer(self) -> str:
        if self.workdir:
            return (
                "# All jobs share the folder, so they run only on machines that share it with this "
                "one.\n"
            ) + lines({"should_transfer_files": "NO"})
        keys = [str(self.folder / SWARM_KEY)] if self.keyed else []
        return (
            "# No folder is shared: settings, key and script are sent with the job, logs and "
            "metrics are returned, and jobs\n"
            "# find each other by the contact file, which they access through HTCondor "
            "(condor_chirp).\n"
        ) + lines(
            {
                "should_transfer_files": "YES",
                "when_to_transfer_output": "ON_EXIT_OR_EVICT",
                "transfer_input_files": ", ".join([str(self.folder / CONFIG), *keys, *self.inputs]),
                **({"encrypt_input_files": keys[0]} if keys else {}),
                "transfer_output_files": "runs",
                "+WantIOProxy": "true",
            }
        )


def lines(commands: Mapping[str, str]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in commands.items())


def quoted(words: Sequence[str]) -> str:
    """Return arguments or variables in HTCondor's new syntax. Raises: ConfigError: A word has more
    than one line."""
    for word in words:
        if "\n" in word or "\r" in word:
            raise ConfigError(
                f"{word!r} has more than one line; HTCondor cannot pass it on",
                "put it into a file",
            )
    return '"' + " ".join(map(_quoted, words)) + '"'


def _quoted(word: str) -> str:
    # $ begins a macro. $$ begins a macro that HTCondor expands after it has chosen a machine.
    word = re.sub(
        r"\$\$|\$", lambda found: "$$(DOLLARDOLLAR)" if len(found[0]) == 2 else "$(DOLLAR)", word
    )
    word = word.replace('"', '""')
    return "'" + word.replace("'", "''") + "'" if not word or re.search(r"[\s']", word) else word
