"""``summary.json``: outcome of a run, computed only from the files in its folder
(``docs/records.md``)."""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gossip import topologies
from gossip.config import PipelineConfig, RunConfig
from gossip.core import DIVERGED, QUORUM_LOST
from gossip.errors import NeverStarted
from gossip.observe import CommitRow, events, select
from gossip.run import (
    JsonLines,
    WriteFailures,
    print_write_failure,
    read_json,
    read_lines,
    segments,
    tolerance,
    write_json,
)

from . import divergence, history
from .alone import trained_alone
from .exit_codes import status_of
from .growing import RunFiles
from .missed import missed
from .participation import BOUND, WINDOW
from .run_model import RunModel
from .run_reader import RunReader

SCHEMA = "gossip.summary/2"
EPOCHS_MAX = 1000
OF_SETTINGS = ("run", "name", "peers", "topology", "aggregator", "f", "peers_for_one")
RETURN = ("peer", "incarnation", "round", "after_ms")
"""Fields of an entry about a peer that joined or returned."""


def merge_commits(folder: Path, troubles: WriteFailures | None = None) -> list[dict[str, Any]]:
    """Merge the commits of all peers into ``commits.jsonl``, sorted by round and shard, without
    duplicates. Return the rows."""
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in sorted(folder.glob("peer-*/commits.jsonl")):
        for row in read_lines(path):
            commit = ("lineage", "round", "shard", "made_at", "digest")
            seen.setdefault(tuple(map(row.get, commit)), row)
    rows = sorted(
        seen.values(), key=lambda row: [row.get(name, 0) for name in ("round", "shard", "attempt")]
    )
    for path in (folder / "commits.jsonl", *segments(folder / "commits.jsonl")):
        path.unlink(missing_ok=True)
    file = JsonLines(folder / "commits.jsonl", "commits", troubles)
    for row in rows:
        file.write(row)
    file.close()
    return rows


def codes(folder: Path) -> list[int]:
    """Return the last exit code of each peer; 5 for a peer that was killed."""
    last = {event.peer: event.code for event in select(RunFiles(folder).events(), events.Exited)}
    return [5 if code is None else code for code in last.values()]


def of_the_run(exit_code: int, joined: bool, view: RunModel, rounds: int) -> int:
    """Return the exit code of the whole run. The exit code of a launcher depends only on its own
    peers.

    Args:
        exit_code: Exit code of the calling launcher.
        joined: Whether the launcher's peers joined a run that others had begun. Their failure is
            then no failure of the run.
        rounds: Number of rounds of the run.
    """
    ends = [end for end in view.lives.launcher_ends if end.exit_code is not None]
    if exit_code == 0 or any(end.exit_code == 0 for end in ends):
        return 0
    first = [end.exit_code for end in ends if not end.joins]
    code = first[-1] or 0 if joined and first else exit_code
    return QUORUM_LOST if code == NeverStarted.exit_code and rounds else code


def build(
    folder: Path,
    exit_code: int,
    wall_s: float,
    joined: bool = False,
    lacking: Mapping[str, int] | None = None,
    seen: tuple[RunConfig, RunModel] | None = None,
) -> dict[str, Any]:
    """Return the summary of the run in ``folder``.

    Args:
        exit_code, joined: Arguments of ``of_the_run``.
        wall_s: Time from the start of the first peer to the end of the last peer, in seconds.
        lacking: Number of missing lines of each file that could not be written completely.
        seen: Settings and model of the calling launcher. They replace those from the folder, which
            may be incomplete or missing.
    """
    config = RunConfig.load(folder / "config.json") if seen is None else seen[0]
    reader = RunReader(folder)
    deque(reader.read_events(), 0)
    recorded = reader.view
    view, came = recorded if seen is None else seen[1], recorded.lives.spawned
    past = history.read(reader.files.commits())
    for commit in past.true:  # Not every round has an event.
        view.trust.record_scores(commit.scores)
    # If the topology has commits, a round without a commit was lost. Otherwise peers report lost
    # rounds.
    elsewhere = _elsewhere(folder, config.peers, came, past.true) if came else []
    span = _span(config, view, past, whole=not elsewhere and not lacking)
    finished = [peer for peer, row in view.rows.items() if row.state == "done"]
    if finished and any(folder.glob("events-*.jsonl")):
        # If every peer has its own launcher, the exit code of one launcher is not that of the run.
        exit_code = 0
    exit_code = of_the_run(exit_code, joined, recorded, span.last + 1)
    if exit_code == 0 and span.lost and span.kept == 0:
        # All peers finished, but no round had a result, for example because the rule always raises.
        exit_code = 1
    present = finished or [peer for peer, row in view.rows.items() if row.is_present]
    survivors = [peer for peer in present if peer not in config.plan.byzantine]
    evaluation = read_json(folder / "evaluation.json") or {}
    counted = epochs(past.true) if not elsewhere else _epochs_by_peers(view)
    identical = _identical(config, view, survivors, evaluation)
    if exit_code == 0 and identical is False and _ends_by_divergence(config):
        exit_code = DIVERGED
    return {
        "schema": SCHEMA,
        "status": status_of(exit_code),
        "exit_code": exit_code,
        **_settings(config),
        "faults_missed": missed(config.plan, view, span.last, elsewhere),
        "byzantine": sorted(config.plan.byzantine),
        "rounds": span.kept,
        "accuracy": _accuracy(view, survivors, evaluation),
        "loss": _loss(view, survivors, evaluation),
        "replicas_identical": identical,
        "divergences": [*map(divergence.entry_of, view.failures.divergences)],
        **_deaths_and_returns(view),
        "joins": joins(view, past.true),
        "remote_peers": elsewhere,
        # A stage of a pipeline cannot train alone.
        "trained_alone": []
        if config.pipeline is not None
        else trained_alone(view, config.peers, finished),
        "left": [
            {"peer": peer, "round": round_id}
            for peer, round_id in sorted(view.lives.leaves.items())
        ],
        "partitions": partitions(view, past),
        "suspected": sorted(view.trust.suspicions),
        "quarantined": sorted(view.trust.quarantines),
        "unequal_updates": view.trust.unequal_updates,
        "low_influence": {
            str(peer): share
            for peer, share in sorted(view.trust.low_influence.items())
            if peer not in view.trust.suspicions
        },
        "unconfirmed": sorted(view.lives.unconfirmed),
        "suspicion": {
            str(peer): asdict(why) for peer, why in sorted(view.trust.suspicions.items())
        },
        "participation": _participation(view),
        "rounds_lost": len(span.lost),
        "samples": samples(counted),
        "epochs": counted[-EPOCHS_MAX:] if counted is not None else None,
        "rounds_per_s": _rate((commit.t, commit.round) for commit in past.true if commit.t)
        or _rate(recorded.progress.reported),
        "bytes_sent": sum(row.figures.sent.total for row in view.rows.values()),
        "wall_s": round(max(wall_s, recorded.last_at - (recorded.began or recorded.last_at)), 3),
        "seed": config.seed,
        "finished": finished,
        "not_saved": view.lives.not_saved or None,
        "record_incomplete": dict(lacking or {}),
    }


def _participation(view: RunModel) -> dict[str, Any] | None:
    seen = view.progress.participation
    if seen.mean is None:
        return None
    least = None if seen.least is None else round(seen.least, 3)
    return {"mean": round(seen.mean, 3), "least": least, "window": WINDOW, "bound": BOUND}


@dataclass(frozen=True, slots=True)
class _Span:
    """Rounds of a run from ``first`` to ``last``. ``lost``: rounds without a result."""

    first: int
    last: int
    lost: frozenset[int]

    @property
    def kept(self) -> int:
        return self.last + 1 - self.first - len(self.lost)


def _span(config: RunConfig, view: RunModel, past: history.History, whole: bool) -> _Span:
    """Return the rounds of a run. ``whole``: whether the files contain all commits."""
    done = {commit.round for commit in past.true}
    # The last reported round may belong to an abandoned branch that was ahead.
    last = max([*done, *(() if past.given_up else (view.progress.round,))], default=-1)
    # The rounds before the checkpoint from which the run resumed belong to another run.
    first = min(done, default=0) if config.resume else 0
    missing = set(range(first, last + 1)).difference(done) if done and whole else set()
    told = view.progress.lost.keys() & range(first, last + 1)
    return _Span(first, last, frozenset(told | missing))


def _deaths_and_returns(view: RunModel) -> dict[str, list[dict[str, Any]]]:
    deaths = [blow for blow in view.failures.blows if blow.kind != "hang"]
    hangs = [blow for blow in view.failures.blows if blow.kind == "hang"]
    restarts = [each for each in view.lives.own_restarts if each.number is not None]
    used_up = [each for each in view.lives.own_restarts if each.number is None]
    names = ("peer", "round", "kind", "planned", "skip_ms", "dead_ms", "noticed_by")
    return {
        "deaths": _rows(deaths, *names),
        "hangs": _rows(hangs, "peer", "round", "skip_ms", "noticed_by"),
        "rejoins": _rows(view.lives.rejoins, *RETURN),
        "restarts": _rows(restarts, "peer", "round", "why", "number", "wait_s", "incarnation"),
        "restarts_used_up": _rows(used_up, "peer", "round", "why"),
    }


def _rows(records: Iterable[object], *names: str) -> list[dict[str, Any]]:
    return [{name: getattr(each, name) for name in names} for each in records]


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings with which the run was started."""
    return {
        **{name: getattr(config, name) for name in OF_SETTINGS},
        **({} if config.pipeline is None else {"stages": _stages(config.pipeline)}),
        "tolerance": tolerance.describe(config),
        "faults": list(config.faults),
    }


def _stages(plan: PipelineConfig) -> list[dict[str, Any]]:
    return [
        {
            "layers": list(stage.layers),
            "peers": list(stage.peers),
            "names": [plan.names[peer] for peer in stage.peers],
        }
        for stage in plan.stages
    ]


def _elsewhere(folder: Path, first: int, came: set[int], commits: Iterable[CommitRow]) -> list[int]:
    """Return the peers that have no files in this folder: peers of other launchers, or of a lost
    host.

    Only the server of a commit records it, so without the files of these peers some commits are
    unknown.
    """
    written = {path.parent.name for path in folder.glob("peer-*/commits.jsonl")}
    contributed = {peer for commit in commits for peer in commit.peers}
    return sorted(
        ({*range(first)} - came) | {peer for peer in contributed if f"peer-{peer}" not in written}
    )


def write(
    folder: Path,
    exit_code: int,
    wall_s: float,
    joined: bool = False,
    lacking: Mapping[str, int] | None = None,
    seen: tuple[RunConfig, RunModel] | None = None,
) -> dict[str, Any]:
    """Merge the commits, and write the summary. Return the summary. If the disk is full, the
    incomplete files are listed in its ``record_incomplete``, and on stderr.

    Each launcher of a run calls this when its own peers have ended; a lock serializes the calls.
    The summary of the last launcher includes all peers.

    Raises: OSError: The folder no longer exists.
    """
    troubles = WriteFailures(print_write_failure)
    troubles.lacking.update(lacking or {})
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        troubles.try_to(folder / "commits.jsonl", lambda: merge_commits(folder, troubles))
        summary = build(folder, exit_code, wall_s, joined, troubles.lacking, seen)
        if not troubles.try_to(
            folder / "summary.json", lambda: write_json(folder / "summary.json", summary)
        ):
            summary["record_incomplete"] = dict(troubles.lacking)
    finally:
        os.close(lock)
    return summary


def joins(view: RunModel, commits: Iterable[CommitRow]) -> list[dict[str, Any]]:
    """Return the peers that joined, each with the first round to which it contributed. The round
    comes from the commits if possible, because not every round has an event."""
    made, found = list(commits), []
    for join in view.lives.joins:
        since = join.since or 0.0
        first = (each for each in made if each.t >= since and join.peer in each.peers)
        if (commit := next(first, None)) is not None:
            join = replace(join, round=commit.round, after_s=commit.t - since)
        found.append(join)
    return _rows(found, *RETURN)


def partitions(view: RunModel, past: history.History) -> list[dict[str, Any]]:
    """Return the faults of the network, with the separated peers. Forks that no injected fault
    explains are included."""
    outages, found = view.failures.outages, list[dict[str, Any]]()
    for each in outages:
        for_s = round(each.over_at - each.at, 3) if each.over_at is not None else None
        sides = {"paused": sorted(each.paused), "continued": sorted(each.alone)}
        found.append({"fault": each.fault, "round": each.round, "for_s": for_s, **sides})
        found[-1]["given_up"] = []
    for branch in past.given_up:
        outage = view.failures.outage_at(branch.t)
        if outage is None:
            sides = {"paused": [], "continued": [], "given_up": []}
            found.append({"fault": None, "round": branch.first, "for_s": None, **sides})
        entry = found[-1] if outage is None else found[outages.index(outage)]
        named = {"peers": branch.peers, "first_round": branch.first, "rounds": branch.rounds}
        entry["given_up"].append({**named, **history.cost(branch, past.true)})
    return found


def epochs(commits: Iterable[CommitRow]) -> list[dict[str, int]] | None:
    """Return, for each epoch that is over, the numbers of samples that were used once, several
    times, and never. Return None if no data was sharded."""
    made = list(commits)
    total, used = history.used(made)
    if not used:
        return None
    rounds: dict[int, set[int]] = defaultdict(set)
    planned = 0
    for commit in made:
        if commit.epoch is not None:
            rounds[commit.epoch].add(commit.round)
            planned = max(planned, commit.steps_per_epoch)
    counted = []
    for epoch, ranges in sorted(used.items()):
        if epoch in (min(used), max(used)) and len(rounds[epoch]) < planned:
            continue  # The run has resumed or ended within this epoch.
        never, once, twice = history.count_uses(ranges, total)
        counts = {"once": once, "twice": twice, "never": never}
        counted.append({"epoch": epoch, **counts, "rounds": len(rounds[epoch])})
    return counted


def _epochs_by_peers(view: RunModel) -> list[dict[str, int]] | None:
    """Return the same as ``epochs``, from the reports of peers about completed epochs. An epoch
    includes the samples left from earlier epochs; the last one also counts its unread samples as
    never used."""
    ended = [event for _, event in sorted(view.epochs.ended.items())]
    counted = [
        {
            "epoch": event.epoch or 0,
            "once": event.once or 0,
            "twice": event.twice or 0,
            "never": (event.skipped or 0) + (event.given_up or 0),
            "rounds": event.rounds or 0,
        }
        for event in ended
    ]
    if counted:
        counted[-1]["never"] += ended[-1].left or 0
    return counted or None


def samples(counted: list[dict[str, int]] | None) -> dict[str, int] | None:
    """Return the sums of the numbers over all epochs."""
    return (
        None
        if counted is None
        else {name: sum(each[name] for each in counted) for name in ("once", "twice", "never")}
    )


def _accuracy(
    view: RunModel, survivors: list[int], evaluation: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the accuracy from the evaluation. Without an evaluation, return the lowest of the
    accuracies that honest survivors logged last; the accuracy of their mean model is then
    unknown."""
    if "worst_replica" in evaluation:
        return {
            "mean_model": evaluation["mean_model"],
            "worst_replica": evaluation["worst_replica"],
        }
    logged = [view.rows[peer].accuracy for peer in survivors]
    known = [accuracy for accuracy in logged if accuracy is not None]
    return {"mean_model": None, "worst_replica": min(known) if known else None}


def _loss(view: RunModel, survivors: list[int], evaluation: Mapping[str, Any]) -> float | None:
    if "loss" in evaluation:
        loss: float | None = evaluation["loss"]
        return loss
    logged = [view.rows[peer].loss for peer in survivors]
    known = [loss for loss in logged if loss is not None]
    return sum(known) / len(known) if known else None


def _identical(
    config: RunConfig, view: RunModel, survivors: list[int], evaluation: Mapping[str, Any]
) -> bool | None:
    """Whether all honest survivors ended with bit-identical parameters, in a pipeline within each
    stage; None if it is unknown."""
    if config.pipeline is None:
        return _alike(view, survivors, evaluation)
    stages = [
        _alike(view, [peer for peer in survivors if peer in stage.peers], evaluation)
        for stage in config.pipeline.stages
    ]
    return None if None in stages else all(stages)


def _ends_by_divergence(config: RunConfig) -> bool:
    """Whether different replicas at the end are a failure of the run."""
    return config.on_divergence == "stop" and topologies.load(config.topology).rolling


def _alike(view: RunModel, survivors: list[int], evaluation: Mapping[str, Any]) -> bool | None:
    evaluated = evaluation.get("digests")
    if evaluated:
        found = [evaluated.get(str(peer)) for peer in survivors]
        return None not in found and len(set(found)) == 1
    ends = [
        (event.state_round, event.state_digest)
        for event in map(view.lives.halted.get, survivors)
        if event is not None
    ]
    # The parameters of a peer that ended earlier are those of another round, and cannot be
    # compared.
    comparable = len(ends) == len(survivors) > 0 and len({at for at, _ in ends}) == 1
    if not comparable or any(digest is None for _, digest in ends):
        return None
    return len({digest for _, digest in ends}) == 1


def _rate(done: Iterable[tuple[float, int]]) -> float | None:
    """Return the rounds per second from the first to the last (time, round). So start and end of
    the processes do not count."""
    times = sorted(done)
    if not times or times[-1][0] <= times[0][0]:
        return None
    (began, first), (ended, last) = times[0], times[-1]
    return round((last - first) / (ended - began), 1)
