"""Record of a run and of each peer, read from the run's folder while it grows: for ``gossip top``,
``explain`` and ``report``.

Reading is incremental and what is kept is bounded: by the number of peers, and by ``ROUNDS_KEPT``
rounds. Code that needs every commit reads ``RunFiles.commits``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gossip.config import RunConfig
from gossip.errors import GossipError
from gossip.faults import FaultPlan
from gossip.observe import Event, events
from gossip.run import read_file, text_of

from . import notes
from .growing import RunFiles
from .machines import Machines
from .run_model import RunModel
from .run_state import read_known
from .stages import stages_of

ROUNDS_KEPT = 512
RECENT_ROUNDS = 100
"""Number of last rounds over which a peer's share of late rounds is computed."""
HAPPENINGS_KEPT = 500


class ContributionRecord(NamedTuple):
    """Contribution of one peer to a round. A commit has hundreds of them: a tuple is made in a
    quarter of the time that a frozen dataclass takes.

    Attributes:
        weight: Weight of its update in the result; 0: it was left out.
        outlyingness: How far out it was; 1 is typical.
        took_s: Time from the start of the round until its update was there; None: not reported.
    """

    peer: int
    samples: int
    weight: float
    outlyingness: float
    took_s: float | None


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit as its maker has written it down.

    Attributes:
        at: When; seconds since 1970.
        attempt: 0: made by whoever was to serve the round; 1: by the next one, and so on.
        rejected: Peer -> why its update was not taken.
        roster: Of the next round.
        trust: Peer -> trust after the round.
        reason: Why there is no result; "": there is one.
        chain: Hash of the history that ends with it.
        rule_s: From the end of the collecting to the commit; None: its maker has not written it.
        stage: Whose commit it is, in a pipeline.
    """

    at: float
    round: int
    shard: int
    server: int
    attempt: int
    contributors: tuple[ContributionRecord, ...]
    rejected: Mapping[int, str]
    roster: tuple[int, ...]
    loss: float | None
    trust: Mapping[int, float]
    reason: str
    chain: str
    parent: str
    epoch: int | None
    rule_s: float | None = None
    stage: int = 0

    def of(self, peer: int) -> ContributionRecord | None:
        """Return the contribution of a peer; None: there is none."""
        return next((each for each in self.contributors if each.peer == peer), None)


def commit_of(row: Mapping[str, Any]) -> CommitRecord | None:
    """A row of ``commits.jsonl``; None: it is none. ``t``: seconds since 1970."""
    number, server = row.get("round"), row.get("server")
    if number is None or server is None:
        return None
    return CommitRecord(
        at=row["t"],
        round=number,
        shard=row.get("shard") or 0,
        server=server,
        attempt=row.get("made_at") or 0,
        contributors=tuple(
            ContributionRecord(
                each["peer"],
                each.get("samples") or 0,
                each.get("weight") or 0.0,
                each.get("outlyingness") or 0.0,
                took_us / 1e6 if (took_us := each.get("took_us")) else None,
            )
            for each in row.get("contributors") or ()
        ),
        rejected={
            each["peer"]: text_of(each.get("reason")) or "" for each in row.get("rejected") or ()
        },
        roster=tuple(row.get("roster") or ()),
        loss=row.get("loss"),
        trust={
            int(peer): score
            for peer, score in (row.get("trust") or {}).items()
            if score is not None
        },
        reason=text_of(row.get("reason")) or "",
        chain=text_of(row.get("chain")) or "",
        parent=text_of(row.get("parent")) or "",
        epoch=row.get("epoch"),
        rule_s=rule_ms / 1000 if (rule_ms := row.get("rule_ms")) is not None else None,
        stage=row.get("stage") or 0,
    )


@dataclass(slots=True)
class PeerRecord:
    """Figures of one peer that are not in its ``PeerRow``.

    Attributes:
        rounds: Committed rounds since it was in a roster for the first time.
        contributed: Of these, rounds whose result has its update, with a weight or without.
        late_rounds: Rounds that were closed without it after a grace period, among the last
            ``RECENT_ROUNDS`` of which it was in the roster.
        served: Commits that it has made.
        usage: Last usage that it has reported; ``usage_before``: the usage reported before that.
        last_at: Time of its own last report; seconds since 1970.
        skipped_for: Reason why it was skipped the last time.
    """

    peer: int
    rounds: int = 0
    contributed: int = 0
    served: int = 0
    usage: events.Usage | None = None
    usage_before: events.Usage | None = None
    last_at: float = 0.0
    skipped_for: str = ""
    late_rounds: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))

    @property
    def participation(self) -> float | None:
        """Share of the rounds to which it has contributed; None: there was none."""
        return self.contributed / self.rounds if self.rounds else None

    def late_share(self, last_round: int) -> float | None:
        """Share of the last rounds that were closed without it; None: there was none."""
        count = min(self.rounds, RECENT_ROUNDS)
        late = sum(number > last_round - RECENT_ROUNDS for number in self.late_rounds)
        return min(1.0, late / count) if count else None

    def cpu(self) -> float | None:
        """Processors that it kept busy between the last two times that it told; None: unknown."""
        now, before = self.usage, self.usage_before
        if now is None or before is None or now.t <= before.t or now.cpu_s < before.cpu_s:
            return None
        return (now.cpu_s - before.cpu_s) / (now.t - before.t)


@dataclass(frozen=True, slots=True)
class Happening:
    """A line that is worth telling, as ``RunModel`` words it. ``at``: seconds since 1970."""

    at: float
    text: str


class RunRecord:
    """The state of a run, by its folder. Nothing is read before ``update`` is called.

    Attributes:
        config: Of the run; None: it cannot be read.
        view: Of the run and its peers, by what the launchers have told. Its times are seconds
            since 1970.
        peers: What is known of each peer beside that.
        commits: The last ones, one a round and stage, of the first shard: of two branches the one
            that was written down later.
        happenings: The last ones; ``happened``: how many there were.
        notes: What people have noted, in the order of the file.
        began: When the first event was; None: there is none.
        last_at: When the last event or commit was.
        broken: A line on each file that is none of a run's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = RunFiles(folder)
        self._unreadable: list[str] = []
        self.config = self._load_config()
        self.view = (
            RunModel(
                self.config.peers, self._plan(), self.config.steps_per_round, stages_of(self.config)
            )
            if self.config
            else RunModel(0)
        )
        self.peers: dict[int, PeerRecord] = {}
        self.commits: deque[CommitRecord] = deque(maxlen=ROUNDS_KEPT)
        self.happenings: deque[Happening] = deque(maxlen=HAPPENINGS_KEPT)
        self.happened = 0
        self.notes: list[notes.Note] = []
        self.view.machines = Machines(self.object("environment.json"))
        self.began: float | None = None
        self.last_at = 0.0

    @property
    def broken(self) -> list[str]:
        return [*self._unreadable, *self.files.broken]

    def object(self, name: str) -> dict[str, Any]:
        """A file of the folder that is one JSON object, as ``summary.json``; {}: there is none, or
        it cannot be read."""
        return read_known(self.folder, name, self._unreadable) or {}

    def of(self, peer: int) -> PeerRecord:
        """Return the record of a peer; make one for a new peer."""
        known = self.peers.get(peer)
        if known is None:
            known = self.peers[peer] = PeerRecord(peer)
        return known

    def update(
        self,
        event_taken: Callable[[Event], None] | None = None,
        commit_taken: Callable[[CommitRecord], None] | None = None,
    ) -> None:
        """Reads what has come since the last time. Who looks on gets each event, and each commit of
        a round that was not known before, once it is taken in."""
        for row in self.files.notes():
            if len(self.notes) < notes.NOTES_MAX and (note := notes.note_of(row)) is not None:
                self.notes.append(note)
        for event in self.files.events():
            self._record_event(event)
            if event_taken is not None:
                event_taken(event)
        for row in self.files.commits():
            commit = commit_of(row)
            if commit is None or commit.shard or not self._record_commit(commit):
                continue
            if commit_taken is not None:
                commit_taken(commit)

    def _load_config(self) -> RunConfig | None:
        try:
            return RunConfig.load(path := self.folder / "config.json", read_file(path))
        except GossipError as error:
            self._unreadable.append(str(error))
            return None

    def _plan(self) -> FaultPlan:
        try:
            return self.config.plan if self.config else FaultPlan()
        except GossipError as error:
            self._unreadable.append(str(error))
            return FaultPlan()

    def _record_event(self, event: Event) -> None:
        at, peer = event.t, event.peer
        if self.began is None or at < self.began:
            self.began = at
        if at > self.last_at:
            self.last_at = at
        if peer is None:
            return
        row = self.view.rows.get(peer)
        if row is None:
            self.view.expect(peer)
        elif row.state == "elsewhere":
            row.state = "starting"  # it was only spoken of until now
        if lines := self.view.apply(event):  # of most rows there is nothing to tell
            self.happenings.extend(Happening(at, line) for line in lines)
            self.happened += len(lines)
        self._count(peer, event)

    def _count(self, peer: int, event: Event) -> None:
        known = self.of(peer)
        known.last_at = max(known.last_at, event.t)
        match event:
            case events.Late() if event.round is not None:
                for missing in event.missing or ():
                    seen = self.of(missing).late_rounds
                    if not seen or seen[-1] != event.round:
                        seen.append(event.round)
            case events.Usage():
                known.usage_before, known.usage = known.usage, event
            case events.Skip():
                self.of(event.subject).skipped_for = text_of(event.reason) or ""
            case events.Halted() if event.exit_code:
                # with a launcher, its own row reports the same in a moment
                row = self.view.rows[peer]
                row.state, row.exit = "gone", text_of(event.reason) or ""

    def _record_commit(self, commit: CommitRecord) -> bool:
        """Whether it is the first of its round and stage."""
        self.last_at = max(self.last_at, commit.at)
        if self._replaces(commit):
            return False
        self.commits.append(commit)
        contributed = {each.peer for each in commit.contributors}
        self.of(commit.server).served += 1
        for peer in contributed.union(commit.roster):
            self.of(peer)
        for known in self.peers.values():
            place = self.view.stages.get(known.peer)
            if place is not None and place.number != commit.stage:
                continue  # it is no round of that peer
            known.contributed += known.peer in contributed
            known.rounds += bool(known.rounds) or known.peer in contributed
        return True

    def _replaces(self, commit: CommitRecord) -> bool:
        """Whether it is the second of its round, and has taken the place of the first."""
        for place in range(len(self.commits) - 1, -1, -1):
            if self.commits[place].stage != commit.stage:
                continue
            if self.commits[place].round == commit.round:
                self.commits[place] = commit
                return True
            if self.commits[place].round < commit.round:
                return False
        return False
