"""``gossip demo``: trains on digits under faults with a robust rule, again with plain averaging,
and in one process without faults."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from gossip.config import Resolved, RunConfig, resolve
from gossip.errors import ConfigError
from gossip.faults import ByzantineFault, FaultPlan
from gossip.interpreter import python_command
from gossip.launch.local import Program, RunOutcome, runs
from gossip.launch.report import (
    About,
    LiveScreen,
    PlainScreen,
    Screen,
    at_round,
    counted,
    figure,
    is_terminal,
    missed,
    near,
    numbers,
    print_lines,
)
from gossip.launch.track import tracked
from gossip.run import read_json, write_json

PEERS = 8
ROUNDS = 400
BATCH = 32
# Every peer has two processes, and all of them import torch at once. For 16 peers on 4 busy cores
# this takes a minute.
START_S = 120.0
NAME_MAX = 70
"""Length to which a run's name is cut before a suffix such as ``-plain``: a name has at most 80
characters."""
HIDDEN = ("=", "~", "+")
"""First characters of lines about batches, epochs and paroles. The demo omits these lines."""
OF_NAN = ("! only ", "! epoch", "! round")
"""Beginnings of the lines that the demo omits if the model is expected to diverge. No round accepts
updates that are not finite, so these lines would follow every round."""
CLOSE_ENOUGH = 0.02
"""Largest drop of accuracy, relative to the fault-free run, at which the default demo still
succeeds."""


DEFAULTS = {"peers": PEERS, "rounds": ROUNDS, "aggregator": "suspicion", "topology": "rolling"}


def settle(flags: Mapping[str, Any], file: Path | None = None) -> Resolved:
    """Return the settings of the demo. Raises: ConfigError and its subclasses: An option is
    invalid."""
    resolved = resolve(flags, file, DEFAULTS)
    if resolved.config.rounds is None:
        raise ConfigError("the demo needs a number of rounds", f"--rounds {ROUNDS}")
    if resolved.sources["faults"] == "default":
        plan = standard_faults(resolved.config.peers, resolved.config.rounds)
        resolved = resolved.with_values("the demo", faults=plan)
    config = resolved.config
    attackers, implied = len(config.plan.byzantine), dict[str, Any]()
    is_open = config.f is None and resolved.sources["f"] == "default"
    if is_open and attackers and config.aggregator != "mean":
        implied["f"] = attackers
    topology = enough_neighbours(config.topology, attackers, config.peers)
    if topology != config.topology:
        implied["topology"] = topology
    return resolved.with_values("Byzantine peers of the plan", **implied)


def is_standard(resolved: Resolved) -> bool:
    """Whether rule, topology, faults and rounds are the defaults, for which the outcome is
    known."""
    own = ("aggregator", "topology", "faults", "rounds")
    return all(resolved.sources[key] in ("default", "the demo") for key in own)


@dataclass(slots=True)
class Demo:
    """Demo with checked options.

    Attributes:
        compare: Whether to train also with plain averaging, and without faults.
        track: Names of trackers for the run under faults and the run with plain averaging.
    """

    resolved: Resolved
    compare: bool
    as_json: bool
    track: Sequence[str]

    def run(self) -> int:
        """Run all phases. Return the exit code."""
        standard = is_standard(self.resolved)
        self.resolved = runs.settle(self.resolved, "demo")
        config = self.resolved.config
        folder = runs.begin(self.resolved, sys.argv, Path(__file__).resolve().parent)
        exchange = f"{config.topology}, {config.aggregator} (f={config.f})"
        self._print_line(
            f"{config.name}: the digits, {counted(config.peers, 'peer')}, {exchange}, in {folder}"
        )
        self._print_line(f"faults: {' '.join(config.faults) or 'none'}")
        parts = 1 + self.compare * (1 + (config.aggregator != "mean"))
        self._print_line(f"--- 1 of {parts}: {config.aggregator}, under these faults ---")
        outcome, summary = self._train(self.resolved, folder)
        if outcome.stopped or not outcome.finished:
            return self._report_failure(outcome, summary, folder)
        rows = {f"{config.aggregator}, with faults": summary}
        comparison: dict[str, Any] = {}
        if self.compare:
            if config.aggregator != "mean":
                plain = self.resolved.with_values(
                    "comparison of the demo",
                    name=f"{config.name[:NAME_MAX]}-plain",
                    aggregator="mean",
                    f=0,
                    run_dir=str(folder / "plain"),
                )
                runs.begin(plain, sys.argv, Path(__file__).resolve().parent)
                fails = ": it will fail" if config.plan.byzantine else ""
                self._print_line(
                    f"--- 2 of 3: plain averaging (mean), under the same faults{fails} ---"
                )
                outcome_plain, comparison["plain"] = self._train(plain, folder / "plain")
                if outcome_plain.stopped:
                    return self._report_failure(
                        outcome_plain, comparison["plain"], folder / "plain"
                    )
                rows["mean, with the same faults"] = comparison["plain"]
            self._print_line(f"--- {parts} of {parts}: one process, without faults ---")
            comparison["fault_free"] = self._alone(folder / "alone")
            rows["one process, no faults"] = comparison["fault_free"]
        wrong = what_went_wrong(outcome, summary, comparison, standard)
        write_json(
            folder / "comparison.json",
            {"schema": "gossip.comparison/1", "with_faults": summary, **comparison, "wrong": wrong},
        )
        if self.as_json:
            print(json.dumps({**summary, **comparison, "wrong": wrong}))
        for line in table(rows):
            self._print_line(line)
        if failure := diverged(comparison.get("plain")):
            self._print_line(failure)
        self._print_line(
            f"what happened: gossip explain {config.name}    files: {near(str(folder))}"
        )
        for line in wrong:
            print(f"error: {line}", file=sys.stderr)
        return 1 if wrong else 0

    def _train(self, resolved: Resolved, folder: Path) -> tuple[RunOutcome, dict[str, Any]]:
        config = resolved.config
        script = str(Path(__file__).with_name("digits.py"))
        program = Program(script, ("--rounds", str(config.rounds), "--batch", str(BATCH)))
        screen = self._screen(config, folder)
        shown = KeyEvents(screen, (*HIDDEN, *OF_NAN) if config.aggregator == "mean" else HIDDEN)
        with tracked(self.track, folder, screen.print_line):
            outcome = runs.train(resolved.config, program, shown)
        attackers = config.plan.byzantine
        honest = [str(peer) for peer in outcome.finished if peer not in attackers]
        if honest and not outcome.stopped:
            _judge(len(honest), "replicas", str(folder), *honest)
        return outcome, runs.conclude(folder, outcome)

    def _alone(self, folder: Path) -> dict[str, Any]:
        config = self.resolved.config
        folder.mkdir(exist_ok=True)
        settings = config.rounds, BATCH * config.peers, config.seed
        _judge(config.rounds, "alone", str(folder), *map(str, settings))
        found = read_json(folder / "evaluation.json")
        assert found is not None, "_judge wrote the file, or raised"
        return {
            "accuracy": {
                "mean_model": found["mean_model"],
                "worst_replica": found["worst_replica"],
            },
            "loss": found["loss"],
            "rounds": config.rounds,
            "wall_s": round(found["wall_s"], 3),
        }

    def _screen(self, config: RunConfig, folder: Path) -> Screen:
        if self.as_json or not is_terminal():
            return PlainScreen(sys.stderr if self.as_json else None, every_s=2.0)
        exchange = f"{config.topology}, {config.aggregator} (f={config.f})"
        what = f"{counted(config.peers, 'peer')}, {exchange}"
        model = f"{near(str(folder))}/peer-N/final.safetensors, at the end"
        return LiveScreen(
            About(f"{config.name}, the digits", what, str(folder), config.rounds, model)
        )

    def _print_line(self, text: str) -> None:
        if self.as_json:
            print(text, file=sys.stderr, flush=True)
        else:
            print_lines([text])

    def _report_failure(self, outcome: RunOutcome, summary: Mapping[str, Any], folder: Path) -> int:
        if self.as_json:
            print(json.dumps(summary))
        for line in missed.format_lines(summary["faults_missed"]):
            self._print_line(line)
        where = at_round(outcome.view.progress.round)
        print(f"error: the demo {summary['status']} {where}: {folder}", file=sys.stderr)
        return outcome.exit_code or 1


class KeyEvents:
    """Screen of the demo. It shows only the first event of each kind for each peer, but all errors
    and injected faults. It omits lines that begin with one of ``hidden``."""

    def __init__(self, screen: Screen, hidden: tuple[str, ...] = HIDDEN) -> None:
        self.output, self.tick, self.close = screen.output, screen.tick, screen.close
        self._screen, self._hidden, self._shown = screen, hidden, set[str]()

    def print_line(self, text: str) -> None:
        event = re.match(r"[?!x-] peer \d+ \w+", text)
        if text.startswith(self._hidden) or (event is not None and event[0] in self._shown):
            return
        if event is not None:
            self._shown.add(event[0])
        self._screen.print_line(text)


def standard_faults(peers: int, rounds: int) -> tuple[str, ...]:
    """Return the default faults: a quarter of the peers, rounded down, is Byzantine. With three
    peers or more, the server of the middle round is killed.

    For eight peers: ``sign_flip:5,6*10`` and ``crash:server@...``. The last peer stays honest.
    """
    attackers = peers // 4
    first = peers - 1 - attackers
    lies = (
        (str(ByzantineFault("sign_flip", tuple(range(first, first + attackers)), 10.0)),)
        if attackers
        else ()
    )
    return (*lies, f"crash:server@{rounds // 2}") if peers >= 3 else lies


def enough_neighbours(topology: str, attackers: int, peers: int) -> str:
    """Return the topology. ``random-k`` without a k gets a k at which every peer has more honest
    senders than there are Byzantine peers.

    The default k of log2(n) mixes as fast, but two of the three neighbours of a peer may be
    Byzantine.
    """
    if topology.replace("_", "-") != "random-k" or not attackers:
        return topology
    return f"random-k:k={min(peers - 1, 2 * attackers + 1)}"


def what_went_wrong(
    outcome: RunOutcome, summary: Mapping[str, Any], comparison: Mapping[str, Any], standard: bool
) -> list[str]:
    """Return a line for each expectation that the run did not meet. Return [] if the run met all
    expectations."""
    config, wrong = outcome.config, []
    if outcome.unplanned:
        wrong.append(f"peers {numbers(outcome.unplanned)} were lost without a fault in the plan")
    if summary["rounds"] + summary["rounds_lost"] < (config.rounds or 0):
        wrong.append(f"only {summary['rounds']} of {config.rounds} rounds were done")
    if summary["replicas_identical"] is False and config.topology.split(":")[0] == "rolling":
        wrong.append("the replicas of honest peers differ after rolling rounds")
    plain = comparison.get("plain")
    if plain is not None and plain["status"] != "finished":
        wrong.append(
            f"plain averaging did not finish: {plain['status']} after "
            f"{counted(plain['rounds'], 'round')}"
        )
    dead = {death["peer"] for death in summary["deaths"]}
    expected = _kills(config.plan)
    if len(dead) < expected:
        wrong.append(f"the fault plan kills {counted(expected, 'peer')}, {len(dead)} died")
    if standard:
        attackers, suspected = set(config.plan.byzantine), set(summary["suspected"])
        if suspected - attackers:
            wrong.append(f"honest peers {numbers(suspected - attackers)} were suspected")
        if attackers - suspected:
            wrong.append(f"the Byzantine peers {numbers(attackers - suspected)} were not suspected")
        accuracy = summary["accuracy"]["mean_model"]
        reference = comparison.get("fault_free", {}).get("accuracy", {}).get("mean_model")
        if accuracy is None or (reference is not None and accuracy < reference - CLOSE_ENOUGH):
            wrong.append(f"the accuracy is {accuracy}, without faults it is {reference}")
    return wrong


def diverged(plain: Mapping[str, Any] | None) -> str:
    """Return a line if plain averaging failed under the faults, as expected; else ""."""
    if plain is None or plain["status"] != "finished" or plain["loss"] is not None:
        return ""
    return (
        f"plain averaging diverged, as expected: after {plain['rounds']} rounds its parameters are "
        "not finite, and no later round has a result"
    )


def _kills(plan: FaultPlan) -> int:
    """Return the minimum number of different peers that the plan kills. Each killed server
    counts as a different peer: two can be the same peer only after a restart."""
    named = {
        spec.split(":")[1].split("@")[0]
        for spec in plan.specs
        if spec.startswith(("crash:", "restart:"))
    }
    servers = sum(spec.startswith("crash:server@") for spec in plan.specs)
    return len(named - {"server"}) + servers


def table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a table that compares the runs."""
    width = max(map(len, rows))
    lines = [f"{'':{width}}  accuracy  worst replica  test loss  rounds   wall s"]
    for name, row in rows.items():
        accuracy = row["accuracy"]
        lines.append(
            f"{name:{width}}  {figure(accuracy['mean_model']):>8}  "
            f"{figure(accuracy['worst_replica']):>13}  {figure(row['loss']):>9}  "
            f"{row['rounds'] + row.get('rounds_lost', 0):6d}  {row['wall_s']:7.1f}"
        )
    first = next(iter(rows.values()))
    for death in first.get("deaths", ()):
        skip_ms, dead_ms = death["skip_ms"], death["dead_ms"]
        skip = (
            "skipped by no peer" if skip_ms is None else f"skipped by all within {skip_ms:.0f} ms"
        )
        dead = (
            "the run ended before its death was agreed"
            if dead_ms is None
            else f"agreed dead within {dead_ms:.0f} ms"
        )
        lines.append(f"peer {death['peer']} died in round {death['round']}: {skip}, {dead}")
    for peer, why in first.get("suspicion", {}).items():
        lines.append(
            f"peer {peer} was suspected from round {why['round']}: {'; '.join(why['reasons'][:2])}"
        )
    for name, row in rows.items():
        lines += [
            line if row is first else f"{name}: {line}"
            for line in missed.format_lines(row.get("faults_missed", ()))
        ]
    if first.get("replicas_identical") is not None:
        same = "are the same bit for bit" if first["replicas_identical"] else "differ"
        lines.append(f"rounds lost: {first['rounds_lost']}; the survivors' parameters {same}")
    return lines


def _judge(total: int | None, *words: str) -> None:
    """Run ``gossip.launch.demo.evaluate`` with one thread, and show its progress on a terminal:
    finished models or rounds out of ``total``."""
    command = python_command("-m", "gossip.launch.demo.evaluate", *words)
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    console, is_hidden = Console(stderr=True), not sys.stderr.isatty()
    bar = Progress(console=console, transient=True, disable=is_hidden)
    with tempfile.TemporaryFile("w+") as errors, bar:
        task = bar.add_task(words[0], total=total)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as judge:
            assert judge.stdout is not None
            for line in judge.stdout:
                bar.update(task, completed=int(line))
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if judge.returncode != 0:
        last = said[-1] if said else "it printed nothing"
        raise ConfigError(
            f"the models cannot be evaluated: {last}", f"run it: {shlex.join(command)}"
        )
