"""Setup of every test: one thread in each process, and a check that the test leaves no process."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import resource
import sys
import uuid
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest
from effort import seed_of_today
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Set before anything imports torch, here or in a child: if each peer had a thread for each core, a
# few peers on one machine would be hundreds of times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The environment of a run must not leak from the shell into the tests: a script in a test is alone
# unless the test sets more.
for name in [
    name for name in os.environ if name.startswith("GOSSIP_") and name != "GOSSIP_TEST_DATA"
]:
    del os.environ[name]

TESTS = Path(__file__).parent
MARK = "GOSSIP_TEST_MARK"
EXIT_GRACE_S = 5.0
# Helpers of the standard library that live as long as the process that started them.
OF_THE_LIBRARY = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# The process that forks commands for tests lives as long.
LONG_LIVED = (*OF_THE_LIBRARY, str(Path(__file__).with_name("zygote.py")))


@cache
def any_speed() -> None:
    """Disable the default deadline of Hypothesis, 200 ms: a busy machine exceeds it."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "any_speed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any_speed")


def pytest_configure(config: pytest.Config) -> None:
    """Set the profile before any test module is read: decorated tests keep the profile of that
    moment.

    Set the seed of rotated tests for the workers, which inherit it: a commit meanwhile would make
    them collect other tests.
    """
    os.environ["TEST_SEED"] = str(seed_of_today())
    ours = TESTS / "property"
    asked = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    if any(path.is_relative_to(ours) or ours.is_relative_to(path) for path in asked):
        any_speed()  # only property tests import hypothesis, which takes half a second


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "(gone)"


def children_now() -> set[psutil.Process]:
    """Return the children of this process. ``psutil.Process`` compares pid and start time, so a
    recycled pid is another process."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # a kernel without that list
        return set(psutil.Process().children())
    found = set()
    # a hundred times as fast as searching all processes
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(
                psutil.Process(int(pid)) for pid in (task / "children").read_text().split()
            )
        except (OSError, psutil.NoSuchProcess):  # the thread or the child has ended
            continue
    return found


def children_ended() -> tuple[float, ...]:
    """Return the resource usage of ended children, which grows with each one."""
    return tuple(resource.getrusage(resource.RUSAGE_CHILDREN))


def marked(mark: str) -> set[psutil.Process]:
    """Return all processes that inherited ``mark``, orphans in other sessions included."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.add(process)
        except psutil.Error:  # ended, or of another user: no process of this test
            continue
    return found - {psutil.Process()}


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pytest_collection(session: pytest.Session) -> None:
    """Import this worker's part of the test files before the collection.

    Each worker imports all test files, which compiles them. With an own part first, each finds the
    other parts compiled.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    given = map(Path, session.config.args)
    files = [f for path in given for f in ([path] if path.is_file() else path.rglob("test_*.py"))]
    for path in sorted(files)[int(worker["workerid"][2:]) :: worker["workercount"]]:
        sys.path.insert(0, str(path.resolve().parent))
        with contextlib.suppress(
            Exception
        ):  # the collection imports it again, and reports the error
            import_module(path.stem)


class GroupedScheduling(LoadScopeScheduling):
    """Assigns one function with all its parameters at a time, or a group, to a worker. Single tests
    would take longer: xdist counts all earlier tests of a worker each time.

    The groups of xdist, which are set by a mark, do not work with pytest 9.2: it stores the name of
    a test elsewhere.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = self.config.rootpath / nodeid.partition("::")[0]
        return group_of(file) or nodeid.partition("[")[0]


@cache
def group_of(file: Path) -> str:
    """Return the group of a file's tests; "": none. Tests that read the whole tree parse it once.
    Tests that fork commands share the process that forks them, which takes seconds to start."""
    text = file.read_text()
    for shared in ("parsed", "zygote"):
        if re.search(rf"^(?:from|import) {shared}\b", text, re.MULTILINE):
            return shared
    return file.stem if file.parent == TESTS else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return GroupedScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_finish() -> None:
    """Make the command line once, and collect garbage less often.

    Imported modules stay, and a simulated swarm allocates many objects with hardly any cycles: the
    default thresholds take a third of its time.
    """
    if "gossip.launch.cli.commands" in sys.modules:
        import_module("zygote").share_command_line()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_sessionfinish() -> None:
    """Collect garbage once. pytest collects five times at its end, which takes seconds; once is
    enough to find objects that fail when they are collected."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Name the seed of a failed session, with which any commit plays the same rows again. Not in
    the header, which ``-q`` leaves out."""
    if exitstatus:
        terminalreporter.write_line(f"rotated tests are those of TEST_SEED={seed_of_today()}")


@pytest.fixture(autouse=True)
def transports_are_closed() -> Iterator[None]:
    """Close the transports that a test has opened with ``zeromq_rig``."""
    yield
    if (rig := sys.modules.get("zeromq_rig")) is not None:
        rig.close_all()


@pytest.fixture(autouse=True)
def no_process_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves a process running, and end that process.

    Children are identified by pid and start time, and orphaned grandchildren by a variable in their
    environment.
    """
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    before, ended_before = children_now(), children_ended()
    yield
    started = children_now() - before
    if not started and children_ended() == ended_before:
        return  # the test has started no process
    left = {
        p
        for p in started | marked(mark)
        if is_running(p) and not any(word in command_of(p) for word in LONG_LIVED)
    }
    psutil.wait_procs(left, timeout=EXIT_GRACE_S)  # some are about to end
    left = {process for process in left if is_running(process)}
    if left:
        lines = [
            f"  pid {process.pid} ({process.status()}): {command_of(process)[:200]}"
            for process in left
        ]
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=EXIT_GRACE_S)
        pytest.fail("the test left processes running:\n" + "\n".join(lines), pytrace=False)


@pytest.fixture
def free_run_dir(tmp_path: Path) -> Path:
    """Return a path for the folder of a run, which does not exist yet."""
    return tmp_path / "runs" / "a-run"


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run trials of the robustness table in forked processes, which have imported torch."""
    from gossip_lab import cells

    fork = contextlib.nullcontext(get_context("fork"))
    monkeypatch.setattr(cells, "spawn_context", lambda: fork)
