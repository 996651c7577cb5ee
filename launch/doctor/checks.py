"""Checks that ``gossip doctor`` makes of this machine. Each check is a function that returns a
finding."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import stat
import subprocess
from pathlib import Path

from gossip.interpreter import python_command
from gossip.launch.registry import source_towards
from gossip.launch.report import bytes_word, counted
from gossip.transport import is_loopback

from .findings import Finding, level_of

OURS = "gossip-train"
SHOWN = ("torch", "pyzmq", "msgpack", "numpy")
# Addresses for documentation (RFC 5737): only the route is looked up, nothing is sent.
OUTSIDE = "192.0.2.1"
OUTSIDE_6 = "2001:db8::1"
FILES_MIN, FILES_SAFE = 256, 1024
SHM_SAFE = 2**28
DISK_MIN, DISK_SAFE = 100 * 2**20, 2**30
# Importing torch takes a second, or a minute if it is not in the page cache and
# the machine is busy.
TORCH_S = 120.0
IMPORT_TORCH = """\
import torch, gossip.transport.sockets
cuda = torch.cuda
names = [cuda.get_device_name(at) for at in range(cuda.device_count())]
print(f"{torch.__version__}, {', '.join(names) or 'CPU only'}")
"""


def versions() -> Finding:
    """Check Python and packages against the requirements of the installed gossip."""
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
        said = f"{'; '.join(wrong)} ({shown})"
        return Finding("fail", "versions", said, "pip install 'gossip-train'", found)
    return Finding("ok", "versions", shown, facts=found)


def _needs() -> dict[str, str]:
    """Return the packages that gossip always needs, with their minimum versions."""
    try:
        requirements = importlib.metadata.requires(OURS) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = {}
    for requirement in requirements:
        match = re.match(r"([\w.-]+)\s*(?:>=\s*([\w.]+))?[^;]*(;.*)?$", requirement)
        # A requirement with a semicolon belongs to an extra.
        if match is not None and not match[3]:
            found[match[1]] = match[2] or "0"
    return found


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: ``2.13.0+cpu`` -> (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def keys(runs: Path) -> Finding:
    """Check that libzmq can encrypt, and that only the owner can read the keys in ``runs``."""
    import zmq

    library = zmq.zmq_version()
    facts = {"libzmq": library, "curve": bool(zmq.has("curve"))}
    if not zmq.has("curve"):
        said = f"libzmq {library} has no CURVE (encryption): only loopback is safe"
        do = "pip install --force-reinstall pyzmq: its wheels have CURVE"
        return Finding("fail", "keys", said, do, facts)
    open_keys = [
        path for path in sorted(runs.glob("*/*.key")) if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    if open_keys:
        more = f" and {len(open_keys) - 3} more" if open_keys[3:] else ""
        said = f"other users can read {', '.join(map(str, open_keys[:3]))}{more}"
        return Finding("fail", "keys", said, f"chmod 600 {open_keys[0]}", facts)
    return Finding("ok", "keys", f"libzmq {library} encrypts (CURVE)", facts=facts)


def addresses() -> Finding:
    """Check the network interfaces, and find the address that other machines would use."""
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
    way = "the route to other networks"
    # There is no route, or its source address is not unique to this machine.
    if told not in others:
        told, way = next(iter(others), ""), "there is no route to other networks"
    facts = {"interfaces": up, "advertised": told}
    if not told:
        do = "nothing, if all peers run on this machine"
        said = f"{shown}: no other machine can reach this one"
        return Finding("warn", "addresses", said, do, facts)
    return Finding(
        "ok", "addresses", f"{shown}; other machines would use {told} ({way})", facts=facts
    )


def shared_memory() -> Finding:
    """Check /dev/shm, through which the workers of a DataLoader send batches. Peers themselves do
    not use it."""
    topic = "shared memory"
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        do = "num_workers=0, or torch.multiprocessing.set_sharing_strategy('file_system')"
        said = "there is no /dev/shm: workers of a DataLoader need it"
        return Finding("warn", topic, said, do)
    facts = {"free_bytes": free}
    said = f"/dev/shm has {bytes_word(free)} free"
    if free < SHM_SAFE:
        said += ": workers of a DataLoader die with a bus error when it is full"
        return Finding("warn", topic, said, "docker run --shm-size=2g, or num_workers=0", facts)
    return Finding("ok", topic, said, facts=facts)


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Finding("ok", "open files", "no limit")
    least = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    level = level_of(soft, FILES_MIN, FILES_SAFE)
    why = "" if level == "ok" else ": a peer opens about four for each other peer"
    do = "" if level == "ok" else f"ulimit -n {least}"
    facts = {"soft": soft, "hard": hard}
    return Finding(level, "open files", f"{soft} at a time{why}", do, facts)


def disk(folder: Path) -> Finding:
    """Check that runs can be written to ``folder`` and that its disk has room."""
    place = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(place).free
    facts = {"folder": str(place), "free_bytes": free}
    if not os.access(place, os.W_OK | os.X_OK):
        said = f"{place} is not writable, but the run's folder is created there"
        return Finding("fail", "disk", said, "cd to a folder of your own, or set --run-dir", facts)
    level = level_of(free, DISK_MIN, DISK_SAFE)
    do = "" if level == "ok" else "free some space, or set --run-dir"
    return Finding(level, "disk", f"{bytes_word(free)} free in {place}", do, facts)


def memory() -> Finding:
    import psutil

    from gossip.launch.local import PEER_BYTES

    free = psutil.virtual_memory().available
    room = free // PEER_BYTES
    level = level_of(room, 1, 2)
    said = f"{bytes_word(free)} available: room for about {counted(room, 'peer')} with small models"
    do = "" if level == "ok" else "end other programs"
    return Finding(level, "memory", said, do, {"available_bytes": free, "peers": room})


def threads() -> Finding:
    """Check the number of threads of each peer. ``gossip run`` keeps OMP_NUM_THREADS if the user
    has set it."""
    own = os.environ.get("OMP_NUM_THREADS", "")
    if own in ("", "1"):
        return Finding("ok", "threads", "gossip run gives each peer one thread")
    said = f"gossip run keeps OMP_NUM_THREADS={own}: peers may have more threads than processors"
    do = "unset OMP_NUM_THREADS: gossip run then gives each peer one thread"
    return Finding("warn", "threads", said, do, {"OMP_NUM_THREADS": own})


def torch() -> Finding:
    """Check in another process that a peer can import torch and the packages that it needs with
    torch."""
    command = python_command("-c", IMPORT_TORCH)
    do = "python -c 'import torch' shows the complete error"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TORCH_S, check=False)
    except subprocess.TimeoutExpired:
        return Finding("fail", "torch", f"import not finished after {TORCH_S:.0f} s", do)
    if done.returncode == 0:
        return Finding("ok", "torch", done.stdout.strip())
    told = done.stderr.strip().splitlines() or [f"it printed nothing, exit code {done.returncode}"]
    return Finding("fail", "torch", f"cannot be used: {told[-1]}", do)
