"""What every test gets: one thread a process, and a check that it left no process behind."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

# Before anything imports torch, here or in a child: with a thread a core each, a few peers on one machine are slower by a
# factor of hundreds.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A run's environment must not leak from the shell into the tests: a script run by a test is alone unless the test says more.
for name in [name for name in os.environ if name.startswith("GOSSIP_") and name != "GOSSIP_TEST_DATA"]:
    del os.environ[name]

MARK = "GOSSIP_TEST_MARK"
EXIT_GRACE_S = 5.0
# Helpers of the standard library that live as long as the process that first needed them.
OF_THE_LIBRARY = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "(gone)"


def started_by(mark: str) -> set[psutil.Process]:
    """Every living process that inherited ``mark``, orphans in other sessions included, and every child of this process.

    ``psutil.Process`` compares by pid and start time, so a recycled pid is another process.
    """
    found = set(psutil.Process().children(recursive=True))
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.add(process)
        except psutil.Error:  # gone meanwhile, or somebody else's: no process of this test
            continue
    found.discard(psutil.Process())
    return {process for process in found if is_running(process)}


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def no_process_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that leaves a process running, and ends that process for the sake of the tests after it.

    Children are known by pid and start time; grandchildren that lost their parent by a word in their environment.
    """
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    before = set(psutil.Process().children(recursive=True))
    yield
    left = {p for p in started_by(mark) - before if not any(word in command_of(p) for word in OF_THE_LIBRARY)}
    psutil.wait_procs(left, timeout=EXIT_GRACE_S)  # some are on their way out
    left = {process for process in left if is_running(process)}
    if left:
        lines = [f"  pid {process.pid} ({process.status()}): {command_of(process)[:200]}" for process in left]
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=EXIT_GRACE_S)
        pytest.fail("the test left processes running:\n" + "\n".join(lines), pytrace=False)


@pytest.fixture
def free_run_dir(tmp_path: Path) -> Path:
    """A path for a run's folder, which does not exist yet."""
    return tmp_path / "runs" / "a-run"
