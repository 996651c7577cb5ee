"""Model of a run, which alone reads its events. Tables, screens, pages and trackers read its
parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from gossip.faults import FaultPlan
from gossip.observe import CommitRow, Event, Judgement, SubjectEvent, events
from gossip.run import text_of

from .epochs import Epochs
from .failures import Failures
from .holders import StateHolders
from .lives import Lives
from .model_state import ModelState
from .peer_row import PeerRow
from .progress import RoundProgress, ServerTurns
from .stages import PeerStage
from .trust_record import TrustRecord

NO_FAULTS = FaultPlan()
COMMITS_KEPT = 512


class RunModel:
    """State of a whole run. ``apply`` takes the events in the order in which they arrive.

    Each part applies the events of its subject, and may return the lines to print about them.
    Without such lines, the event's sentence is printed, if it has one (``sentences``).

    Args:
        peers: Ids of the peers, or their number; the ids begin at 0 then. Only events of these
            peers are applied. Other peers appear only as subjects of events.
        local_steps: Local steps in a round. Events count rounds, printed lines steps.
        stages: Stage of each peer of a pipeline. There a round is one round of each stage, and a
            peer reports about its stage.
        details: Whether to keep each silence, pause, state transfer, further attempt and late
            round, as pages need. A launcher keeps none: a long run has too many.
    """

    def __init__(
        self,
        peers: int | Iterable[int],
        plan: FaultPlan = NO_FAULTS,
        local_steps: int = 1,
        stages: Mapping[int, PeerStage] | None = None,
        details: bool = False,
    ) -> None:
        self.local_steps, self.stages = local_steps, stages or {}
        self.rows = {
            peer: PeerRow(peer) for peer in (range(peers) if isinstance(peers, int) else peers)
        }
        for peer in plan.byzantine:
            self._subject(peer).lie = "+".join(plan.attack_kinds(peer))
        self.commits: deque[CommitRow] = deque(maxlen=COMMITS_KEPT)  # one a round and stage
        self.began: float | None = None  # first time of an event
        self.last_at = 0.0
        state = ModelState(self.rows, self.stages, details)
        self.machines, self._speaker = state.machines, state.speaker
        self.holders, self.trust = StateHolders(), TrustRecord()
        self.turns, self.epochs = ServerTurns(), Epochs()
        self.progress = RoundProgress(state)
        self.failures = Failures(state, self.progress)
        self.lives = Lives(state, self.progress, self.failures)
        parts = {type(part): part for part in (*vars(self).values(), self)}
        if not details:
            del parts[ServerTurns]
        self._handlers = {
            kind: [
                (partial(method, parts[part]), rows)
                for part, method, rows in found
                if part in parts
            ]
            for kind, found in HANDLERS.items()
        }

    def expect(self, peer: int) -> None:
        """Add a peer, so that its events are applied."""
        self.rows[peer] = PeerRow(peer)

    def _subject(self, peer: int) -> PeerRow:
        """Return the row of the subject of an event."""
        return self.rows.setdefault(peer, PeerRow(peer, state="elsewhere"))

    def apply(self, event: Event) -> list[str]:
        """Apply one event. Return the lines to print, without time or colour; usually none."""
        row, t = None if event.peer is None else self.rows.get(event.peer), event.t
        if t and (self.began is None or t < self.began):
            self.began = t
        if t > self.last_at:  # This runs for each event, and max() is slower.
            self.last_at = t
        rows: tuple[PeerRow, ...] = ()
        if row is not None:
            if t > row.figures.last_at:
                row.figures.last_at = t
            rows = (row,)
        elif event.peer is not None:
            return []
        if isinstance(event, SubjectEvent):
            subject = self._subject(event.subject)
            if isinstance(event, Judgement) and not subject.is_news(event):
                return []
            rows = (*rows, subject)
        told = [
            lines
            for handler, needs in self._handlers.get(type(event), ())
            if needs <= len(rows) and (lines := handler(event, *rows[:needs])) is not None
        ]
        if told or row is None:
            return [line for lines in told for line in lines]
        return self._speaker.render(event)

    def apply_recorded(self, event: Event) -> list[str]:
        """Apply an event from the files of the run, as ``apply`` does. Its writer is added to the
        run's peers."""
        if event.peer is not None:
            row = self.rows.get(event.peer)
            if row is None:
                self.expect(event.peer)
            elif row.state == "elsewhere":
                row.state = "starting"
        lines = self.apply(event)
        if isinstance(event, events.Halted) and event.exit_code:
            # With a launcher, the launcher's own event reports how the process ended.
            row = self.rows[event.peer]
            row.state, row.exit = "gone", row.exit or text_of(event.reason) or ""
        return lines

    def apply_commit(self, commit: CommitRow) -> bool:
        """Apply a commit. Return whether it is the first of its round and stage. If two branches
        have commits of a round, the later record counts. Shards beyond the first are ignored."""
        if commit.shard:
            return False
        self.last_at = max(self.last_at, commit.t)
        if self._replaces_commit(commit):
            return False
        self.commits.append(commit)
        contributed = commit.peers
        self._subject(commit.server).figures.served += 1
        for peer in contributed.union(commit.roster):
            self._subject(peer)
        for row in self.rows.values():
            place = self.stages.get(row.peer)
            if place is None or place.number == commit.stage:
                row.figures.record_commit(row.peer in contributed)
        return True

    def _replaces_commit(self, commit: CommitRow) -> bool:
        """Replace an earlier commit of the round and stage. Return whether there was one."""
        for place in range(len(self.commits) - 1, -1, -1):
            if self.commits[place].stage != commit.stage:
                continue
            if self.commits[place].round == commit.round:
                self.commits[place] = commit
                return True
            if self.commits[place].round < commit.round:
                return False
        return False


PARTS = (RunModel, StateHolders, RoundProgress, ServerTurns, Lives, Failures, TrustRecord, Epochs)
"""Parts of the model that apply events, in this order."""
Handler: TypeAlias = tuple[type, Callable[..., list[str] | None], int]
"""A part, its method for a kind of event, and the number of rows of peers that the method needs: of
the writer, and of the subject."""


def _handlers(part: type) -> Iterator[tuple[str, Handler]]:
    """Yield each kind of event with the method ``_on_...`` of a part that applies it. The type of
    the parameter ``event`` names the kind."""
    for name, method in vars(part).items():
        if name.startswith("_on_"):
            types = method.__annotations__
            for kind in types["event"].split(" | "):
                yield kind.removeprefix("events."), (part, method, len(types) - 2)


def _by_kind() -> dict[type[Event], list[Handler]]:
    found: dict[type[Event], list[Handler]] = {}
    for part in PARTS:
        for name, handler in _handlers(part):
            kinds = Judgement.__subclasses__() if name == "Judgement" else [getattr(events, name)]
            for kind in kinds:
                found.setdefault(kind, []).append(handler)
    return found


HANDLERS = _by_kind()
