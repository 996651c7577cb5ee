"""Incidents of a run: faults and failures, each with its detection, its end and its effect."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from gossip.errors import ConfigError
from gossip.faults import (
    LINK_KINDS,
    ActivationFault,
    ByzantineFault,
    Fault,
    NodeAttack,
    Slow,
    peers_word,
)
from gossip.launch.report import divergence
from gossip.launch.report.happenings import AFTER_S, Blow, Injection, PartitionRecord, fault_of
from gossip.launch.report.run_logs import script_error
from gossip.launch.report.sentences import WARNINGS
from gossip.launch.report.stages import describe_rebuilt_stage
from gossip.launch.report.words import counted, lasted, ranges_of
from gossip.observe import documents
from gossip.run import checkpoints, real

from . import impact, membership
from .charts import Span
from .figures import NONE, number, peers, share
from .recorded import RecordedRun

FAULT_MAX = 48
PEERS = re.compile(r"\d+(?:,\d+)+")
STOOD_STILL_ROUNDS = 50
"""Maximum number of rounds between the round in which a peer reports its pause and the round in
which others missed the peer."""
TOLD = ("crash", "restart", "hang", "leave")
"""Kinds of faults that ``_injected`` leaves to other rows."""
KINDS = {
    "crash": "killed (SIGKILL), for good",
    "restart": "killed (SIGKILL), to be restarted",
    "hang": "stopped (SIGSTOP)",
    "killed": "killed, not in the fault plan",
    "raised": "its script ended with an error",
}
STRUCK = {"hang": "stopped peer", "raised": "script error"}


@dataclass(frozen=True, slots=True)
class Incident:
    """One row of the table. Times are seconds since 1970.

    Attributes:
        what: Description.
        fault: The injected fault in the syntax of a plan; "" if none was injected.
        kind: Kind in two words for the headline; "" if the headline omits it. ``count``: number of
            incidents of this kind in this row.
        who: Affected peers.
        t: Start time; None if the incident never took place.
        noticed, back, effect: Detection, return and effect, as text.
        grave: Severity, which selects the incidents that charts mark.
    """

    what: str
    who: tuple[int, ...]
    t: float | None
    round: int | None
    noticed: str = NONE
    back: str = NONE
    effect: str = ""
    grave: int = 1
    number: int = 0
    fault: str = ""
    kind: str = ""
    count: int = 1

    @property
    def described(self) -> str:
        """Description with the injected fault."""
        return f"{self.what} (fault: {self.fault})" if self.fault else self.what


def of(run: RecordedRun) -> list[Incident]:
    """Return all incidents of a run, ordered by time and numbered from 1."""
    makers = (
        _liars,
        _other_suspects,
        _blows,
        _lost_stages,
        _outages,
        _absences,
        _injected,
        _arrivals,
        _lost_rounds,
        _forks,
        _divergences,
        _warnings,
        _end,
        _never,
    )
    found = [incident for make in makers for incident in make(run)]
    found.sort(key=lambda one: (one.t is None, one.t or 0.0))
    return [replace(one, number=number) for number, one in enumerate(found, 1)]


# --- Byzantine peers ------------------------------------------------------------------------------


def _liars(run: RecordedRun) -> Iterator[Incident]:
    for fault in _carried_out(run):
        if not isinstance(fault, ByzantineFault | NodeAttack | ActivationFault):
            continue
        who = tuple(peer for peer in fault.victims if isinstance(peer, int))
        if not who:
            continue
        told = _injection_of(run, str(fault), who[0])
        yield Incident(
            what=f"false {_about(fault)}: {str(fault).partition(':')[0]}",
            fault=_shorten(fault),
            kind="Byzantine peer",
            count=len(who),
            who=who,
            t=told.at if told else run.began,
            round=told.round if told else 0,
            noticed=_suspected(run, who),
            back=_trusted(run, who),
            effect=_weight(run, who),
            grave=3,
        )


def _carried_out(run: RecordedRun) -> list[Fault]:
    """Return the faults of the plan, without those that never took place."""
    never = {fault.fault for fault in _missed(run) if not fault.struck}
    return [fault for fault in run.plan if str(fault) not in never]


def _shorten(fault: Fault | str) -> str:
    """Return a fault in the syntax of a plan. A long fault, which may name hundreds of peers, is
    shortened: consecutive peers become ranges, and the middle may be left out."""
    typed = str(fault)
    if len(typed) > FAULT_MAX:
        typed = PEERS.sub(lambda found: peers_word(tuple(map(int, found[0].split(",")))), typed)
    return typed if len(typed) <= FAULT_MAX else f"{typed[: FAULT_MAX - 10]}...{typed[-7:]}"


def _about(fault: Fault) -> str:
    if isinstance(fault, ActivationFault):
        return "results of micro-batches"
    return "results or states" if isinstance(fault, NodeAttack) else "updates"


def _injection_of(run: RecordedRun, fault: str, peer: int) -> Injection | None:
    found = (each for each in run.view.failures.injected if each.fault == fault)
    return next((each for each in found if each.peer == peer), None)


def _suspected(run: RecordedRun, who: tuple[int, ...]) -> str:
    trust, told = run.view.trust, list[tuple[float, str]]()
    for standing in ("suspected", "in quarantine"):
        if (first := trust.first_verdict(who, standing)) is not None:
            judged = {peer for peer, word, _ in trust.verdicts if word == standing and peer in who}
            many = f", {len(judged)} of {len(who)}" if len(who) > 1 else ""
            told.append((first[0], f"{standing} at {_moment(run, *first)}{many}"))
    if not told:
        return "no peer suspected it"
    reasons = [why.reasons for peer, why in trust.suspicions.items() if peer in who]
    because = [each[0] for each in reasons if each]
    return "; ".join(text for _, text in sorted(told)) + (f": {because[0]}" if because else "")


def _moment(run: RecordedRun, t: float, round_id: int | None) -> str:
    at = run.clock(t)
    return at if round_id is None else f"{at} (round {round_id})"


def _trusted(run: RecordedRun, who: tuple[int, ...]) -> str:
    trust = run.view.trust
    ends = sorted({word for peer, word in trust.standing.items() if peer in who})
    told = f"{' or '.join(ends)} at the end" if ends else NONE
    times = sum(peer in who and word == "on parole" for peer, word, _ in trust.verdicts)
    if not times:
        return told
    return f"{told}; {'once' if times == 1 else f'{times} times'} on parole"


def _weight(run: RecordedRun, who: tuple[int, ...]) -> str:
    """Describe the weight of the peers' updates in results."""
    commits = run.commits
    if not len(commits):
        lowest = [run.view.rows[peer].trust for peer in who if peer in run.view.rows]
        return f"lowest trust seen at the end {number(min(lowest))}" if lowest else ""
    mine = np.isin(commits.who, who)
    rounds = len(np.unique(commits.of[mine]))
    told = [f"in {share(rounds, len(commits))} of the rounds"]
    weights = commits.weight[mine]
    known = weights[np.isfinite(weights)]
    if len(known):
        none = int((known <= 0).sum())
        told.append(f"{share(none, len(known))} of updates got no weight")
    lowest = [float(commits.trust.y(peer).min()) for peer in who if peer in commits.trust.peers]
    if lowest:
        told.append(f"lowest trust {min(lowest):.2f}")
    return "; ".join(told)


def _other_suspects(run: RecordedRun) -> Iterator[Incident]:
    for peer, why in sorted(run.view.trust.suspicions.items()):
        if peer in run.plan.byzantine:
            continue
        first = run.view.trust.first_verdict((peer,), "suspected")
        t, at_round = first or (run.began, why.round)
        yield Incident(
            what="was suspected; no injected fault explains it",
            kind="suspected peer",
            who=(peer,),
            t=t,
            round=at_round,
            noticed=_suspected(run, (peer,)),
            back=_trusted(run, (peer,)),
            effect=_weight(run, (peer,)) or f"lowest trust {number(why.trust)}",
            grave=2,
        )


def _divergences(run: RecordedRun) -> Iterator[Incident]:
    for event in run.view.failures.divergences:
        yield Incident(
            what=divergence.describe(event),
            kind="diverged replica",
            who=(event.peer,),
            t=event.t,
            round=event.round,
            noticed="by the digests in updates",
            back="copied the state of the majority" if event.replaced else NONE,
            effect=impact.effect(run, event.t, None),
            grave=4,
        )


# --- peers that die, hang, join and leave ---------------------------------------------------------


def _blows(run: RecordedRun) -> Iterator[Incident]:
    for blow in run.view.failures.blows:
        what, told = KINDS[blow.kind], []
        was_server = blow.fault.startswith("crash:server")
        if was_server:
            what += ", while it served a round"
        if blow.kind == "raised":
            error = script_error(run.folder, blow.peer)
            what += f": {error}" if error else ""
            told.append(f"by its launcher; its output is in peer-{blow.peer}/out.log")
        if blow.skip_ms is not None:
            told.append(f"skipped by all after {lasted(blow.skip_ms / 1000)}")
        if blow.dead_ms is not None:
            told.append(f"declared dead by all after {lasted(blow.dead_ms / 1000)}")
        back_at, back = _woken(run, blow) if blow.kind == "hang" else _back(run, blow)
        t, at_round = blow.at, blow.round if blow.planned else _round_at(run, blow.at, blow.round)
        if blow.raised is not None:
            # After the error the script contributes to no round, although its process may need
            # seconds to end. So the time of the error counts.
            t, at_round = blow.raised.t, blow.raised.round or 0
        yield Incident(
            what=what,
            fault=_shorten(blow.fault),
            kind="killed server" if was_server else STRUCK.get(blow.kind, "killed peer"),
            who=(blow.peer,),
            t=t,
            round=max(0, at_round),
            noticed="; ".join(told) or "no peer reported it",
            back=back,
            effect=impact.effect(run, t, back_at if blow.kind == "hang" else None),
            grave=4,
        )


def _lost_stages(run: RecordedRun) -> Iterator[Incident]:
    """Yield the stages of a pipeline that lost all their peers, if their state was rebuilt or the
    loss lasted until the end."""
    for loss in run.view.failures.lost_stages:
        rebuilt, back, until = loss.rebuilt, "never", None
        if rebuilt is None and not (loss.is_away and loss.at < run.view.lives.over_at):
            continue
        if rebuilt is not None:
            back = f"{describe_rebuilt_stage(rebuilt)}; after {lasted(rebuilt.t - loss.at)}"
            until = rebuilt.t
        stages = run.view.stages
        yield Incident(
            what=f"stage {loss.stage} lost all its peers",
            kind="lost stage",
            who=tuple(sorted(peer for peer in stages if stages[peer].number == loss.stage)),
            t=loss.at,
            round=loss.round,
            noticed=NONE if until == loss.at else "by the other stages, which waited",
            back=back,
            effect=impact.effect(run, loss.at, until),
            grave=4,
        )


def _round_at(run: RecordedRun, t: float, told: int) -> int:
    """Return the last round that was completed at ``t``. ``told``, the last reported round, may be
    older, because peers report rounds with a delay."""
    done = run.commits.round[run.commits.t <= t]
    return int(max(told, done.max(initial=-1)))


def _woken(run: RecordedRun, blow: Blow) -> tuple[float | None, str]:
    """Return the time at which a stopped peer took part in a round again, and a description."""
    if blow.woken_at is None:
        return None, "not woken before the end"
    woken = f"woken after {lasted(blow.woken_at - blow.at)}"
    steps = run.series.steps.x(blow.peer)
    after = steps[steps > blow.woken_at]
    if not len(after):
        return blow.woken_at, f"{woken}, not in a round again"
    first = float(after[0])
    return first, f"{woken}; in a round again {lasted(first - blow.at)} after it was stopped"


def _back(run: RecordedRun, blow: Blow) -> tuple[float | None, str]:
    """Return the time at which a killed peer took part in a round again, and a description."""
    started = ""  # stays "" under torchrun: no launcher reports the start
    if blow.started_at is not None:
        started = f"its process was started after {lasted(blow.started_at - blow.at)}"
    rejoins = run.view.lives.rejoins
    found = [each for each in rejoins if (each.peer, each.since) == (blow.peer, blow.at)]
    if found and (after_s := found[0].after_s) is not None:
        told = f"in round {found[0].round}, {lasted(after_s)} after its death"
        return blow.at + after_s, "; ".join(filter(None, (told, started)))
    if found or started:
        return None, f"{started or 'restarted'}, and was in no round before the end"
    return None, "never"


def _absences(run: RecordedRun) -> Iterator[Incident]:
    """Yield the peers that were declared dead although no fault or death of their process, network
    fault or leave explains it."""
    for silence in run.view.failures.silences:
        peer, first, dead, back_at = silence.peer, silence.first, silence.dead, silence.back_at
        if dead is None or dead.t >= run.view.lives.over_at or peer in run.view.lives.leaves:
            continue
        if _explained(run, peer, dead.t):
            continue
        begin, noticed = first.t, ""
        if first is not dead:
            noticed = f"first skipped by {peers([first.by or 0])}; "
        after = f" after {lasted(dead.t - begin)}" if noticed else ""
        why = dead.reason or "no answer"
        stood = _stood_still(run, peer, dead.round or 0)
        cause = "it was paused like a stopped process" if stood else ""
        cause = "; ".join(filter(None, (cause, run.overload(peer, begin))))
        if _is_started_again(run, peer, begin, back_at or run.ended):
            cause = "its node ended, and a new one was started"
        yield Incident(
            what="fell silent and was declared dead: "
            + (cause or "no fault or end of its process explains it"),
            kind="silent peer",
            who=(peer,),
            t=begin,
            round=first.round,
            noticed=f"{noticed}declared dead by {peers([dead.by or 0])}{after}: {why}",
            back="never" if back_at is None else f"alive again after {lasted(back_at - begin)}",
            effect=impact.effect(run, begin, back_at),
            grave=2,
        )


def _stood_still(run: RecordedRun, peer: int, around: int) -> bool:
    """Whether a peer has reported a pause of its own process in a round near ``around``."""
    return any(
        f"{peer} was paused" in reasons
        for (round_id, _), reasons in run.view.turns.attempts.items()
        if abs(round_id - around) <= STOOD_STILL_ROUNDS
    )


def _is_started_again(run: RecordedRun, peer: int, since: float, until: float) -> bool:
    """Whether another node of the peer was started between two times."""
    rejoins = (each for each in run.view.lives.rejoins if each.peer == peer)
    return any(each.started_at and since <= each.started_at <= until for each in rejoins)


def _explained(run: RecordedRun, peer: int, t: float) -> bool:
    blow = any(
        one.peer == peer and one.at - 0.1 <= t <= max(one.until, one.at + 30.0) + AFTER_S
        for one in run.view.failures.blows
    )
    return blow or _cut(run, t)


def _cut(run: RecordedRun, t: float) -> bool:
    """Whether a network fault was active at time ``t``, or shortly before."""
    return any(outage.affects(t) for outage in run.view.failures.outages)


def _arrivals(run: RecordedRun) -> Iterator[Incident]:
    for join in run.view.lives.joins:
        yield Incident(
            what="joined the run",
            who=(join.peer,),
            t=join.since,
            round=join.round,
            back=NONE
            if join.after_s is None
            else f"in round {join.round}, {lasted(join.after_s)} after its start",
            effect=impact.effect(run, join.since, None) if join.since is not None else "",
        )
    for fault in run.view.failures.injected:
        if fault.kind == "leave":
            gone_at = run.view.rows[fault.peer].figures.exited_at
            is_gone = gone_at is not None and gone_at >= fault.at
            yield Incident(
                what="was told to leave (SIGTERM)",
                who=(fault.peer,),
                t=fault.at,
                round=fault.round,
                noticed=f"gone after {lasted(gone_at - fault.at)}" if gone_at and is_gone else NONE,
                back="never: it left",
                effect=impact.effect(run, fault.at, None),
            )


def _injected(run: RecordedRun) -> Iterator[Incident]:
    """Yield faults that no other row reports: slow peers, and faults of a drill."""
    told = {str(fault) for fault in run.plan if not isinstance(fault, Slow)}
    for fault in _carried_out(run):
        if isinstance(fault, Slow) and fault.at_s is None:
            told.add(str(fault))
            yield _injection(run, str(fault), None)
    for each in run.view.failures.injected:
        if each.fault not in told and each.kind not in TOLD and each.kind not in LINK_KINDS:
            told.add(each.fault)
            yield _injection(run, each.fault, each)


def _injection(run: RecordedRun, fault: str, began: Injection | None) -> Incident:
    """Return the incident of a fault. ``began``: report of its start; None if the fault lasts for
    the whole run."""
    is_slow = isinstance(fault_of(fault), Slow)
    who = _victims(fault) or (() if began is None else (began.peer,))
    over_at = None if began is None else began.over_at
    effect = slowness(run, who)
    if began is not None and not is_slow:
        effect = impact.effect(run, began.at, over_at)
    back = "lasts for the whole run" if began is None else "not over before the end"
    return Incident(
        what="each of its steps takes longer" if is_slow else "a fault was injected by hand",
        fault=_shorten(fault),
        kind="slow peer" if is_slow else "injected fault",
        count=len(who),
        who=who,
        t=run.began if began is None else began.at,
        round=0 if began is None else began.round,
        noticed=NONE if is_slow else _suspected(run, who),
        back=f"over after {lasted(over_at - began.at)}" if over_at and began else back,
        effect=effect,
        grave=2 if is_slow else 3,
    )


def slowness(run: RecordedRun, who: tuple[int, ...]) -> str:
    """Describe how long these peers, and the others, need for an update."""
    of_them = np.isin(run.commits.who, who)
    took = [run.commits.took_s[rows] for rows in (of_them, ~of_them)]
    if not all(np.isfinite(each).any() for each in took):
        return ""
    own, others = (lasted(float(np.nanmedian(each))) for each in took)
    return f"its updates take {own}, those of other peers {others} (median)"


def _victims(fault: str) -> tuple[int, ...]:
    """Return the peers in a fault that is given in the syntax of a plan."""
    parsed = fault_of(fault)
    return tuple(peer for peer in parsed.victims if isinstance(peer, int)) if parsed else ()


# --- the network, and rounds ----------------------------------------------------------------------


def _outages(run: RecordedRun) -> Iterator[Incident]:
    for outage in run.view.failures.outages:
        over = outage.over_at
        first = min(outage.skipped.values(), default=None)
        effects = [_went_on(run, outage)]
        if outage.paused:
            effects.append(f"{peers(outage.paused)} waited for a quorum")
        if outage.alone:
            effects.append(f"{peers(outage.alone)} continued alone")
        effects.append(impact.effect(run, outage.at, over))
        apart = tuple(sorted(peer for side in outage.sides for peer in side))
        between = " and ".join(map(peers, outage.sides))
        what = f"partition between {between}" if apart else "the network was disturbed"
        yield Incident(
            what=what,
            fault=_shorten(outage.fault),
            kind="partition" if apart else "network fault",
            who=apart or tuple(sorted(outage.skipped)),
            t=outage.at,
            round=outage.round,
            noticed=f"first peer skipped after {lasted(first - outage.at)}" if first else NONE,
            back=_mended(outage),
            effect="; ".join(each for each in effects if each),
            grave=4,
        )


def _went_on(run: RecordedRun, outage: PartitionRecord) -> str:
    """Describe the peers on the sides of a partition that contributed to most of its rounds."""
    over = run.ended if outage.over_at is None else outage.over_at
    done = np.flatnonzero((run.commits.t > outage.at) & (run.commits.t <= over))
    within = np.isin(run.commits.of, done)
    went_on = [
        peer
        for side in outage.sides
        if 2 * len(np.unique(run.commits.of[within & np.isin(run.commits.who, side)])) > len(done)
        for peer in side
    ]
    return f"{peers(sorted(went_on))} continued" if went_on else ""


def _mended(outage: PartitionRecord) -> str:
    over, back = outage.over_at, outage.back_at
    if over is None:
        return "not over before the end"
    told = f"repaired after {lasted(over - outage.at)}"
    return told if back is None else f"{told}; the last peer was back {lasted(back - over)} later"


def _lost_rounds(run: RecordedRun) -> Iterator[Incident]:
    """Yield lost rounds that no outage explains. Consecutive rounds are one incident."""
    lost = run.view.progress.lost
    unexplained = [at for at, event in lost.items() if not _cut(run, event.t)]
    for group in ranges_of(unexplained):
        first = lost[group[0]]
        yield Incident(
            what=f"{counted(len(group), 'round')} lost: there was no aggregate",
            kind="lost round",
            count=len(group),
            who=(),
            t=first.t,
            round=group[0],
            noticed="at once",
            back=f"after round {group[-1]}",
            effect=first.reason or "",
            grave=2,
        )


def _forks(run: RecordedRun) -> Iterator[Incident]:
    for branch in run.commits.given_up:
        if run.view.failures.outage_at(branch.t) is not None:
            continue
        yield Incident(
            what="a branch of the history was abandoned; no network fault explains it",
            kind="abandoned fork",
            who=tuple(branch.peers),
            t=branch.t,
            round=branch.first,
            effect=f"{counted(branch.rounds, 'round')} of the branch do not count",
            grave=2,
        )


def _warnings(run: RecordedRun) -> Iterator[Incident]:
    """Yield the warnings that the run or its scripts printed."""
    for event, line in run.lines:
        if isinstance(event, WARNINGS):
            yield Incident(line[2:], (), event.t, event.round, kind="warning", grave=0)
    for text, found in run.series.logged.warnings.items():
        (t, at, _), *_ = found
        who = tuple(sorted({peer for _, _, peer in found}))
        yield Incident(f"warning: {text}", who, t, at, kind="warning", grave=0)


# --- the end, and faults that did not take place --------------------------------------------------


def _end(run: RecordedRun) -> Iterator[Incident]:
    """Yield an incident if the last checkpoint is missing, and one if the launcher was killed with
    all its peers."""
    at_round = _round_at(run, run.ended, run.view.progress.round)
    if why := run.view.lives.not_saved:
        yield Incident(
            what="the last checkpoint was not written",
            kind="missing checkpoint",
            who=(),
            t=run.ended,
            round=at_round,
            effect=why,
            grave=4,
        )
    if run.state.state == "killed":
        yield Incident(
            what="the launcher and all its peers were killed: no end was recorded",
            who=tuple(run.peers),
            t=run.ended,
            round=at_round,
            noticed="by no peer, as none was left",
            effect=_steps_lost(run),
            grave=5,
        )


def _steps_lost(run: RecordedRun) -> str:
    """Describe the steps that were lost: those after the newest checkpoint before the end."""
    steps = int(run.series.steps.highest)
    text = f"the last record is of step {steps}"
    saved = _last_saved(run)
    if saved is None:
        return text
    lost = max(0, steps - saved)
    return f"{text}; the newest earlier checkpoint is of step {saved}, so {lost} are lost"


def _last_saved(run: RecordedRun) -> int | None:
    """Return the step of the newest complete checkpoint that was saved before the end of the
    run."""
    try:
        found = checkpoints.listed(checkpoints.folder_of(run.folder))
    except ConfigError as error:
        run.state.broken.append(str(error))
        return None
    for step, path in reversed(found):
        with suppress(ConfigError):  # Skip a damaged checkpoint.
            wall = real(checkpoints.open_at(path).manifest.get("wall_time_s"))
            if wall is not None and wall <= run.ended:
                return step
    return None


def _never(run: RecordedRun) -> Iterator[Incident]:
    """Yield the faults of the plan that did not take place, if the run has ended."""
    for fault in _missed(run):
        yield Incident(
            what="only part of it took place" if fault.struck else "never took place",
            fault=_shorten(fault.fault),
            who=(),
            t=None,
            round=None,
            effect=fault.why,
            grave=0,
        )


def _missed(run: RecordedRun) -> list[documents.MissedFault]:
    found = map(documents.MissedFault.pick, run.state.outcome.faults_missed or ())
    return [fault for fault in found if fault.fault]


def who(run: RecordedRun, one: Incident) -> str:
    """Describe the affected peers; "" means no peer in particular."""
    if len(one.who) == len(run.peers) > 1:
        return "all"
    places = [run.view.stages.get(peer) for peer in one.who]
    within = sorted({place.number for place in places if place is not None})
    of = f" of stage {' and '.join(map(str, within))}" if within else ""
    return f"{peers(one.who)}{of}" if one.who else ""


def in_trouble(
    spans: Mapping[int, Sequence[Span]], found: Sequence[Incident], count: int
) -> list[int]:
    """Return the ``count`` peers with the most trouble, ascending. Trouble is measured by the most
    serious incident of the peer, and then by its time of absence and quarantine. Incidents that
    affected most peers do not count.

    Args:
        spans: States of each peer over time.
    """
    gravest: dict[int, int] = defaultdict(int)
    for one in found:
        if 2 * len(one.who) <= len(spans):
            for peer in one.who:
                gravest[peer] = max(gravest[peer], one.grave)

    def rank(peer: int) -> tuple[int, float, int]:
        out_s = membership.away_s(spans[peer]) + membership.time_in(spans[peer], ["quarantined"])
        return -gravest[peer], -out_s, peer

    return sorted(sorted(spans, key=rank)[:count])
