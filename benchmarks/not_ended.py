"""State of the processes of a run that does not end, written down before the run is ended, to show
why.

``not_ended.txt`` has each process below those that were started: its state in the kernel twice,
``LOOKS_S`` apart (a process that computes has used processor time between), and where each of its
threads waits. Gossip's own processes also write their Python stacks, each to a file of ``stacks/``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from gossip.run import STACKS_SIGNAL

LOOKS_S = 2.0
ABOUT = ("State", "TracerPid", "Threads", "SigPnd", "ShdPnd")
"""Lines of ``/proc/PID/status`` that show whether a process is stopped or traced, and which signals
are pending."""


def below(roots: Collection[int]) -> list[int]:
    """Return the processes and their descendants, parents first."""
    parents = {int(name): _parent(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found = [pid for pid in roots if pid in parents]
    for pid in found:  # grows while it is read
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _parent(pid: int) -> int:
    """Return the parent of a process; -1: it is gone."""
    said = dict(_status(pid))
    return int(said.get("PPid", -1))


def _status(pid: int) -> Iterator[tuple[str, str]]:
    for line in _read(f"/proc/{pid}/status").splitlines():
        key, _, value = line.partition(":")
        yield key, value.strip()


def _read(path: str) -> str:
    """Return the text of the file; empty: the process is gone, or may not be read."""
    try:
        return Path(path).read_text("utf-8", errors="replace")
    except OSError:
        return ""


def of_process(pid: int) -> str:
    """Return the kernel's facts about a process, in lines."""
    status = dict(_status(pid))
    command = " ".join(_read(f"/proc/{pid}/cmdline").replace("\0", " ").split())
    lines = [f"{pid} {status.get('Name', 'gone')}: {command[:200]}"]
    lines += ["  " + "  ".join(f"{key} {status[key]}" for key in ABOUT if key in status)]
    ticks = _read(f"/proc/{pid}/stat").rpartition(") ")[2].split()[11:13]
    lines += [f"  processor time {sum(map(int, ticks)) / os.sysconf('SC_CLK_TCK'):.2f} s"]
    for task in sorted(_tasks(pid)):
        place = f"/proc/{pid}/task/{task}"
        waits, call = _read(f"{place}/wchan") or "?", _read(f"{place}/syscall").split()[:1]
        stack = " < ".join(line.split(" ")[-1] for line in _read(f"{place}/stack").splitlines())
        lines += [f"  thread {task} waits in {waits}, call {''.join(call) or '?'}: {stack or '?'}"]
    return "\n".join(lines)


def _tasks(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []  # gone


def keep(roots: Collection[int], folder: Path, stacks: Path) -> Path:
    """Write ``not_ended.txt`` into ``folder``.

    Args:
        roots: The processes that were started.
        stacks: Folder that ``GOSSIP_STACKS`` has named for them: a process with a file there writes
            its stacks to it.
        Returns: Its path.
    """
    pids = below(roots)
    first = "\n".join(map(of_process, pids))
    listens = {path.stem.rpartition("-")[2] for path in stacks.glob("*.txt")}
    for pid in pids:
        if str(pid) in listens:
            try:
                os.kill(pid, STACKS_SIGNAL)
            except ProcessLookupError:
                continue  # it has just ended
    time.sleep(LOOKS_S)
    path = folder / "not_ended.txt"
    later = "\n".join(map(of_process, pids))
    path.write_text(f"{first}\n\n{LOOKS_S:g} s later\n\n{later}\n", "utf-8")
    return path
