"""Checks that ``gossip doctor`` makes of this machine without starting anything. Each check is a
function that returns findings."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import stat
import subprocess
import threading
from pathlib import Path

from gossip.launch.local import gpus
from gossip.launch.registry import source_towards
from gossip.launch.report import bytes_word, counted
from gossip.transport import is_loopback

from .findings import Finding, Level

OURS = "gossip-train"
SHOWN = ("torch", "pyzmq", "msgpack", "numpy")
ANSWER_S = 1.0  # for a name server, or a clock daemon
# of no network (RFC 5737): nothing is sent there, it only asks which way would be taken
OUTSIDE = "192.0.2.1"
OUTSIDE_6 = "2001:db8::1"
FILES_MIN, FILES_SAFE = 256, 1024
SHM_SAFE = 2**28
DISK_MIN, DISK_SAFE = 100 * 2**20, 2**30


def versions() -> list[Finding]:
    """Python and packages against what the installed gossip says it needs."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    needs = _needs()
    wrong = []
    for name in (OURS, *needs):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
            wrong.append(f"{name} is missing")
    for name, least in needs.items():
        there = found[name]
        if there is not None and numbers(there) < numbers(least):
            wrong.append(f"{name} {there} is older than {least}")
    shown = ", ".join(f"{name} {found.get(name) or 'missing'}" for name in (OURS, "python", *SHOWN))
    if wrong:
        return [
            Finding(
                "fail",
                "versions",
                f"{'; '.join(wrong)} ({shown})",
                "pip install 'gossip-train'",
                found,
            )
        ]
    return [Finding("ok", "versions", shown, facts=found)]


def _needs() -> dict[str, str]:
    """Packages that gossip always needs, and their least versions."""
    try:
        requirements = importlib.metadata.requires(OURS) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = {}
    for requirement in requirements:
        match = re.match(r"([\w.-]+)\s*(?:>=\s*([\w.]+))?[^;]*(;.*)?$", requirement)
        if match is not None and not match[3]:  # what stands behind a semicolon is for extras
            found[match[1]] = match[2] or "0"
    return found


def numbers(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` -> (2, 13, 0)"""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def keys(runs: Path) -> list[Finding]:
    """Whether libzmq can encrypt, and whether the keys that lie here are for their owners only."""
    import zmq

    library = zmq.zmq_version()
    facts = {"libzmq": library, "curve": bool(zmq.has("curve"))}
    if not zmq.has("curve"):
        do = "pip install --force-reinstall pyzmq: its wheels have CURVE"
        return [
            Finding(
                "fail",
                "keys",
                f"libzmq {library} has no CURVE: only loopback is safe with it",
                do,
                facts,
            )
        ]
    zmq.curve_keypair()
    open_keys = [
        path for path in sorted(runs.glob("*/*.key")) if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    if open_keys:
        named = ", ".join(map(str, open_keys[:3])) + (
            f" and {len(open_keys) - 3} more" if open_keys[3:] else ""
        )
        return [
            Finding("fail", "keys", f"others can read {named}", f"chmod 600 {open_keys[0]}", facts)
        ]
    return [
        Finding("ok", "keys", f"libzmq {library} encrypts (CURVE), and made a pair", facts=facts)
    ]


def addresses() -> list[Finding]:
    """Interfaces, and which address other machines would be told."""
    import psutil

    from gossip.launch.local import own_addresses

    states = psutil.net_if_stats()
    up = {
        name: own
        for name, own in own_addresses().items()
        if name not in states or states[name].isup
    }
    shown = " | ".join(f"{name} {' '.join(own)}" for name, own in up.items()) or "none"
    others = [number for own in up.values() for number in own if not is_loopback(number)]
    told = source_towards(OUTSIDE) or source_towards(OUTSIDE_6)
    way = "the way to other networks"
    # no way out, or one that leads through an address that is not ours alone
    if told not in others:
        told, way = next(iter(others), ""), "there is no way to other networks"
    facts = {"interfaces": up, "advertised": told}
    if not told:
        do = "nothing, if all peers are to be on this machine"
        return [
            Finding("warn", "addresses", f"{shown}: no other machine can reach this one", do, facts)
        ]
    return [
        Finding("ok", "addresses", f"{shown}; others would be told {told} ({way})", facts=facts)
    ]


def hostname() -> list[Finding]:
    """Whether the own name leads to an address that others can reach.
    Gossip never asks for it; others do."""
    name = socket.gethostname()
    found = _resolve(name)
    facts = {"hostname": name, "resolves_to": found}
    if found is None:
        return [
            Finding(
                "skip",
                "hostname",
                f"{name!r} was not answered for in {ANSWER_S:.0f} s",
                facts=facts,
            )
        ]
    local = [address for address in found if is_loopback(address)]
    if local:
        said = (
            f"{name!r} is {', '.join(local)}, which no other machine can reach: gossip does not "
            "use it, torchrun and Ray do"
        )
        return [
            Finding(
                "warn",
                "hostname",
                said,
                "for those, take it out of the line of 127.0.0.1 or 127.0.1.1 in /etc/hosts",
                facts,
            )
        ]
    return [
        Finding(
            "ok",
            "hostname",
            f"{name!r} is {', '.join(found) or 'nobody'}: gossip does not ask for it",
            facts=facts,
        )
    ]


def _resolve(name: str) -> list[str] | None:
    """Addresses; None: no answer in time. Asking cannot be cut short,
    so a thread that may stay behind does."""
    answers: list[list[str]] = []

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            answers.append(
                list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
            )
        except OSError:
            answers.append([])

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return answers[0] if answers else None


def port(address: str) -> list[Finding]:
    """Whether a free port can be had on loopback, and on the address that others are told, and
    taken from there."""
    findings = []
    for host in dict.fromkeys(("127.0.0.1", address or "127.0.0.1")):
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as end:
                end.bind((host, 0))
                end.listen(1)
                with socket.create_connection(end.getsockname()[:2], ANSWER_S):
                    findings.append(host)
        except OSError as error:
            do = "look for a firewall, or a limit of this container"
            return [
                Finding(
                    "fail",
                    "ports",
                    f"no free port on {host}: {error.strerror or error}",
                    do,
                    {"host": host},
                )
            ]
    return [
        Finding(
            "ok",
            "ports",
            f"a free one was taken and reached on {' and '.join(findings)}",
            facts={"hosts": findings},
        )
    ]


def shared_memory() -> list[Finding]:
    """/dev/shm, which workers of a DataLoader hand batches through.
    Peers themselves do not use it."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        do = "num_workers=0, or torch.multiprocessing.set_sharing_strategy('file_system')"
        return [
            Finding(
                "warn", "shared memory", "there is no /dev/shm: workers of a DataLoader need it", do
            )
        ]
    facts = {"free_bytes": free}
    if free < SHM_SAFE:
        said = (
            f"/dev/shm has {bytes_word(free)} free: workers of a DataLoader die with a bus error "
            "when it is full"
        )
        return [
            Finding(
                "warn", "shared memory", said, "docker run --shm-size=2g, or num_workers=0", facts
            )
        ]
    return [Finding("ok", "shared memory", f"/dev/shm has {bytes_word(free)} free", facts=facts)]


def open_files() -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return [Finding("ok", "open files", "no limit")]
    least = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    level: Level = "fail" if soft < FILES_MIN else "warn" if soft < FILES_SAFE else "ok"
    why = "" if level == "ok" else ": a peer holds about four for each of the others"
    do = "" if level == "ok" else f"ulimit -n {least}"
    return [
        Finding(level, "open files", f"{soft} at a time{why}", do, {"soft": soft, "hard": hard})
    ]


def clock() -> list[Finding]:
    """Whether somebody keeps it right. Rounds are timed by a clock that nobody sets; logs of
    several machines are not."""
    for tool, words, good in (
        ("chronyc", ("-n", "tracking"), re.compile(r"Leap status\s*:\s*Normal")),
        ("timedatectl", ("show", "--property=NTPSynchronized"), re.compile(r"NTPSynchronized=yes")),
    ):
        if shutil.which(tool) is None:
            continue
        try:
            done = subprocess.run(
                [tool, *words], capture_output=True, text=True, timeout=ANSWER_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode != 0:
            continue  # it has no daemon to ask
        if good.search(done.stdout):
            return [
                Finding(
                    "ok",
                    "clock",
                    f"synchronised, says {tool}",
                    facts={"tool": tool, "synchronised": True},
                )
            ]
        said = (
            f"not synchronised, says {tool}: logs of several machines would not fit together "
            "(rounds do not mind)"
        )
        return [
            Finding(
                "warn",
                "clock",
                said,
                "timedatectl set-ntp true",
                {"tool": tool, "synchronised": False},
            )
        ]
    return [
        Finding(
            "skip",
            "clock",
            "unknown whether it is synchronised: neither chronyc nor timedatectl can say",
        )
    ]


def disk(folder: Path) -> list[Finding]:
    """Check that runs can be written to ``folder`` and that its disk has room."""
    place = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(place).free
    facts = {"folder": str(place), "free_bytes": free}
    if not os.access(place, os.W_OK | os.X_OK):
        do = "go to a folder of your own, or give --run-dir"
        return [
            Finding(
                "fail",
                "disk",
                f"{place} cannot be written to: a run's folder is made there",
                do,
                facts,
            )
        ]
    level: Level = "fail" if free < DISK_MIN else "warn" if free < DISK_SAFE else "ok"
    do = "" if level == "ok" else "make room, or give --run-dir"
    return [Finding(level, "disk", f"{bytes_word(free)} free in {place}", do, facts)]


def memory() -> list[Finding]:
    import psutil

    from gossip.launch.local import PEER_BYTES

    free = psutil.virtual_memory().available
    room = free // PEER_BYTES
    level: Level = "fail" if room < 1 else "warn" if room < 2 else "ok"
    said = f"{bytes_word(free)} available: room for about {counted(room, 'peer')} of small models"
    return [
        Finding(
            level,
            "memory",
            said,
            "" if level == "ok" else "end other programs",
            {"available_bytes": free, "peers": room},
        )
    ]


def on_gpus() -> list[Finding]:
    """Report the free memory of GPUs. The check of torch reports whether torch can use them."""
    found = gpus.query_gpus()
    unknown = [
        Finding(
            "warn",
            "gpus",
            found.error,
            "nvidia-smi shows all of it; without it they may still train",
        )
    ]
    if found.error and not found.each:
        return unknown
    if not found.each:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = (
            "none that nvidia-smi lists"
            if hidden is None
            else f"none: CUDA_VISIBLE_DEVICES={hidden}"
        )
        return [Finding("skip", "gpus", why, "nothing, unless peers are to train on one")]
    said = ", ".join(
        f"{gpu.name} ({bytes_word(gpu.free_bytes)} of {bytes_word(gpu.total_bytes)} free)"
        for gpu in found.each
    )
    short = found.short_of(1)
    said += (
        f": {short}" if short else f": room for about {counted(found.room, 'peer')} of small models"
    )
    told = Finding(
        "warn" if short else "ok", "gpus", said, gpus.HINT if short else "", found.to_json()
    )
    return [told, *unknown] if found.error else [told]


def tools() -> list[Finding]:
    """Report which tools for several hosts are installed here."""
    ssh, srun, kubectl = shutil.which("ssh"), shutil.which("srun"), shutil.which("kubectl")
    ray = importlib.util.find_spec("ray") is not None
    return [
        Finding("ok", "ssh", ssh)
        if ssh
        else Finding(
            "skip",
            "ssh",
            "no client: hosts of yours cannot be started from here",
            "install an openssh client",
        ),
        Finding("ok", "slurm", srun)
        if srun
        else Finding(
            "skip",
            "slurm",
            "no srun on this machine",
            "nothing, unless this is to be a node of a Slurm cluster",
        ),
        Finding("ok", "ray", f"ray {importlib.metadata.version('ray')}")
        if ray
        else Finding(
            "skip", "ray", "not installed", "pip install ray, if a Ray cluster is to run peers"
        ),
        condor(),
        Finding("ok", "kubernetes", kubectl)
        if kubectl
        else Finding(
            "skip",
            "kubernetes",
            "no kubectl on this machine",
            "nothing, unless pods are to be started from here",
        ),
    ]


def condor() -> Finding:
    """The command that ``gossip condor --submit`` sends its jobs with,
    and what it says of its version."""
    submit, tells = shutil.which("condor_submit_dag"), shutil.which("condor_version")
    if submit is None:
        if (single := shutil.which("condor_submit")) is not None:
            said, do = (
                f"{single}, and no condor_submit_dag beside it",
                "install DAGMan, or submit jobs without the DAG",
            )
            return Finding("warn", "condor", said, do)
        said = "no condor_submit_dag on this machine"
        return Finding(
            "skip", "condor", said, "nothing, unless jobs of HTCondor are to be submitted from here"
        )
    version = ""
    if tells is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                [tells], capture_output=True, text=True, timeout=ANSWER_S, check=False
            )
            found = re.search(r"\$CondorVersion: (\S+)", done.stdout)
            version = found[1] if found else ""
    return Finding(
        "ok",
        "condor",
        f"{submit}, HTCondor {version}" if version else submit,
        facts={"version": version or None},
    )
