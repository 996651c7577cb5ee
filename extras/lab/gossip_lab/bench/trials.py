"""Many trials side by side, each remembered in a file of its own: interrupted, the same command
goes on where it was."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from hashlib import blake2b
from multiprocessing import active_children
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from gossip.errors import ConfigError, GossipError, LocalError
from gossip.interpreter import spawn_context
from gossip.launch.report import counted

from . import data_sets, rule_sources

if TYPE_CHECKING:
    from .learning import Trial, TrialResult

SCHEMA = "gossip.trial/1"
TELL_S = 10.0
WRITABLE = "--into names a folder that can be written to"
_data: list[Any] = []  # of a worker process: what it learns from, and its name


def name_of(trial: Trial, data: str) -> str:
    """The file of a trial: readable, and different for whatever makes a difference, the sources of
    the rule included."""
    contents = [
        rule_sources.digest(trial.rule, trial.attack),
        *map(rule_sources.content, data_sets.files(data)),
    ]
    words: dict[str, Any] = {**dataclasses.asdict(trial), "data": data, "sources": contents}
    del words["record"]  # the run is the same
    text = json.dumps(words, sort_keys=True)
    label = f"{trial.rule}-{trial.attack}-n{trial.n}-f{trial.f}-s{trial.seed}"
    plain = "".join(char if char.isalnum() or char in "-_." else "_" for char in label)[:120]
    return f"{plain}-{blake2b(text.encode(), digest_size=6).hexdigest()}.json"


def recall(folder: Path, trial: Trial, data: str) -> TrialResult | None:
    """Return the stored result of a trial. It is None if the file is missing, damaged or of another
    schema, or lacks the records that the trial requests."""
    from .learning import TrialResult

    try:
        read = _read(folder, trial, data)
        records = read["outcome"].pop("records", None)  # large, and read where they are written
        if trial.record and not records:
            return None
        curve = tuple((made, accuracy) for made, accuracy in read["outcome"].pop("curve", ()))
        return TrialResult(**read["outcome"], curve=curve) if read["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def recall_records(folder: Path, trial: Trial, data: str) -> dict[str, list[Any]]:
    """Return the records of a trial that was run before, by column; empty if it has none."""
    try:
        records: dict[str, list[Any]] = _read(folder, trial, data)["outcome"].get("records", {})
    except FileNotFoundError:  # its rule raised
        return {}
    return records


def _read(folder: Path, trial: Trial, data: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / name_of(trial, data)).read_text("utf-8"))
    return read


def recall_all(trials: Iterable[Trial], folder: Path, data: str) -> dict[Trial, TrialResult]:
    """Return the results of the trials that were run before."""
    return {
        trial: outcome
        for trial in dict.fromkeys(trials)
        if (outcome := recall(folder, trial, data)) is not None
    }


def remember(folder: Path, trial: Trial, data: str, outcome: TrialResult) -> None:
    """Writes its file, whole or not at all. Raises: ConfigError: It cannot be written."""
    path = folder / name_of(trial, data)
    scratch = path.with_suffix(".new")
    words = {
        "schema": SCHEMA,
        "data": data,
        **dataclasses.asdict(trial),
        "outcome": dataclasses.asdict(outcome),
    }
    try:
        scratch.write_text(json.dumps(words) + "\n", "utf-8")
        scratch.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", WRITABLE) from error


def run_all(
    trials: Iterable[Trial], folder: Path, data: str, jobs: int, *, quiet: bool = False
) -> dict[Trial, TrialResult]:
    """Runs what ``folder`` does not have yet, ``jobs`` at a time, and returns the outcomes of all.

    Raises:
        ConfigError: The folder cannot be made or written to, or the data cannot be read.
        LocalError: A process was killed; what is done is kept.
        KeyboardInterrupt: At once; what is done is kept.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}", WRITABLE) from error
    wanted = list(dict.fromkeys(trials))
    found = recall_all(wanted, folder, data)
    missing = [trial for trial in wanted if trial not in found]
    if not missing:
        return found
    try:
        with TemporaryFile(dir=folder):  # or the first run is done before it shows
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write to the folder {folder}: {error.strerror}", WRITABLE
        ) from error
    if data != data_sets.DIGITS:
        # what is wrong with it is told here: a worker that fails at its start ends the
        # pool without a word
        data_sets.load(data)
    progress = _ProgressLines(len(missing), len(found), quiet)
    others = set(active_children())
    with spawn_context() as context:
        pool = ProcessPoolExecutor(min(jobs, len(missing)), context, _begin, (data,))
        try:
            running = {pool.submit(_run, trial): trial for trial in missing}
            for done in as_completed(running):
                trial = running[done]
                outcome, lasting = done.result()
                if lasting:
                    remember(folder, trial, data, outcome)
                found[trial] = dataclasses.replace(outcome, records={})
                progress.one_more()
        except BaseException as error:
            workers = set(active_children()) - others
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.terminate()
            progress.stopped(folder)
            if isinstance(error, BrokenProcessPool):
                raise LocalError(
                    "a process of the trials was killed, perhaps for want of memory "
                    f"({counted(jobs, 'job')})"
                ) from error
            raise
        pool.shutdown()
    return found


def _begin(data: str) -> None:
    """In a new worker. Ctrl-C is for the one who started us: it ends us."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _data[:] = [data_sets.load(data)]


def _run(trial: Trial) -> tuple[TrialResult, bool]:
    """Return the result of a trial, and whether to store it: a rule that raised an error may be
    fixed later."""
    outcome, lasting = _try(trial)
    return dataclasses.replace(outcome, arithmetic=arithmetic()), lasting


def _try(trial: Trial) -> tuple[TrialResult, bool]:
    from .learning import TrialResult, train

    try:
        return train(trial, _data[0]), True
    except GossipError as error:
        return TrialResult(None, str(error)), False
    except Exception as error:  # noqa: BLE001
        # a rule of anybody's: the table says that it raised, and goes on
        return TrialResult(0.0, f"raised {type(error).__name__}: {error}"), False


def arithmetic() -> str:
    """Return what decides how sums are rounded: the version of torch, its vector instructions,
    ``MKL_CBWR`` if it is set, and the processor."""
    import torch

    from .speed import processor

    mkl = [f"MKL_CBWR={setting}"] if (setting := os.environ.get("MKL_CBWR")) else []
    return ", ".join(
        [f"torch {torch.__version__}", torch.backends.cpu.get_cpu_capability(), *mkl, processor()]
    )


class _ProgressLines:
    """A line now and then on stderr, and how long it may take yet."""

    def __init__(self, total: int, known: int, quiet: bool) -> None:
        self.total, self.done, self.quiet = total, 0, quiet
        self.began = self.told = time.monotonic()
        self._print_line(
            f"{counted(total, 'trial')} to run"
            + (f", {known} {'was' if known == 1 else 'were'} run before" if known else "")
        )

    def one_more(self) -> None:
        self.done += 1
        now = time.monotonic()
        if now - self.told >= TELL_S or self.done == self.total:
            self.told = now
            left_s = (now - self.began) / self.done * (self.total - self.done)
            self._print_line(
                f"{self.done} of {counted(self.total, 'trial')}, {now - self.began:.0f} s, "
                f"{left_s:.0f} s to go"
            )

    def stopped(self, folder: Path) -> None:
        self._print_line(
            f"stopped after {self.done} of {counted(self.total, 'trial')}; the same command goes "
            f"on from {folder}"
        )

    def _print_line(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)
