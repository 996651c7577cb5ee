"""``gossip explain RUN``: what became of a run, of one of its peers or of one of its rounds, in
sentences, from commits and events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gossip.errors import ConfigError
from gossip.observe import CommitRow, Event, Judgement, SubjectEvent, events, select
from gossip.run import text_of

from . import divergence, run_state
from .html import lines_of
from .live_frame import clock
from .run_reader import RunReader
from .stages import PeerStage, describe_rebuilt_stage, describe_unlike_profile
from .top import PLAIN_WIDTH, standing_of
from .words import bytes_word, counted, named, numbers

EVENTS_MAX = 100_000
"""Maximum number of events that are kept. If a run has more, the first are read."""
LINES_MAX = 40
"""Maximum number of lines on a peer's events. If there are more, the first and the last are
shown."""
MACHINES_MAX = 12
TOGETHER_S = 2.0
"""Peers that skip another within so long do it for the same reason."""
WHY_SKIPPED = {
    "disconnected": "the connection to it was closed",
    "connecting": "no connection to it came about",
    "suspect": "it did not answer in time",
    "dead": "it was held for dead",
    "left": "it had left",
}
NOT_KEPT = (
    *(events.Round, events.Metrics, events.Usage, events.SnapshotServed, events.Joined),
    *(events.EventsSuppressed, events.Rerouted, events.Batch, events.Epoch),
)
"""Events that come by the thousand, and have no sentence."""
_NUMBER = re.compile(r"-?\d[\d.]*")


@dataclass(frozen=True, slots=True)
class RoundTime:
    """Seconds that the parts of a round took. None: not known.

    Attributes:
        took: From the commit before to its own.
        slowest: The contributor that needed longest for its update, and how long: with local steps
            for all of them, of which it may have taken fewer.
        rule: From the end of the collecting to the commit.
    """

    number: int
    took: float | None
    slowest: tuple[int, float] | None
    rule: float | None

    @property
    def rest(self) -> float | None:
        """Seconds of the rest: sending updates and the result, waiting, applying."""
        if self.took is None or self.slowest is None or self.slowest[1] > self.took:
            return None
        return max(0.0, self.took - self.slowest[1] - (self.rule or 0.0))


def time_of(commit: CommitRow, before: CommitRow | None) -> RoundTime:
    """Return the times of a round. ``before``: the commit of the round before, where known."""
    follows = before is not None and before.round + 1 == commit.round
    took = commit.t - before.t if before is not None and follows else None
    times = [(each.update_s, each.peer) for each in commit.contributors if each.update_s]
    slowest = (max(times)[1], max(times)[0]) if times else None
    known = took if took is not None and took >= 0 else None
    return RoundTime(commit.round, known, slowest, commit.rule_s)


class Story:
    """Events, times and contributions that ``explain`` keeps while a run's folder is read into its
    model.

    Args:
        peer: Of whom every contribution is kept; None: of nobody.
        number: Of the round whose commit is kept with the one before; None: of none.
    """

    def __init__(self, folder: Path, peer: int | None = None, number: int | None = None) -> None:
        self.reader = RunReader(folder)
        self.standing = standing_of(folder)
        self.events: list[Event] = []
        self.times: list[RoundTime] = []  # of a pipeline's last stage: all end a round together
        self._handed_on: dict[int, int] = {}  # by round the attempt that made it
        self.kept: dict[tuple[int, int], CommitRow] = {}  # by stage and round
        self.own: list[tuple[float, float | None]] = []  # outlyingness and time of each update
        self.others: list[tuple[float, float | None]] = []  # medians of the others', of each round
        self.served = 0
        self.reader.update(
            self._record_event, lambda commit: self._record_commit(commit, peer, number)
        )

    @property
    def handed_on(self) -> int:
        """Rounds that another server than the first has served."""
        return len(self._handed_on)

    def handing_on(self) -> Iterator[events.Attempt]:
        """Events by which those rounds went from server to server. A single peer that goes to
        another server, and comes back to a round that the first one has made, is none of them."""
        for event in select(self.events, events.Attempt):
            made_by = -1 if event.round is None else self._handed_on.get(event.round, -1)
            if (event.attempt or 0) <= made_by:
                yield event

    @property
    def stages(self) -> Mapping[int, PeerStage]:
        """Stages of a pipeline, by peer."""
        return self.reader.view.stages

    def at(self, t: float) -> str:
        """A moment as time since the beginning."""
        return clock(t - (self.reader.began or t))

    def _record_event(self, event: Event, lines: list[str]) -> None:
        is_kept = type(event) is not Event and not isinstance(event, NOT_KEPT)
        if is_kept and len(self.events) < EVENTS_MAX:
            self.events.append(event)

    def _record_commit(self, commit: CommitRow, peer: int | None, number: int | None) -> None:
        before = self._before(commit)
        if commit.stage == max((each.number for each in self.stages.values()), default=0):
            self.times.append(time_of(commit, before))
        if commit.made_at > 0:
            self._handed_on[commit.round] = commit.made_at
        if number is not None and commit.round in (number - 1, number):
            self.kept[commit.stage, commit.round] = commit
        if peer is None:
            return
        self.served += commit.server == peer
        own = commit.contribution_of(peer)
        others = [each for each in commit.contributors if each.peer != peer]
        if own is not None and others:
            self.own.append((own.outlyingness, own.update_s))
            took = [each.update_s for each in others if each.update_s]
            far = median(each.outlyingness for each in others)
            self.others.append((far, median(took) if took else None))

    def _before(self, commit: CommitRow) -> CommitRow | None:
        """The commit of its stage before the last one."""
        commits = reversed(self.reader.view.commits)
        next(commits)
        return next((each for each in commits if each.stage == commit.stage), None)


def explain(folder: Path, what: str | None, width: int = PLAIN_WIDTH) -> list[str]:
    """Lines for a person.

    Args:
        what: A peer's number, or ``@N`` for round N. A number that is no peer's is a round's.
        width: In characters, of the lines that are tables.
    Raises: ConfigError: There is no such peer or round.
    """
    if what is None:
        return of_run(Story(folder), width)
    if (found := re.fullmatch(r"(@?)(\d{1,15})", what)) is None:
        raise ConfigError(
            f"{what!r} is neither a peer nor a round",
            "the number of a peer, or @ and the number of a round: gossip explain RUN @120",
        )
    number = int(found[2])
    story = Story(folder, peer=number, number=number)
    if not found[1] and number in story.reader.view.rows:
        return of_peer(story, number)
    if number in {*(at for _, at in story.kept), *(event.round for event in story.events)}:
        return of_round(story, number)
    raise ConfigError(
        f"of {'round' if found[1] else 'peer or round'} {number} nothing is known here",
        f"peers are {numbers(story.reader.view.rows)}, and the last round is "
        f"{story.reader.view.round}",
    )


# --- a run ----------------------------------------------------------------------------------------


def of_run(story: Story, width: int) -> list[str]:
    """``width``: of the lines, in characters."""
    reader, view = story.reader, story.reader.view
    took = clock(reader.last_at - reader.began) if reader.began is not None else "no time"
    # those before a checkpoint that it went on from were never its own
    rounds = view.round + 1 - ((view.first or 0) if reader.settings.resume else 0)
    lines = [f"The run {reader.name}: {story.standing.state}, {counted(rounds, 'round')}, {took}."]
    lines += _stages(story)
    lines += _times(story.times, within_round=not story.stages)
    if story.handed_on:
        lines.append(
            f"{counted(story.handed_on, 'round')} of {len(story.times)} "
            f"{'was' if story.handed_on == 1 else 'were'} served by another peer than the first "
            "whose turn it was."
        )
        lines += [f"  {why}" for why in _folded_reasons(story.handing_on())]
    lines += _lost_rounds(story)
    lines += _late_peers(story)
    lines += [f"{text}." for text in _machines(reader)]
    lines += lines_of(reader.folder, width)
    lines += [f"! {line}" for line in reader.broken]
    word = run_state.word_for(reader.folder)
    return [*lines, f"More: gossip explain {word} PEER, or gossip explain {word} @ROUND."]


def _stages(story: Story) -> list[str]:
    """Return the lines about the stages of a pipeline: their peers, and the processes that have
    ended otherwise than they should."""
    view, lines = story.reader.view, []
    for place in sorted({each.in_words for each in story.stages.values()}):
        peers = sorted(peer for peer, each in story.stages.items() if each.in_words == place)
        rows = [view.rows[peer] for peer in peers if peer in view.rows]
        gone = [row.peer for row in rows if row.state == "gone" and not (row.left or row.asked)]
        lost = f", of which {numbers(gone)} did not come back" if gone else ""
        who = "peer" if len(peers) == 1 else "peers"
        lines.append(f"{place[0].upper()}{place[1:]}: {who} {numbers(peers)}{lost}.")
    return lines


def _machines(reader: RunReader) -> list[str]:
    """How they did, at the worst."""
    found = sorted(reader.view.machines.found.items())
    return [words for _, each in found[:MACHINES_MAX] if (words := each.in_words(over=True))]


def _times(times: Sequence[RoundTime], within_round: bool) -> list[str]:
    """``within_round``: also what it was for. In a pipeline the time until an update is there is
    that of all stages."""
    took = [each.took for each in times if each.took is not None]
    if not took:
        return ["No commits are here, so it is not known where the time of its rounds went."]
    lines = [f"A round took {_ms(median(took))} in the median, {_ms(max(took))} at most."]
    if not within_round:
        return lines
    slowest = [each.slowest for each in times if each.slowest is not None]
    if slowest:
        peer, count = Counter(peer for peer, _ in slowest).most_common(1)[0]
        longest = median(seconds for _, seconds in slowest)
        lines.append(
            f"Its slowest contributor needed {_ms(longest)} of that for its update."
            if longest <= median(took)
            else f"All steps of a round would take its slowest contributor {_ms(longest)}: it took "
            "fewer."
        )
        lines.append(
            f"The slowest was most often peer {peer}: in {count / len(slowest):.0%} of the rounds."
        )
    if rules := [each.rule for each in times if each.rule is not None]:
        lines.append(f"The rule took {_ms(median(rules))}.")
    if rests := [each.rest for each in times if each.rest is not None]:
        lines.append(
            f"The rest, {_ms(median(rests))}, went into sending updates and the result, waiting "
            "for those who were late, and applying it."
        )
    return lines


def _folded_reasons(told: Iterable[events.Attempt | events.LostRound]) -> list[str]:
    """Return, of hundreds of reasons, those that differ in more than their numbers, most frequent
    first. Several peers tell of the same turn of a server: what most of them say of it counts."""
    examples: dict[str, str] = {}
    turns: dict[tuple[Any, ...], Counter[str]] = {}
    for event in told:
        reason = _why(event)
        kind = _NUMBER.sub("#", reason)
        examples.setdefault(kind, reason)
        turn = tuple(getattr(event, name, None) for name in ("round", "shard", "attempt"))
        turns.setdefault(turn, Counter())[kind] += 1
    counts = Counter(kinds.most_common(1)[0][0] for kinds in turns.values())
    return [
        f"{examples[kind]}." if count == 1 else f"{count} times, as: {examples[kind]}."
        for kind, count in counts.most_common(5)
    ]


def _lost_rounds(story: Story) -> list[str]:
    lost = story.reader.view.lost_rounds
    if not lost:
        return []
    why = _folded_reasons(select(story.events, events.LostRound))
    return [f"{counted(len(lost), 'round')} changed nothing: {' '.join(why[:1])}"]


def _late_peers(story: Story) -> list[str]:
    """Return the peers that were waited for in vain in more than one round of ten."""
    late: Counter[int] = Counter()
    rounds: set[tuple[int, int]] = set()
    for event in select(story.events, events.Late):
        number = event.round
        for peer in event.missing or ():
            if number is not None and (number, peer) not in rounds:
                rounds.add((number, peer))
                late[peer] += 1
    return [
        f"{counted(count, 'round')} of {len(story.times)} were closed without peer {peer}, which "
        "was late."
        for peer, count in late.most_common()
        if count > len(story.times) / 10
    ]


# --- a peer ---------------------------------------------------------------------------------------


def of_peer(story: Story, peer: int) -> list[str]:
    reader = story.reader
    row = reader.view.rows[peer]
    known = row.figures
    place = story.stages.get(peer)
    where = "" if place is None else f", of {place.in_words}"
    where += f", {place.name} in the plan" if place is not None and place.name else ""
    done = counted(row.step * reader.view.local_steps, "step")
    lines = [f"Peer {peer}{where}: {row.state}, {done} done, trust {row.trust:.2f}."]
    if row.lie:
        lines.append(f"The fault plan makes it Byzantine: {row.lie}.")
    if known.participation is not None:
        lines.append(
            f"Its update is in {known.contributed} of {counted(known.rounds, 'round')} since its "
            f"first ({known.participation:.0%})."
        )
    if late := known.late_share(reader.view.round):
        lines.append(f"Of the last rounds {late:.0%} were closed without it: it was late.")
    lines += _compared(story)
    lines.append(f"It has served {counted(story.served, 'round')}.")
    refused = [
        event
        for event in select(story.events, events.Attempt)
        if f"of {peer} is refused" in _why(event)
    ]
    if refused:
        lines.append("Results of it were refused:")
        lines += [f"  {why}" for why in _folded_reasons(refused)]
    if known.usage is not None:
        lines.append(
            f"Its processes have used {known.usage.cpu_s:.0f} s of processor time, hold "
            f"{bytes_word(known.usage.memory)}, and have sent {bytes_word(known.usage.sent_bytes)}."
        )
    happened = _time_line(story, peer)
    if len(happened) > LINES_MAX:
        half = LINES_MAX // 2
        left_out = f"        ({len(happened) - LINES_MAX} more)"
        happened = [*happened[:half], left_out, *happened[-half:]]
    return [*lines, *(["", "What happened to it:"] if happened else []), *happened]


def _compared(story: Story) -> list[str]:
    """Its updates beside those of the others."""
    if not story.own:
        return []
    lines = []
    times = [
        (own, other)
        for (_, own), (_, other) in zip(story.own, story.others, strict=True)
        if own and other
    ]
    if times:
        own, other = (median(column) for column in zip(*times, strict=True))
        lines.append(
            f"It needed {_ms(own)} for an update in the median, where the others needed "
            f"{_ms(other)}."
        )
    far = median(far for far, _ in story.own)
    usual = median(far for far, _ in story.others)
    lines.append(
        f"Its updates lay {_times_far(far)} as far out as is typical in the median, those of the "
        f"others {_times_far(usual)}."
    )
    return lines


def _times_far(far: float) -> str:
    return "over 1000 times" if far > 1000 else f"{far:.2g} times"


def _time_line(story: Story, peer: int) -> list[str]:
    """Line by line, in order; what several peers tell at once is one line."""
    lines: list[str] = []
    skips: list[events.Skip] = []
    told: set[str] = set()
    for event in story.events:
        if isinstance(event, events.Skip) and event.subject == peer:
            if skips and event.t - skips[-1].t > TOGETHER_S:
                lines += _skipped(story, skips)
                skips = []
            skips.append(event)
            continue
        text = _of_peer(event, peer)
        if text and text not in told:  # others tell the same of the same round
            if skips:
                lines += _skipped(story, skips)
                skips = []
            told.add(text)
            lines.append(f"  {story.at(event.t):>6}  {text}")
    return [*lines, *(_skipped(story, skips) if skips else [])]


def _skipped(story: Story, skips: Sequence[events.Skip]) -> list[str]:
    who = numbers(event.peer for event in skips)
    reasons = Counter(map(_why, skips)).most_common()
    why = "; ".join(WHY_SKIPPED.get(reason, reason) for reason, _ in reasons)
    at = story.at(skips[0].t)
    return [f"  {at:>6}  Round {skips[0].round}: skipped by {who}: {why}."]


def _of_peer(event: Event, peer: int) -> str:
    """Return what an event reports about a peer; an empty text: nothing."""
    if isinstance(event, SubjectEvent) and event.subject == peer:
        text = _describe_subject_event(event)
    else:
        text = _describe_own_event(event) if event.peer == peer else ""
    return f"Round {event.round}: {text}" if text[:1].islower() else text


def _alive(event: events.Paused | events.Resumed) -> str:
    """Peers by name; older runs have only their number."""
    return named(event.alive) if isinstance(event.alive, list) else f"{event.alive} peers"


def _describe_subject_event(event: SubjectEvent) -> str:
    """Return what an event reports about its subject, as the end of a sentence on its round."""
    match event:
        case Judgement():
            return _describe_judgement(event)
        case events.Share():
            share, was = event.share or 0.0, event.was or 0.0
            why = "slower than most, or away" if share < was else "quick enough for more"
            return f"it gets {share:.0%} of a whole batch ({why})."
        case events.UnlikeProfile():
            return f"it {describe_unlike_profile(event)}."
        case events.PassedOver():
            return "it serves no more for a while, as its results did not come."
        case events.ServesAgain():
            return "it serves again."
        case events.Dead():
            return f"held for dead ({_why(event)})."
    return ""


def _describe_judgement(event: Judgement) -> str:
    because = f": {'; '.join(event.reasons)}" if event.reasons else ""
    score = "trust unknown" if event.trust is None else f"trust {event.trust:.2f}"
    match event:
        case events.Suspected():
            return f"suspected, {score}{because}."
        case events.Quarantined():
            return f"quarantined, {score}{because}. Its updates are not used."
        case events.Parole():
            return "on parole. Its updates are used again, and watched."
        case events.Trusted():
            return f"trusted again, {score}."
    return ""


def _describe_own_event(event: Event) -> str:
    """Return a sentence on what an event reports about its peer, or the end of one on its round."""
    match event:
        case events.Spawned() if event.incarnation:
            return f"Started again, as incarnation {event.incarnation}."
        case events.Fault():
            return f"the fault {text_of(event.fault)} struck it."
        case events.Exited():
            return f"Its process ended: {text_of(event.how)}."
        case events.Recovering():
            return f"It asked for the state of the others: {_why(event)}."
        case events.Restored():
            return f"It took the state of round {event.round} from peer {event.from_}."
        case events.Divergence() if event.peers_differ:
            return f"It {divergence.describe(event)}."
        case events.StageRebuilt():
            return f"It made the state of its stage anew: {describe_rebuilt_stage(event)}."
        case events.Error():
            return f"Error: {text_of(event.message)}."
        case events.Restarting():
            return f"Its launcher starts it again: {text_of(event.why)}."
    return _describe_quorum_event(event)


def _describe_quorum_event(event: Event) -> str:
    match event:
        case events.Paused():
            return f"it paused, with {_alive(event)} alive where {event.need} are needed."
        case events.Resumed():
            return f"It went on, with {_alive(event)} alive."
        case events.MinorityContinues():
            return "it went on with fewer than a majority."
    return ""


# --- a round --------------------------------------------------------------------------------------


def of_round(story: Story, number: int) -> list[str]:
    stages = sorted(stage for stage, at in story.kept if at == number)
    lines = [] if stages else [f"Round {number} has no commit here."]
    for stage in stages:
        commit, before = story.kept[stage, number], story.kept.get((stage, number - 1))
        served = f"served by peer {commit.server}"
        again = f" at attempt {commit.made_at}" if commit.made_at else ""
        of = f" of stage {stage}" if story.stages else ""
        lines.append(f"Round {number}{of}: {served}{again}, committed at {story.at(commit.t)}.")
        lines += _time_of_round(time_of(commit, before), commit)
        lines += _updates_of(commit, before)
    if stages:
        lines += [f"Peer {peer} was in quarantine." for peer in _quarantined(story, number)]
    lines += _of_round(story, number)
    return lines


def _time_of_round(time: RoundTime, commit: CommitRow) -> list[str]:
    if time.took is None:
        return ["How long it took is not known: the commit of the round before is not here."]
    lines = [f"It took {_ms(time.took)} from the commit before to its own."]
    if time.slowest is not None:
        took = [each.update_s for each in commit.contributors if each.update_s]
        peer, longest = time.slowest
        lines.append(
            f"Its slowest contributor, peer {peer}, needed {_ms(longest)} for its update; the "
            f"median is {_ms(median(took))}."
            if longest <= time.took
            else f"All steps of a round would take its slowest contributor, peer {peer}, "
            f"{_ms(longest)}: it took fewer. The median is {_ms(median(took))}."
        )
    if time.rule is not None:
        lines.append(f"The rule took {_ms(time.rule)}.")
    if time.rest is not None:
        lines.append(
            f"The rest, {_ms(time.rest)}, went into sending updates and the result, waiting and "
            "applying."
        )
    return lines


def _updates_of(commit: CommitRow, before: CommitRow | None) -> list[str]:
    """Return the lines about the updates of a commit: those in it and those left out."""
    used = [each.peer for each in commit.contributors if each.weight]
    left_out = [each for each in commit.contributors if not each.weight]
    lines = [f"Its result is made of the updates of {numbers(used) or 'nobody'}."]
    lines += [
        f"The update of peer {each.peer} came and got no weight: it lay "
        f"{_times_far(each.outlyingness)} as far out as is typical."
        for each in left_out
    ]
    for peer, reason in sorted((each.peer, text_of(each.reason) or "") for each in commit.rejected):
        if reason == "skipped":
            lines.append(
                f"Peer {peer} skipped its samples: its script went on without a step, or its "
                "gradients overflowed."
            )
        elif reason != "quarantined":  # events tell of that
            lines.append(f"The update of peer {peer} was rejected: {reason.replace('_', ' ')}.")
    there = {each.peer for each in commit.contributors}.union(each.peer for each in commit.rejected)
    if before is not None and (missing := set(before.roster) - there):
        lines.append(f"Of the roster there is no update of {numbers(missing)} in it.")
    if commit.reason:
        lines.append(f"It changed nothing: {text_of(commit.reason)}.")
    if commit.loss is not None:
        lines.append(f"The loss was {commit.loss:.4g}.")
    if before is not None and (came := set(commit.roster) - set(before.roster)):
        take = "takes" if len(came) == 1 else "take"
        lines.append(f"From the next round on {named(came)} {take} part, too.")
    if before is not None and (went := set(before.roster) - set(commit.roster)):
        take = "takes" if len(went) == 1 else "take"
        lines.append(f"From the next round on {named(went)} {take} no part.")
    return lines


def _quarantined(story: Story, number: int) -> list[int]:
    """Return the peers that were in quarantine before the round."""
    locked: set[int] = set()
    for event in select(story.events, events.Quarantined, events.Parole, events.Trusted):
        if event.round is None or event.round >= number:
            continue
        if isinstance(event, events.Quarantined):
            locked.add(event.subject)
        else:
            locked.discard(event.subject)
    return sorted(locked)


def _of_round(story: Story, number: int) -> list[str]:
    """Return what events tell about the round; the same of several peers once."""
    lines: list[str] = []
    for event in story.events:
        if event.round == number and (line := _event_of_round(event)) not in ("", *lines):
            lines.append(line)
    return lines


def _event_of_round(event: Event) -> str:
    match event:
        case events.Late():
            waited = f"waited for {numbers(event.missing or ())} until {_ms(event.waited_s or 0.0)}"
            return f"Its server {waited} after the first update, and closed it without."
        case events.Attempt():
            return f"It was handed on to peer {event.server}: {_why(event)}."
        case events.RefusedResult():
            return f"Peer {event.peer} refused a result: {_why(event)}."
        case events.LostRound():
            return f"It changed nothing: {_why(event)}."
        case events.Skip():
            why = WHY_SKIPPED.get(_why(event), _why(event))
            return f"Peer {event.subject} was skipped: {why}."
        case Judgement() | events.Share() | events.UnlikeProfile():
            text = _describe_subject_event(event)
            return f"Peer {event.subject}: {text}" if text else ""
        case events.Fault():
            return f"The fault {text_of(event.fault)} struck peer {event.peer}."
        case events.Paused() | events.MinorityContinues():
            return f"Peer {event.peer}: {_describe_own_event(event)}"
        case events.Restored():
            return f"Peer {event.peer} took the state of this round from peer {event.from_}."
    return ""


def _why(event: Event) -> str:
    return text_of(getattr(event, "reason", None)) or "no reason was told"


def _ms(seconds: float) -> str:
    """``0.8 ms``, ``95 ms``, ``2.1 s``"""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
