"""Model of a run. Only the model reads events; tables, screens, pages and trackers read the parts
of the model."""

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
from .words import at_round

NO_FAULTS = FaultPlan()
COMMITS_KEPT = 512


class RunModel:
    """State of a whole run. ``apply`` takes the events in the order in which they arrive.

    Each part of the model applies the events about its subject, and may return lines to print; an
    empty list means to print nothing. If every part returns None, the sentence for this kind of
    event is printed, if there is one (``sentences``).

    Args:
        peers: Ids of the peers, or their number if the ids are 0, 1 and so on. Only events from
            these peers are applied. Other peers can only be subjects of events.
        local_steps: Number of local steps in a round. Events contain numbers of rounds, but printed
            lines contain numbers of steps.
        stages: Stage of each peer of a pipeline. In a pipeline every stage has its own commit of a
            round, and a peer reports about its own stage.
        details: Whether to keep all silences, pauses, further attempts and late rounds, which
            reports need. A launcher keeps none of them, because a long run has too many.
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
        # one commit for each round and stage
        self.commits: deque[CommitRow] = deque(maxlen=COMMITS_KEPT)
        self.began: float | None = None  # earliest time of an event
        self.last_at = 0.0
        state = ModelState(self.rows, self.stages, details)
        self.machines, self._speaker = state.machines, state.speaker
        self.holders, self.trust = StateHolders(), TrustRecord()
        self.turns, self.epochs = ServerTurns(), Epochs()
        self.progress = RoundProgress(state)
        self.failures = Failures(state, self.progress)
        self.lives = Lives(state, self.progress, self.failures)
        # Some attributes are no parts, but no handler belongs to their types.
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
        """Apply one event. Return the lines to print about it, without time or colour. Most events
        have none."""
        row, t = None if event.peer is None else self.rows.get(event.peer), event.t
        if t and (self.began is None or t < self.began):
            self.began = t
        if t > self.last_at:  # not max(), which is slower: this runs for each event
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
        """Apply an event from the files of the run, as ``apply`` does. The peer that wrote the
        event is added to the peers of the run."""
        if event.peer is not None:
            row = self.rows.get(event.peer)
            if row is None:
                self.expect(event.peer)
            elif row.state == "elsewhere":
                row.state = "starting"
        lines = self.apply(event)
        if isinstance(event, events.Exited) and event.code and not (event.stopping or lines):
            # The launcher printed this error at that time, but no event has a sentence for it.
            row = self.rows[event.peer]
            lines = [f"x peer {row.peer} ended {at_round(row.round + 1)} ({row.exit})"]
        if isinstance(event, events.Halted) and event.exit_code:
            # Without a launcher, no other event reports that the process failed.
            row = self.rows[event.peer]
            row.state, row.exit = "gone", row.exit or text_of(event.reason) or ""
        return lines

    def apply_commit(self, commit: CommitRow) -> bool:
        """Apply a commit. Return whether it is the first commit of its round and stage. If two
        branches have commits of the same round, the later record replaces the earlier one. Shards
        other than the first are ignored."""
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
        """Replace an earlier commit of the same round and stage. Return whether there was one. The
        commits of a stage arrive in the order of their rounds, except after a fork, so the search
        ends at an earlier round."""
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
"""Parts of the model, in the order in which they apply an event."""
Handler: TypeAlias = tuple[type, Callable[..., list[str] | None], int]
"""Part of the model, its method for a kind of event, and the number of peer rows that the method
takes. The first is the row of the peer that wrote the event, the second that of its subject."""


def _handlers(part: type) -> Iterator[tuple[str, Handler]]:
    """Yield the name of each kind of event that a part applies, with its method ``_on_...``. The
    annotation of the parameter ``event`` names the kinds. All other parameters are rows."""
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
