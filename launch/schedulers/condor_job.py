"""Task of an HTCondor job: the peer and the run of the job, read from the ClassAds that HTCondor
provides to every job.

Usually the jobs of one submission are independent, with different arguments. So a job is a peer of
a common run only if its ad has the attributes ``GossipPeer`` and ``GossipPeers``. ``gossip condor``
writes these attributes, and the user may write them in any submit file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gossip.errors import ConfigError
from gossip.run import Task

PEER, PEERS = "GossipPeer", "GossipPeers"
ADDRESS = re.compile(r"<\[?([0-9A-Fa-f.:]+?)\]?:\d+[?>]")
"""Address in the format of HTCondor's daemons: ``<10.0.0.7:9618?addrs=...>``."""


def condor_task(given: Mapping[str, str]) -> Task | None:
    """Return the task of this process from its environment variables; None if it is no HTCondor
    job, or its ad has no ``GossipPeers``.

    Raises: ConfigError: The ads cannot be read.
    """
    ad = read_ad(given.get("_CONDOR_JOB_AD", ""))
    if PEERS not in ad:
        return None
    peer, peers = _number(ad, PEER), _number(ad, PEERS)
    if peer >= peers:
        raise ConfigError(
            f"{PEER} = {peer} and {PEERS} = {peers} contradict each other",
            "peers are numbered from 0",
        )
    return Task(
        "HTCondor",
        run_of(ad),
        peer,
        peers,
        one_host=False,
        towards=reached_at(given),
        comes_back=True,
        another="submit the job again, which starts another run",
    )


def reached_at(given: Mapping[str, str]) -> str:
    """Return the address at which HTCondor itself reaches the machine of this job; "" if the
    machine's ad has no address."""
    found = ADDRESS.match(read_ad(given.get("_CONDOR_MACHINE_AD", "")).get("MyAddress", ""))
    return found[1] if found else ""


def run_of(ad: Mapping[str, str]) -> str:
    """Return the name of the run of a job. All jobs of a DAG, including retries of its nodes, have
    the same run. Otherwise all jobs of a submission have the same run."""
    return f"condor-{_number(ad, 'DAGManJobId' if 'DAGManJobId' in ad else 'ClusterId')}"


def read_ad(path: str) -> dict[str, str]:
    """Return the attributes in a file of ``Name = value`` lines; strings are without their quotes.
    The result is empty if ``path`` is ""."""
    if not path:
        return {}
    try:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the ad of this job: {path}: {error.strerror}") from error
    rows = (line.split(" = ", 1) for line in lines if " = " in line)
    return {name.strip(): value[1:-1] if value[:1] == '"' else value for name, value in rows}


def _number(ad: Mapping[str, str], name: str) -> int:
    text = ad.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"the ad of this job has {name} = {text or 'nothing'}, which is not a number",
            f"+{name} = $(Process)",
        )
    return int(text)
