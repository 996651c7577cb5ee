"""Impact of a drill, from the records of the run: which peers noticed it and when, losses, and the
pace of rounds before, during and after. Pure: events in, figures out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from gossip.launch.report import Injection, RunModel, counted, history
from gossip.observe import CommitRow, Event, events

BEFORE_S = 5.0  # length of the measurement of the pace before the drill
PACE_S = 0.5  # length of the windows after the drill
RECOVERED = 0.95  # of the pace before


@dataclass(frozen=True, slots=True)
class DrillWindow:
    """Times of a drill, in seconds, as ``t`` in the rows.

    Attributes:
        since: Start of the drill.
        until: End of the drill.
        now: Time up to which rows count.
    """

    since: float
    until: float
    now: float


def impact(
    peers: int,
    happened: Iterable[Event],
    commits: Iterable[CommitRow],
    window: DrillWindow,
) -> dict[str, Any]:
    """Return the impact of all drills in ``window``.

    Args:
        happened: Events of the run, in any order.
        commits: Commits of all peers, in any order.
    """
    since, until, now = window.since, window.until, window.now
    view, logged = RunModel(peers, details=True), list[Event]()
    for event in sorted(happened, key=lambda event: event.t):
        if event.t <= now:
            view.apply_recorded(event)
            logged += [event] if isinstance(event, events.Metrics | events.Round) else []
    failures, lives, trust = view.failures, view.lives, view.trust
    lost = [each for each in view.progress.lost.values() if each.t >= since]
    verdicts = [key for key, t in trust.verdicts.items() if t >= since]
    skips = [each.first.t for each in failures.silences if each.first.t >= since]
    past = history.read(commit for commit in commits if commit.t <= now)
    made = sorted(commit.t for commit in past.true if not commit.shard)
    blows = [blow for blow in failures.blows if blow.at >= since - 0.001]
    given_up = [branch for branch in past.given_up if since <= branch.t <= now]
    return {
        "since": since,
        "until": until,
        "drills": [
            {"after_s": round(drill.t - since, 3), **drill.to_fields()}
            for drill in failures.drills
            if drill.t >= since
        ],
        "hit": [
            {
                "peer": blow.peer,
                "kind": blow.kind,
                "round": blow.round,
                "planned": blow.planned,
                "first_skip_ms": _ms(min(blow.skips.values(), default=None), blow.at),
                "skip_ms": _rounded(blow.skip_ms),
                "dead_ms": _rounded(blow.dead_ms),
                "back_ms": None if blow.kind == "hang" else _back(view, blow.peer, blow.at),
            }
            for blow in blows
        ],
        "left": [
            {"peer": fault.peer, "round": fault.round, "after_ms": _left_ms(view, fault)}
            for fault in failures.injected
            if fault.kind == "leave" and fault.at >= since
        ],
        "first_skip_ms": _ms(min(skips, default=None), since),
        "rounds_handed_on": sum(t >= since for t in view.turns.asked_at.values()),
        "rounds_lost": len(lost),
        "given_up": [
            {"peers": branch.peers, "rounds": branch.rounds, **history.cost(branch, past.true)}
            for branch in given_up
        ],
        "states_taken": sum(each.t >= since for each in lives.restored),
        "suspected": sorted({peer for peer, word, _ in verdicts if word == "suspected"}),
        "quarantined": sorted({peer for peer, word, _ in verdicts if word == "in quarantine"}),
        "pace": pace(made, since, until, now),
        "loss": _before_and_after(logged, "loss", since, until, now),
        "accuracy": _before_and_after(logged, "accuracy", since, until, now),
    }


def _left_ms(view: RunModel, fault: Injection) -> float | None:
    """Return the time from the request to leave to the end of the process; None: it has not
    ended."""
    exited_at = view.rows[fault.peer].figures.exited_at
    is_gone = exited_at is not None and exited_at >= fault.at
    return _ms(exited_at if is_gone else None, fault.at)


def pace(made: Sequence[float], since: float, until: float, now: float) -> dict[str, float | None]:
    """Return rounds per second before, during and after; the longest pause; and the time from
    ``until`` to the recovery of the pace.

    Args:
        made: Times of commits, ascending.
    """
    began = max(since - BEFORE_S, made[0]) if made else since
    before, during, after = (
        _rate(made, began, since),
        _rate(made, since, until),
        _rate(made, until, now),
    )
    seen = [since, *[t for t in made if since <= t <= now], now]
    stall_s = max(later - earlier for earlier, later in pairwise(seen))
    recovered = None
    if before:
        starts = [until, *[t for t in made if until < t <= now - PACE_S]]
        paces = ((t, _rate(made, t, t + PACE_S, 0.0)) for t in starts if t + PACE_S <= now)
        enough = RECOVERED * before
        found = next((t for t, pace in paces if pace is not None and pace >= enough), None)
        recovered = None if found is None else max(0.0, found - until)
    return {
        "before": _rounded(before),
        "during": _rounded(during),
        "after": _rounded(after),
        "dip": None if not before or during is None else round(max(0.0, 1 - during / before), 3),
        "longest_pause_ms": round(stall_s * 1000, 1),
        "recovery_ms": _rounded(None if recovered is None else recovered * 1000),
    }


def _rate(made: Sequence[float], start: float, stop: float, least_s: float = 0.05) -> float | None:
    if stop - start <= least_s:
        return None
    return sum(1 for t in made if start < t <= stop) / (stop - start)


def _before_and_after(
    happened: Iterable[Event], name: str, since: float, until: float, now: float
) -> dict[str, float] | None:
    """Return the mean of the logged values before the drill and after it; None: there are too few
    values."""
    logged = [
        (event.t, value) for event in happened if (value := getattr(event, name, None)) is not None
    ]
    firsts = [value for t, value in logged if since - BEFORE_S <= t < since]
    lasts = [value for t, value in logged if until <= t <= now]
    if not firsts or not lasts:
        return None
    before, after = fmean(firsts), fmean(lasts)
    return {
        "before": round(before, 5),
        "after": round(after, 5),
        "difference": round(after - before, 5),
    }


def _back(view: RunModel, peer: int, at: float) -> float | None:
    """Return the time from a fault to the first round of the peer's next life, in milliseconds.
    None: it has had no round yet."""
    rejoins = view.lives.rejoins
    found = [each.after_ms for each in rejoins if (each.peer, each.since) == (peer, at)]
    return found[0] if found else None


def _ms(t: float | None, since: float) -> float | None:
    return None if t is None else round(max(0.0, t - since) * 1000, 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the figures as lines for the user."""
    told = [f"impact of {counted(len(found['drills']), 'drill')}"]
    for hit in found["hit"]:
        said = [
            f"first skipped after {_of(hit['first_skip_ms'], 'ms')}",
            f"by all after {_of(hit['skip_ms'], 'ms')}",
        ]
        said += (
            [f"dead for all after {_of(hit['dead_ms'], 'ms')}"]
            if hit["dead_ms"] is not None
            else []
        )
        said += [f"back after {_of(hit['back_ms'], 'ms')}"] if hit["back_ms"] is not None else []
        told.append(
            f"  peer {hit['peer']} ({hit['kind']}, round {hit['round']}): {', '.join(said)}"
        )
    for gone in found["left"]:
        how = (
            "is still there"
            if gone["after_ms"] is None
            else f"was gone after {_of(gone['after_ms'], 'ms')}"
        )
        told.append(f"  peer {gone['peer']} was asked to leave at round {gone['round']}, and {how}")
    if not found["hit"] and found["first_skip_ms"] is not None:
        told.append(f"  first skip after {_of(found['first_skip_ms'], 'ms')}")
    told.append(
        f"  rounds: {found['rounds_lost']} lost, {found['rounds_handed_on']} handed on to another "
        f"server; {counted(found['states_taken'], 'state')} taken over"
    )
    for branch in found["given_up"]:
        who = ", ".join(map(str, branch["peers"])) or "nobody: they were empty"
        rounds, samples = (
            counted(branch["rounds"], "round"),
            counted(branch["samples_given_back"], "sample"),
        )
        told.append(f"  given up: {rounds} of peers {who}, {samples} given back")
    if found["suspected"] or found["quarantined"]:
        told.append(
            f"  suspected: {_list(found['suspected'])}; quarantined: {_list(found['quarantined'])}"
        )
    speed = found["pace"]
    dip = f" (-{speed['dip']:.0%})" if speed["dip"] else ""
    told.append(
        f"  rounds/s: {_of(speed['before'])} before, {_of(speed['during'])} during{dip}, "
        f"{_of(speed['after'])} after; longest pause {speed['longest_pause_ms']:.0f} ms"
    )
    when = speed["recovery_ms"]
    told.append(
        "  not yet at its pace of before"
        if when is None
        else f"  at its pace of before {when:.0f} ms after the end"
    )
    for name in ("loss", "accuracy"):
        if found[name] is not None:
            told.append(
                f"  {name}: {found[name]['before']:.4g} before, {found[name]['after']:.4g} after"
            )
    return told


def _of(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:g}" + (f" {unit}" if unit else "")


def _list(peers: Iterable[int]) -> str:
    return ", ".join(map(str, peers)) or "nobody"
