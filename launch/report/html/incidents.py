"""Incidents of a run: faults and failures, each with its detection, its end and its effect."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

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
from gossip.launch.report.happenings import Blow, PartitionRecord, fault_of
from gossip.launch.report.script_errors import script_error
from gossip.launch.report.stages import describe_rebuilt_stage
from gossip.launch.report.words import clock, lasted
from gossip.observe import Event, Judgement, documents, events, select

from . import membership
from .charts import Span
from .figures import NONE, number, peers, share
from .impact import AFTER_S, Impact, rounds_word
from .recorded import RecordedRun

FAULT_MAX = 48
PEERS = re.compile(r"\d+(?:,\d+)+")
LIARS_EACH = 4
"""Maximum number of Byzantine peers of a fault with a row each. With more there is one row for
all."""
SILENT_MAX_S = 5.0
"""Maximum time from the first skip of a peer until it is declared dead, in seconds."""
STOOD_STILL_ROUNDS = 50
"""Maximum distance of the round in which a peer reports its pause from the round in which others
missed it."""
TOLD = ("crash", "restart", "hang", "leave")
"""Faults that other rows report."""
E = TypeVar("E", bound=Event)
JUDGED: Mapping[type[Event], str] = {
    events.Suspected: "suspected",
    events.Quarantined: "in quarantine",
    events.Parole: "on parole",
    events.Cleared: "trusted again",
    events.Trusted: "trusted again",
}
"""Standing of a peer after the event."""
KINDS = {
    "crash": "killed (SIGKILL), for good",
    "restart": "killed (SIGKILL), to be started again",
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
        fault: The injected fault in the syntax of a plan; "": none was injected.
        kind: Kind in two words, for a headline; "": not for a headline. ``count``: number of
            incidents of that kind in this row.
        who: Affected peers.
        t: When it began; None: it never took place.
        until: When it was over, for its effect; None: it lasts.
        noticed, back, effect: Detection, return and effect, in words.
        grave: Severity, to choose the marks of charts.
        untold: Whether no event of the run reports it.
    """

    what: str
    who: tuple[int, ...]
    t: float | None
    round: int | None
    until: float | None
    noticed: str
    back: str
    effect: str
    grave: int = 1
    number: int = 0
    untold: bool = False
    fault: str = ""
    kind: str = ""
    count: int = 1

    @property
    def described(self) -> str:
        """Description with the injected fault."""
        return f"{self.what} (fault: {self.fault})" if self.fault else self.what


def of(run: RecordedRun) -> list[Incident]:
    """Return all incidents of a run, by time, numbered from 1 on."""
    impact = Impact(run)
    makers: tuple[Callable[[RecordedRun, Impact], Iterator[Incident]], ...] = (
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
    )
    found = [incident for make in makers for incident in make(run, impact)]
    found += _end(run)
    found.sort(key=lambda one: (one.t is None, one.t or 0.0))
    found += list(_never(run))
    return [replace(one, number=number) for number, one in enumerate(found, 1)]


# --- Byzantine peers ------------------------------------------------------------------------------


def _liars(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    for fault in run.plan:
        if not isinstance(fault, ByzantineFault | NodeAttack | ActivationFault):
            continue
        who = tuple(peer for peer in fault.victims if isinstance(peer, int))
        for group in [(peer,) for peer in who] if len(who) <= LIARS_EACH else [who]:
            told = _first(run, events.Fault, fault=str(fault), peer=group[0])
            yield Incident(
                what=f"lies about {_about(fault)}: {_kind(fault)}",
                fault=_shorten(fault),
                kind="Byzantine peer",
                count=len(group),
                who=group,
                t=told.t if told else run.began,
                round=told.round if told else 0,
                until=run.ended,
                noticed=_suspected(run, group),
                back=_trusted(run, group),
                effect=_weight(run, group),
                grave=3,
                untold=True,
            )


def _shorten(fault: Fault | str) -> str:
    """Return a fault in the syntax of a plan, shortened if it is long: it may name hundreds of
    peers. Consecutive peers become ranges then."""
    typed = str(fault)
    if len(typed) > FAULT_MAX:
        typed = PEERS.sub(lambda found: peers_word(tuple(map(int, found[0].split(",")))), typed)
    return typed if len(typed) <= FAULT_MAX else f"{typed[: FAULT_MAX - 10]}...{typed[-7:]}"


def _about(fault: Fault) -> str:
    if isinstance(fault, ActivationFault):
        return "its results of micro-batches"
    return "results or states" if isinstance(fault, NodeAttack) else "its updates"


def _kind(fault: Fault) -> str:
    return str(fault).partition(":")[0]


def _first(run: RecordedRun, kind: type[E], since: float = -1.0, **fields: object) -> E | None:
    """Return the first event of a kind from ``since`` on with the given fields."""
    return next(
        (
            event
            for event in select(run.events, kind)
            if event.t >= since
            and all(getattr(event, name) == value for name, value in fields.items())
        ),
        None,
    )


def _suspected(run: RecordedRun, who: tuple[int, ...]) -> str:
    told: list[tuple[float, str]] = []
    for kind in (events.Suspected, events.Quarantined):
        firsts: dict[int, Judgement] = {}
        for event in select(run.events, kind):
            if event.subject in who:
                firsts.setdefault(event.subject, event)
        if not firsts:
            continue
        first = min(firsts.values(), key=lambda event: event.t)
        many = f", {len(firsts)} of {len(who)}" if len(who) > 1 else ""
        told.append((first.t, f"{JUDGED[kind]} at {_moment(run, first.t, first.round)}{many}"))
    if not told:
        return "no peer suspected it"
    reasons = [why.reasons for peer, why in run.view.trust.suspicions.items() if peer in who]
    because = [each[0] for each in reasons if each]
    return "; ".join(text for _, text in sorted(told)) + (f" ({because[0]})" if because else "")


def _moment(run: RecordedRun, t: float, round_id: int | None) -> str:
    at = clock(run.since(t), exact=True)
    return at if round_id is None else f"{at} (round {round_id})"


def _trusted(run: RecordedRun, who: tuple[int, ...]) -> str:
    judged = [event for event in select(run.events, Judgement) if event.subject in who]
    last = {event.subject: JUDGED[type(event)] for event in judged}
    # Each peer reports the same decision.
    paroles = {(e.subject, e.round) for e in judged if isinstance(e, events.Parole)}
    times, ends = len(paroles), sorted(set(last.values()))
    told = f"{' or '.join(ends)} at the end" if ends else NONE
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
        told.append(f"{share(none, len(known))} of its updates got no weight")
    lowest = [float(commits.trust.y(peer).min()) for peer in who if peer in commits.trust.peers]
    if lowest:
        told.append(f"lowest trust {min(lowest):.2f}")
    return "; ".join(told)


def _other_suspects(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    for peer, why in sorted(run.view.trust.suspicions.items()):
        if peer in run.plan.byzantine:
            continue
        first = _first(run, events.Suspected, subject=peer)
        if first is None:
            continue
        yield Incident(
            what="was suspected; no injected fault explains it",
            kind="suspected peer",
            who=(peer,),
            t=first.t,
            round=first.round,
            until=run.ended,
            noticed=_suspected(run, (peer,)),
            back=_trusted(run, (peer,)),
            effect=_weight(run, (peer,)) or f"lowest trust {number(why.trust)}",
            grave=2,
        )


def _divergences(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    for event in select(run.events, events.Divergence):
        if not event.peers_differ:
            continue
        yield Incident(
            what=divergence.describe(event),
            kind="diverged replica",
            who=(event.peer,),
            t=event.t,
            round=event.round,
            until=event.t,
            noticed="by digests that travel with updates",
            back="has the state of most" if event.replaced else NONE,
            effect=impact.effect(event.t, None),
            grave=4,
        )


# --- peers that die, hang, join and leave ---------------------------------------------------------


def _blows(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    for blow in run.view.blows:
        serving = _first(run, events.Fault, peer=blow.peer, t=blow.at)
        fault = str(serving.fault) if serving else ""
        what = KINDS[blow.kind]
        was_server = fault.startswith("crash:server")
        if was_server:
            what += ", while it served a round"
        told = []
        if blow.kind == "raised":
            error = script_error(run.folder, blow.peer)
            what += f": {error}" if error else ""
            told.append(f"by its launcher; its output is in peer-{blow.peer}/out.log")
        if blow.skip_ms is not None:
            told.append(f"skipped by all after {lasted(blow.skip_ms / 1000)}")
        if blow.dead_ms is not None:
            told.append(f"dead for all after {lasted(blow.dead_ms / 1000)}")
        back_at, back = _back(run, blow.peer, blow.at, blow.kind)
        struck_at, at_round = _struck(run, blow)
        yield Incident(
            what=what,
            fault=_shorten(fault),
            kind="killed server" if was_server else STRUCK.get(blow.kind, "killed peer"),
            who=(blow.peer,),
            t=struck_at,
            round=max(0, at_round),
            until=back_at or struck_at,
            noticed="; ".join(told) or "no peer reported it",
            back=back,
            effect=impact.effect(struck_at, back_at if blow.kind == "hang" else None),
            grave=4,
        )


def _lost_stages(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    """Yield stages of a pipeline that lost all peers, with a rebuilt state or without an end."""
    told = list(select(run.events, events.StageLost, events.StageBack, events.StageRebuilt))
    for stage in sorted({event.stage for event in told if event.stage is not None}):
        lost: events.StageLost | None = None  # the last loss since the state was rebuilt
        away = False
        for event in (event for event in told if event.stage == stage):
            if isinstance(event, events.StageRebuilt):
                yield _lost_stage(run, impact, lost or event, event)
                lost = None
            # A second report of the same loss is another peer's.
            elif isinstance(event, events.StageLost) and not away:
                lost = event
            away = isinstance(event, events.StageLost)
        if lost is not None and away and lost.t < _over(run):
            yield _lost_stage(run, impact, lost, None)


def _lost_stage(
    run: RecordedRun,
    impact: Impact,
    lost: events.StageLost | events.StageRebuilt,
    rebuilt: events.StageRebuilt | None,
) -> Incident:
    stage, t = lost.stage, lost.t
    who = [peer for peer, place in run.view.stages.items() if place.number == stage]
    back = "never"
    if rebuilt is not None:
        back = f"{describe_rebuilt_stage(rebuilt)}; after {lasted(rebuilt.t - t)}"
    return Incident(
        what=f"stage {stage} lost all its peers",
        kind="lost stage",
        who=tuple(sorted(who)),
        t=t,
        round=lost.round,
        until=None if rebuilt is None else rebuilt.t,
        noticed="by the other stages, which waited" if rebuilt is not lost else NONE,
        back=back,
        effect=impact.effect(t, None if rebuilt is None else rebuilt.t),
        grave=4,
    )


def _struck(run: RecordedRun, blow: Blow) -> tuple[float, int]:
    """Return the time and the last round of a blow. A script that raised takes part in no further
    round, while its process may take seconds to end."""
    halted = [
        event
        for event in select(run.events, events.Halted)
        if event.reason == "raised" and event.peer == blow.peer and event.t <= blow.at
    ]
    if blow.kind == "raised" and halted:
        return halted[-1].t, max(0, halted[-1].round or 0)
    return blow.at, blow.round if blow.planned else _round_at(run, blow.at, blow.round)


def _round_at(run: RecordedRun, t: float, told: int) -> int:
    """Return the last completed round at a time. Peers report rounds with a delay."""
    done = run.commits.round[run.commits.t <= t]
    return int(max(told, done.max(initial=-1)))


def _back(run: RecordedRun, peer: int, at: float, kind: str) -> tuple[float | None, str]:
    """Return when the peer took part again, and a description."""
    if kind == "hang":
        woken = _first(run, events.Continued, at, peer=peer)
        if woken is None:
            return None, "not woken before the end"
        steps = run.series.steps.x(peer)
        after = steps[steps > woken.t]
        if not len(after):
            return woken.t, f"woken after {lasted(woken.t - at)}, in no round again"
        first = float(after[0])
        return first, (
            f"woken after {lasted(woken.t - at)}; in a round again {lasted(first - at)} after "
            "it was stopped"
        )
    again = _first(run, events.Spawned, at, peer=peer)  # Under torchrun there is no such event.
    started = "" if again is None else f"its process was started after {lasted(again.t - at)}"
    found = [one for one in run.view.rejoins if one.peer == peer and one.since == at]
    if found and found[0].after_s is not None:
        one = found[0]
        told = f"in round {one.round}, {lasted(one.after_s)} after its death"
        return at + (one.after_s or 0.0), "; ".join(filter(None, (told, started)))
    if found or started:
        return None, f"{started or 'started again'}, and was in no round before the end"
    return None, "never"


def _absences(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    """Yield peers that were declared dead without an explaining blow, network fault or leave."""
    told: dict[int, float] = {}
    over = _over(run)
    for dead in select(run.events, events.Dead):
        peer, t = dead.subject, dead.t
        if t < told.get(peer, 0.0):
            continue
        if t >= over or _explained(run, peer, t) or peer in run.view.leaves:
            continue
        back = _first(run, events.AliveAgain, t, subject=peer)
        told[peer] = back.t if back else run.ended
        skip = _first(run, events.Skip, t - SILENT_MAX_S, subject=peer)
        begin = skip.t if skip is not None and skip.t < t else t
        first = f"first skipped by {_by(skip)}; " if skip is not None and begin < t else ""
        after = f" after {lasted(t - begin)}" if first else ""
        stood = _stood_still(run, peer, dead.round or 0)
        load = run.overload(peer, begin)
        cause = "it was paused, as a stopped process is" if stood else ""
        cause = (
            "; ".join(filter(None, (cause, load))) or "no fault or end of its process explains it"
        )
        yield Incident(
            what=f"fell silent and was declared dead: {cause}",
            kind="silent peer",
            who=(peer,),
            t=begin,
            round=(skip if first and skip else dead).round,
            until=back.t if back else None,
            noticed=f"{first}dead for {_by(dead)}{after}: {dead.reason or 'no answer'}",
            back=f"alive again after {lasted(back.t - begin)}" if back else "never",
            effect=impact.effect(begin, back.t if back else None),
            grave=2,
        )


def _by(event: events.Dead | events.Skip) -> str:
    """Return the name of the peer that reports it."""
    return peers([event.by or 0])


def _stood_still(run: RecordedRun, peer: int, around: int) -> bool:
    """Whether a peer has detected by its own clock, near that round, that it was paused."""
    return any(
        f"{peer} was paused" in reasons
        for (round_id, _), reasons in run.turns.attempts.items()
        if abs(round_id - around) <= STOOD_STILL_ROUNDS
    )


def _over(run: RecordedRun) -> float:
    """Return the time from which peers end because they have finished."""
    ends = [event.t for event in select(run.events, events.Halted) if event.reason != "raised"]
    return min(ends, default=run.ended + 1)


def _explained(run: RecordedRun, peer: int, t: float) -> bool:
    blow = any(
        one.peer == peer and one.at - 0.1 <= t <= max(one.until, one.at + 30.0) + AFTER_S
        for one in run.view.blows
    )
    return blow or _cut(run, t)


def _cut(run: RecordedRun, t: float) -> bool:
    """Whether a network fault was active at a time, or shortly before."""
    return any(
        one.at <= t <= (one.over_at if one.over_at is not None else run.ended) + AFTER_S
        for one in run.view.outages
    )


def _arrivals(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    for join in run.view.joins:
        yield Incident(
            what="joined the run",
            who=(join.peer,),
            t=join.since,
            round=join.round,
            until=None,
            noticed=NONE,
            back=NONE
            if join.after_s is None
            else f"in round {join.round}, {lasted(join.after_s)} after its start",
            effect=impact.effect(join.since, None) if join.since is not None else "",
            grave=1,
        )
    for event in select(run.events, events.Fault):
        if event.kind == "leave":
            gone = _first(run, events.Exited, event.t, peer=event.peer)
            yield Incident(
                what="was asked to leave (SIGTERM)",
                who=(event.peer,),
                t=event.t,
                round=event.round,
                until=None,
                noticed=f"gone after {lasted(gone.t - event.t)}" if gone else NONE,
                back="never: it left",
                effect=impact.effect(event.t, None),
                grave=1,
            )


def _injected(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    """Yield faults that no other row reports: slow peers, and faults of a drill."""
    told = {str(fault) for fault in run.plan if not isinstance(fault, Slow)}
    for fault in run.plan:
        if isinstance(fault, Slow) and fault.at_s is None:
            told.add(str(fault))
            yield _injection(run, impact, str(fault), None)
    for event in select(run.events, events.Fault):
        word = str(event.fault)
        if word not in told and event.kind not in TOLD and event.kind not in LINK_KINDS:
            told.add(word)
            yield _injection(run, impact, word, event)


def _injection(
    run: RecordedRun, impact: Impact, fault: str, began: events.Fault | None
) -> Incident:
    """Return the incident of a fault. ``began``: None: it lasts for the whole run."""
    is_slow = isinstance(fault_of(fault), Slow)
    who = _victims(fault) or (() if began is None else (began.peer,))
    over = None if began is None else _first(run, events.FaultOver, began.t, fault=fault)
    effect = _slowness(run, who)
    if began is not None and not is_slow:
        effect = impact.effect(began.t, None if over is None else over.t)
    back = "lasts for the whole run" if began is None else "not over before the end"
    return Incident(
        what="each of its steps takes longer" if is_slow else "a fault was injected by hand",
        fault=_shorten(fault),
        kind="slow peer" if is_slow else "injected fault",
        count=len(who),
        who=who,
        t=run.began if began is None else began.t,
        round=0 if began is None else began.round,
        until=run.ended if over is None else over.t,
        noticed=_smaller(run, who) if is_slow else _suspected(run, who),
        back=f"over after {lasted(over.t - began.t)}" if over and began else back,
        effect=effect,
        grave=2 if is_slow else 3,
    )


def _slowness(run: RecordedRun, who: tuple[int, ...]) -> str:
    """Describe the time of the updates of these peers, and of the others."""
    of_them = np.isin(run.commits.who, who)
    took = [run.commits.took_s[rows] for rows in (of_them, ~of_them)]
    if not all(np.isfinite(each).any() for each in took):
        return ""
    own, others = (lasted(float(np.nanmedian(each))) for each in took)
    return f"its updates take {own}, those of others {others} (median)"


def _victims(fault: str) -> tuple[int, ...]:
    """Return the peers that a fault in the syntax of a plan names."""
    parsed = fault_of(fault)
    return tuple(peer for peer in parsed.victims if isinstance(peer, int)) if parsed else ()


def _smaller(run: RecordedRun, who: tuple[int, ...]) -> str:
    told = [_first(run, events.Share, subject=peer) for peer in who]
    first = next((each for each in told if each is not None), None)
    if first is None:
        return NONE
    at = _moment(run, first.t, first.round)
    return f"smaller batches from {at} on (share {number(first.share)})"


# --- the network, and rounds ----------------------------------------------------------------------


def _outages(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    for outage in run.view.outages:
        over = outage.over_at
        stop = (run.ended if over is None else over) + AFTER_S
        dead: dict[int, float] = {}
        for event in select(run.events, events.Dead, events.Skip):
            peer, within = event.subject, outage.at <= event.t <= stop
            if within and not _was_struck(run, peer, outage.at, event.t):
                dead.setdefault(peer, event.t)
        first = min(dead.values(), default=None)
        effects = [_went_on(run, outage)]
        if outage.paused:
            effects.append(f"{peers(outage.paused)} waited for a quorum")
        if outage.alone:
            effects.append(f"{peers(outage.alone)} went on alone")
        effects.append(impact.effect(outage.at, over))
        apart = tuple(sorted(peer for side in outage.sides for peer in side))
        between = " and ".join(map(peers, outage.sides))
        what = f"partition between {between}" if apart else "the network was disturbed"
        yield Incident(
            what=what,
            fault=_shorten(outage.fault),
            kind="partition" if apart else "network fault",
            who=apart or tuple(sorted(dead)),
            t=outage.at,
            round=outage.round,
            until=over,
            noticed=f"first peer skipped after {lasted(first - outage.at)}" if first else NONE,
            back=_mended(run, outage.at, over, stop),
            effect="; ".join(each for each in effects if each),
            grave=4,
        )


def _was_struck(run: RecordedRun, peer: int, since: float, until: float) -> bool:
    """Whether a blow hit the peer between two times, which explains its absence."""
    return any(blow.peer == peer and since <= blow.at <= until for blow in run.view.blows)


def _went_on(run: RecordedRun, outage: PartitionRecord) -> str:
    """Describe the sides that contributed to most rounds until a partition was over."""
    over = run.ended if outage.over_at is None else outage.over_at
    done = np.flatnonzero((run.commits.t > outage.at) & (run.commits.t <= over))
    within = np.isin(run.commits.of, done)
    went_on = [
        peer
        for side in outage.sides
        if 2 * len(np.unique(run.commits.of[within & np.isin(run.commits.who, side)])) > len(done)
        for peer in side
    ]
    return f"{peers(sorted(went_on))} went on" if went_on else ""


def _mended(run: RecordedRun, at: float, over: float | None, stop: float) -> str:
    if over is None:
        return "not over before the end"
    told = f"whole again after {lasted(over - at)}"
    back = [
        event.t
        for event in select(run.events, events.Restored, events.Resumed)
        if over <= event.t <= stop + AFTER_S
    ]
    return f"{told}; the last peer was back {lasted(max(back) - over)} later" if back else told


def _lost_rounds(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    """Yield lost rounds that no outage explains. Consecutive rounds are one incident."""
    found: dict[int, events.LostRound] = {}
    for event in select(run.events, events.LostRound):
        if event.round is not None and not _cut(run, event.t):
            found.setdefault(event.round, event)
    groups: list[list[int]] = []
    for at in sorted(found):
        if groups and at == groups[-1][-1] + 1:
            groups[-1].append(at)
        else:
            groups.append([at])
    for group in groups:
        first = found[group[0]]
        yield Incident(
            what=f"{rounds_word(len(group))} lost: there was no aggregate",
            kind="lost round",
            count=len(group),
            who=(),
            t=first.t,
            round=group[0],
            until=found[group[-1]].t,
            noticed="at once",
            back=f"after round {group[-1]}",
            effect=first.reason or "",
            grave=2,
        )


def _forks(run: RecordedRun, impact: Impact) -> Iterator[Incident]:
    for branch in run.commits.given_up:
        if run.view.outage_at(branch.t) is not None:
            continue
        yield Incident(
            what="a branch of the history was given up; no network fault explains it",
            kind="abandoned fork",
            who=tuple(branch.peers),
            t=branch.t,
            round=branch.first,
            until=None,
            noticed=NONE,
            back=NONE,
            effect=f"{rounds_word(branch.rounds)} of it count for nothing",
            grave=2,
        )


# --- the end, and faults that did not take place --------------------------------------------------


def _end(run: RecordedRun) -> list[Incident]:
    """Return the incident of a launcher that was killed with all of its peers."""
    if run.state.state != "killed":
        return []
    return [
        Incident(
            what="the launcher was killed, and all peers with it: no end was recorded",
            who=tuple(run.peers),
            t=run.ended,
            round=_round_at(run, run.ended, run.view.round),
            until=None,
            noticed="by no peer: none was left",
            back=NONE,
            effect=_steps_lost(run),
            grave=5,
            untold=True,
        )
    ]


def _steps_lost(run: RecordedRun) -> str:
    """Describe the steps that were lost since the newest checkpoint before the end."""
    steps = int(run.series.steps.highest)
    text = f"the last record is of step {steps}"
    before = [one for one in run.saved if one.wall is not None and one.wall <= run.ended]
    saved = max((one.step for one in before if not one.problem), default=None)
    if saved is None:
        return text
    lost = max(0, steps - saved)
    return f"{text}; the newest earlier checkpoint is of step {saved}, so {lost} are lost"


def _never(run: RecordedRun) -> Iterator[Incident]:
    """Yield the faults of the plan that did not take place, if the run is over."""
    if not run.state.over:
        return
    for row in run.outcome.faults_missed or ():
        fault = documents.MissedFault.pick(row)
        if not fault.fault:
            continue
        yield Incident(
            what="only half of it took place" if fault.struck else "never took place",
            fault=_shorten(fault.fault),
            who=(),
            t=None,
            round=None,
            until=None,
            noticed=NONE,
            back=NONE,
            effect=fault.why,
            grave=0,
        )


def who(run: RecordedRun, one: Incident) -> str:
    """Describe the affected peers; "": no peer in particular."""
    if len(one.who) == len(run.peers) > 1:
        return "all"
    places = [run.view.stages.get(peer) for peer in one.who]
    within = sorted({place.number for place in places if place is not None})
    of = f" of stage {' and '.join(map(str, within))}" if within else ""
    return f"{peers(one.who)}{of}" if one.who else ""


def in_trouble(
    spans: Mapping[int, Sequence[Span]], found: Sequence[Incident], count: int
) -> list[int]:
    """Return the ``count`` peers with the most trouble: first by the gravest incident, then by the
    time of absence and quarantine. Incidents that affected most peers do not count.

    Args:
        spans: States of each peer over time.
    """
    gravest: dict[int, int] = defaultdict(int)
    for one in found:
        if 2 * len(one.who) <= len(spans):
            for peer in one.who:
                gravest[peer] = max(gravest[peer], one.grave)

    def rank(peer: int) -> tuple[int, float, int]:
        out_s = membership.away_s(spans[peer]) + membership.quarantined_s(spans[peer])
        return -gravest[peer], -out_s, peer

    return sorted(sorted(spans, key=rank)[:count])
