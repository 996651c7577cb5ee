"""What every test gets: one thread a process, and a check that it left no process behind."""

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
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Before anything imports torch, here or in a child: with a thread a core each, a few peers on one
# machine are slower by a factor of hundreds.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A run's environment must not leak from the shell into the tests: a script run by a test is alone
# unless the test says more.
for name in [
    name for name in os.environ if name.startswith("GOSSIP_") and name != "GOSSIP_TEST_DATA"
]:
    del os.environ[name]

TESTS = Path(__file__).parent
MARK = "GOSSIP_TEST_MARK"
EXIT_GRACE_S = 5.0
# Helpers of the standard library that live as long as the process that first needed them.
OF_THE_LIBRARY = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# The process that forks commands for tests lives as long, and shows what it forks as commands.
LONG_LIVED = (*OF_THE_LIBRARY, str(Path(__file__).with_name("zygote.py")))


@cache
def any_speed() -> None:
    """Hypothesis' default deadline of 200 ms is broken by a busy machine, not by the code."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "any_speed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any_speed")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is read: what is decorated keeps the profile of that moment."""
    ours = TESTS / "property"
    asked = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    if any(path.is_relative_to(ours) or ours.is_relative_to(path) for path in asked):
        any_speed()  # nobody else needs hypothesis, whose import takes half a second


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "(gone)"


def children_now() -> set[psutil.Process]:
    """The children of this process. ``psutil.Process`` compares by pid and start time, so a
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
        except (OSError, psutil.NoSuchProcess):  # that thread or that child has ended meanwhile
            continue
    return found


def children_ended() -> tuple[float, ...]:
    """Grows whenever a child was waited for."""
    return tuple(resource.getrusage(resource.RUSAGE_CHILDREN))


def marked(mark: str) -> set[psutil.Process]:
    """Every process that inherited ``mark``, orphans in other sessions included."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.add(process)
        except psutil.Error:  # gone meanwhile, or somebody else's: no process of this test
            continue
    return found - {psutil.Process()}


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pytest_collection(session: pytest.Session) -> None:
    """Each of several processes that run tests imports all of them, which compiles what is not
    compiled yet. So each begins with files of its own, and finds the others compiled."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    given = map(Path, session.config.args)
    files = [f for path in given for f in ([path] if path.is_file() else path.rglob("test_*.py"))]
    for path in sorted(files)[int(worker["workerid"][2:]) :: worker["workercount"]]:
        sys.path.insert(0, str(path.resolve().parent))
        with contextlib.suppress(Exception):  # it is imported once more, and told of, afterwards
            import_module(path.stem)


class GroupedScheduling(LoadScopeScheduling):
    """Hands out one function after the other with all its parameters, and groups, which one process
    runs. One test at a time would take longer: xdist counts all that a process has had, each time.

    xdist's own groups, by a mark, do not work with pytest 9.2: it keeps a test's name elsewhere.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = self.config.rootpath / nodeid.partition("::")[0]
        return group_of(file) or nodeid.partition("[")[0]


@cache
def group_of(file: Path) -> str:
    """The group of a file's tests; "": none. Those that read the whole tree parse it once. Those
    that fork commands share the process that forks them, which takes seconds to start."""
    text = file.read_text()
    for shared in ("parsed", "zygote"):
        if re.search(rf"^(?:from|import) {shared}\b", text, re.MULTILINE):
            return shared
    return file.stem if file.parent == TESTS else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return GroupedScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_finish() -> None:
    """What was imported is there to stay, and a simulated swarm makes a great deal and next to no
    circles: to look for garbage as often as Python does takes a third of its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_sessionfinish() -> None:
    """pytest looks for garbage five times at its end, which takes seconds: once is enough to find
    what fails when it is collected."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_process_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that leaves a process running, and ends that process for the sake of
    the tests after it.

    Children are known by pid and start time; grandchildren that lost their parent by a word in
    their environment.
    """
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    before, ended_before = children_now(), children_ended()
    yield
    started = children_now() - before
    if not started and children_ended() == ended_before:
        return  # it has started no process, so none can be left
    left = {
        p
        for p in started | marked(mark)
        if is_running(p) and not any(word in command_of(p) for word in LONG_LIVED)
    }
    psutil.wait_procs(left, timeout=EXIT_GRACE_S)  # some are on their way out
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
    """A path for a run's folder, which does not exist yet."""
    return tmp_path / "runs" / "a-run"


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of the robustness table run in processes that have torch already: how they start is
    not looked at in such a test."""
    from gossip_lab import cells

    fork = contextlib.nullcontext(get_context("fork"))
    monkeypatch.setattr(cells, "spawn_context", lambda: fork)
