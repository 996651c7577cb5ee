"""``gossip explain RUN``: sentences about a run, or about one of its peers or rounds, from its
commits and events."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np

from gossip.errors import ConfigError
from gossip.observe import CommitRow
from gossip.run import text_of

from . import run_state
from .growing import RunFiles
from .html import RecordedRun, lines_of, reasons_of_turns, slowness, too_long
from .top import PLAIN_WIDTH
from .words import bytes_word, clock, counted, lasted, named, numbers

LINES_MAX = 40
"""Maximum number of lines about the events of a peer. If there are more, the first and the last
lines are shown."""
LATE_SHARE = 0.1
"""Share of the rounds that were closed without a late peer, above which the peer is named."""


def explain(folder: Path, what: str | None, width: int = PLAIN_WIDTH) -> list[str]:
    """Return lines about the run in ``folder``.

    Args:
        what: Id of a peer, or ``@N`` for round N. A number that is no peer's id means a round; None
            means the whole run.
        width: Width of the lines of tables, in characters.
    Raises: ConfigError: There is no such peer or round.
    """
    if what is None:
        return of_run(RecordedRun(folder), width)
    if (found := re.fullmatch(r"(@?)(\d{1,15})", what)) is None:
        raise ConfigError(
            f"{what!r} is neither a peer nor a round",
            "the number of a peer, or @ and the number of a round: gossip explain RUN @120",
        )
    number, run = int(found[2]), RecordedRun(folder)
    if not found[1] and number in run.view.rows:
        return of_peer(run, number)
    if lines := of_round(run, number):
        return lines
    raise ConfigError(
        f"there is no record of {'round' if found[1] else 'peer or round'} {number}",
        f"peers are {numbers(run.view.rows)}, and the last round is {run.view.progress.round}",
    )


# --- a run ----------------------------------------------------------------------------------------


def of_run(run: RecordedRun, width: int) -> list[str]:
    """Return lines about the whole run. ``width``: width of the lines, in characters."""
    view = run.view
    # The rounds before the checkpoint from which the run resumed belong to another run.
    rounds = view.progress.round + 1 - ((view.progress.first or 0) if run.settings.resume else 0)
    took = clock(run.duration_s)
    lines = [f"Run {run.state.name}: {counted(rounds, 'round')} in {took}; {run.state.in_words}."]
    lines += _stages(run)
    lines += _times(run)
    if handed := len(run.handed_on):
        lines.append(
            f"{handed} of {counted(len(run.commits), 'round')} went to another server than the "
            f"first in turn. Reasons: {reasons_of_turns(run)}."
        )
    if left := view.epochs.left:
        lines.append(f"{counted(left, 'sample')} of all epochs were left unused (docs/data.md).")
    if lost := len(view.progress.lost):
        lines.append(f"{counted(lost, 'round')} changed nothing.")
    lines += _late_peers(run)
    lines += lines_of(run, width)
    lines += [f"! {line}" for line in run.broken]
    word = run_state.word_for(run.folder)
    return [*lines, f"More: gossip explain {word} PEER, or gossip explain {word} @ROUND."]


def _stages(run: RecordedRun) -> list[str]:
    """Return the lines about the stages of a pipeline: the peers of each stage, and the peers that
    ended and did not return."""
    view, lines = run.view, []
    for place in sorted({each.in_words for each in view.stages.values()}):
        peers = sorted(peer for peer, each in view.stages.items() if each.in_words == place)
        rows = [view.rows[peer] for peer in peers if peer in view.rows]
        gone = [row.peer for row in rows if row.state == "gone" and not (row.left or row.asked)]
        lost = f", of which {numbers(gone)} did not return" if gone else ""
        lines.append(f"{place[0].upper()}{place[1:]}: {named(peers)}{lost}.")
    return lines


def _times(run: RecordedRun) -> list[str]:
    """Return the lines about the durations of rounds and their parts. In a pipeline the time of an
    update includes all stages, so only the duration of a round is known."""
    took, usual = run.commits.lasted_s, run.commits.usual_s
    known = np.isfinite(took)
    if usual is None:
        return ["There are no commits, so the time of its rounds cannot be explained."]
    longest = lasted(float(took[known].max()))
    lines = [f"A round took {lasted(usual)} in the median, {longest} at most."]
    who, slowest = run.commits.slowest()
    if run.view.stages or not (who >= 0).any():
        return lines
    compute, rule = float(np.nanmedian(slowest)), run.commits.rule_s
    lines.append(_slowest(run, "contributor", compute, usual))
    (peer, count) = Counter(who[who >= 0].tolist()).most_common(1)[0]
    share = count / int((who >= 0).sum())
    lines.append(f"The slowest was most often peer {peer}: in {share:.0%} of the rounds.")
    if np.isfinite(rule).any():
        lines.append(f"The rule took {lasted(float(np.nanmedian(rule)))}.")
    rest = (took - slowest - np.nan_to_num(rule))[known & (slowest <= took)]
    left_s = float(np.median(rest)) if len(rest) else 0.0
    return [*lines, _rest(left_s)] if left_s > 0 else lines


def _slowest(run: RecordedRun, who: str, compute: float, whole: float) -> str:
    if compute <= whole:
        return f"Its slowest {who} needed {lasted(compute)} of that for its update."
    return f"Its slowest {who} {too_long(run, compute)}."


def _rest(seconds: float) -> str:
    return (
        f"The rest, {lasted(max(0.0, seconds))}, was spent on sending updates and the result, "
        "waiting for late peers, and applying it."
    )


def _late_peers(run: RecordedRun) -> list[str]:
    """Return lines about the late peers without which more than one of ten rounds was closed."""
    late = Counter(peer for missing, _ in run.view.turns.late.values() for peer in missing)
    return [
        f"{counted(count, 'round')} of {len(run.commits)} were closed without peer {peer}, which "
        "was late."
        for peer, count in late.most_common()
        if count > len(run.commits) * LATE_SHARE
    ]


# --- a peer ---------------------------------------------------------------------------------------


def of_peer(run: RecordedRun, peer: int) -> list[str]:
    row, place = run.view.rows[peer], run.view.stages.get(peer)
    where = "" if place is None else f", of {place.in_words}"
    where += f", {place.name} in the plan" if place is not None and place.name else ""
    done = counted(row.step * run.view.local_steps, "step")
    state = f"{row.state} ({row.exit})" if row.state == "gone" and row.exit else row.state
    lines = [f"Peer {peer}{where}: {state}, {done} done, trust {row.trust:.2f}."]
    if row.lie:
        lines.append(f"The fault plan makes it Byzantine: {row.lie}.")
    lines += _part_in_rounds(run, peer)
    if took := slowness(run, (peer,)):
        lines.append(f"{took[0].upper()}{took[1:]}.")
    if len(far := run.commits.outlyingness[run.commits.who == peer]):
        median = times_far(float(np.median(far)))
        lines.append(f"Its updates lay {median} as far out as is typical, in the median.")
    lines.append(f"It has served {counted(int((run.commits.makers == peer).sum()), 'round')}.")
    if refused := run.view.turns.refused[peer]:
        lines.append(f"Peers refused its results {counted(refused, 'time')}.")
    if (usage := row.figures.usage) is not None:
        lines.append(
            f"By its last report its two processes used {usage.cpu_s:.0f} s of processor time and "
            f"{bytes_word(usage.memory)} of memory, and sent {bytes_word(usage.sent_bytes)}."
        )
    happened = _time_line(run, peer)
    if len(happened) > LINES_MAX:
        half = LINES_MAX // 2
        left_out = f"        ({len(happened) - LINES_MAX} more)"
        happened = [*happened[:half], left_out, *happened[-half:]]
    return [*lines, *(["", "What happened to it:"] if happened else []), *happened]


def _part_in_rounds(run: RecordedRun, peer: int) -> list[str]:
    """Return the lines about the rounds that contain the peer's update, and about those that were
    closed without it."""
    rounds, lines = np.unique(run.commits.of[run.commits.who == peer]), []
    if len(rounds):
        since = len(run.commits) - int(rounds[0])
        lines.append(
            f"Its update is in {len(rounds)} of {counted(since, 'round')} since its first "
            f"({len(rounds) / since:.0%})."
        )
    if late := sum(peer in missing for missing, _ in run.view.turns.late.values()):
        lines.append(f"{counted(late, 'round')} were closed without it: it was late.")
    return lines


def times_far(far: float) -> str:
    if far > 1000:
        return "over 1000 times"
    return "just" if (number := f"{far:.2g}") == "1" else f"{number} times"


def _time_line(run: RecordedRun, peer: int) -> list[str]:
    """Return the lines of the run that are about the peer."""
    about = re.compile(rf"\S+ (?:injected: .*)?peer {peer}\b")
    return [
        f"  {clock(run.since(event.t)):>6}  {line}"
        for event, line in run.lines
        if about.match(line)
    ]


# --- a round --------------------------------------------------------------------------------------


def of_round(run: RecordedRun, number: int) -> list[str]:
    """Return lines about a round from its commits and events; no lines if it has none."""
    near = {
        (commit.stage, commit.round): commit
        for commit in RunFiles(run.folder).commits()
        if commit.round in (number - 1, number) and not commit.shard
    }
    stages = sorted(stage for stage, at in near if at == number)
    lines = []
    for stage in stages:
        commit, before = near[stage, number], near.get((stage, number - 1))
        again = f" at attempt {commit.made_at}" if commit.made_at else ""
        of = f" of stage {stage}" if run.view.stages else ""
        at = clock(run.since(commit.t))
        lines.append(
            f"Round {number}{of}: served by peer {commit.server}{again}, committed at {at}."
        )
        lines += _time_of_round(run, commit, before)
        lines += _updates_of(commit, before)
    told = _events_of_round(run, number)
    if told and not stages:
        lines = [f"Round {number} has no commit here."]
    return [*lines, *told]


def _time_of_round(run: RecordedRun, commit: CommitRow, before: CommitRow | None) -> list[str]:
    if before is None or commit.t < before.t:
        return ["Its duration is unknown: the commit of the previous round is missing."]
    took = commit.t - before.t
    lines = [f"It took {lasted(took)} from the previous commit to its own."]
    times = {each.peer: each.update_s for each in commit.contributors if each.update_s}
    if not times:
        return lines
    longest, peer = max((seconds, peer) for peer, seconds in times.items())
    usual = lasted(float(np.median([*times.values()])))
    slowest = _slowest(run, f"contributor, peer {peer},", longest, took)
    lines.append(f"{slowest} The median is {usual}.")
    if commit.rule_s is not None:
        lines.append(f"The rule took {lasted(commit.rule_s)}.")
    rest = took - longest - (commit.rule_s or 0.0)
    return [*lines, *([_rest(rest)] if longest <= took else [])]


def _updates_of(commit: CommitRow, before: CommitRow | None) -> list[str]:
    """Return the lines about the updates that a commit contains, and about those that it left
    out."""
    used = [each.peer for each in commit.contributors if each.weight]
    lines = [f"Its result contains the updates of {numbers(used) or 'no peer'}."]
    lines += [
        f"The update of peer {each.peer} arrived but got no weight: it lay "
        f"{times_far(each.outlyingness)} as far out as is typical."
        for each in commit.contributors
        if not each.weight
    ]
    reasons: dict[str, list[int]] = {}
    for each in commit.rejected:
        reasons.setdefault((text_of(each.reason) or "").replace("_", " "), []).append(each.peer)
    lines += [f"No update of {named(peers)} ({why})." for why, peers in sorted(reasons.items())]
    there = commit.peers.union(each.peer for each in commit.rejected)
    if before is not None and (missing := set(before.roster) - there):
        lines.append(f"It lacks an update of {numbers(missing)} from the roster.")
    if commit.reason:
        lines.append(f"It changed nothing: {text_of(commit.reason)}.")
    if commit.loss is not None:
        lines.append(f"The loss was {commit.loss:.4g}.")
    return lines


def _events_of_round(run: RecordedRun, number: int) -> list[str]:
    """Return the run's lines about the round, and the reasons why it had another server or lacked a
    peer."""
    found = []
    if number in run.view.turns.late:
        missing, waited = run.view.turns.late[number]
        found.append(
            f"Its server waited for {numbers(missing)} until {lasted(waited)} after the "
            "first update, and closed it without them."
        )
    turns = sorted(
        (turn, why) for (at, turn), why in run.view.turns.attempts.items() if at == number
    )
    found += [
        f"It went to its next server, attempt {turn}: {reasons.most_common(1)[0][0]}."
        for turn, reasons in turns
    ]
    return found + [line for event, line in run.lines if event.round == number]
