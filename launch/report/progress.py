"""Progress of a run: its rounds, their servers, and the plan of its script."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import PurePath

from gossip.observe import events
from gossip.run import shown

from .model_state import ModelState
from .pace import StepPace
from .participation import Participation, low_participation
from .peer_row import PeerRow

ENDLESS_STEPS = 2**40  # The plan of a training loop without an end.


class ServerTurns:
    """Rounds that went to further servers, or were closed without a peer.

    Attributes:
        attempts: (round, attempt) -> reasons for the attempt, and the number of peers that reported
            each. The round may have been committed by an earlier server nevertheless.
        refused: Server -> number of its results that peers refused.
        late: Round -> (late peers, seconds that the server waited for them).
    """

    def __init__(self) -> None:
        self.attempts: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
        self.refused: Counter[int] = Counter()
        self.late: dict[int, tuple[tuple[int, ...], float]] = {}

    def _on_attempt(self, event: events.Attempt) -> None:
        if event.round is not None:
            self.attempts[event.round, event.attempt or 0][shown(event.reason)] += 1

    def _on_refused(self, event: events.RefusedResult) -> None:
        if event.server is not None:
            self.refused[event.server] += 1

    def _on_closed_without(self, event: events.Late) -> None:
        if event.round is not None:
            missing = tuple(event.missing or ())
            self.late.setdefault(event.round, (missing, event.waited_s or 0.0))

    def reasons_of(self, handed: Iterable[tuple[int, int]]) -> dict[int, str]:
        """Return for each round the reason why another server than the first committed it: the
        reason that most peers reported for its first attempt after attempt 0.

        Args:
            handed: Rounds, each with the attempt that committed it.
        """
        earliest = {number: turn for number, turn in sorted(self.attempts, reverse=True) if turn}
        found = {}
        for round_id, made_at in handed:
            turn = earliest.get(round_id, made_at + 1)
            reasons = self.attempts.get((round_id, turn)) if turn <= made_at else None
            found[round_id] = reasons.most_common(1)[0][0] if reasons else "no reason was reported"
        return found


class RoundProgress:
    """Rounds of a run, as its peers report them.

    Attributes:
        first, round: First and last reported round; ``round`` is -1 before.
        step: Number of completed steps. ``steps``: planned rounds of the run, if its script set
            them.
        saves_to, saves_every: Folder of checkpoints, and rounds between two. "" if the script saves
            none; None if not known yet.
        server, attempt, alive: Values of the last round.
        lost: Lost rounds, as the first peer reports each.
        pauses: Reports of peers that wait for a quorum.
        reported: Time and number of the first reported round, and of the last one.
    """

    def __init__(self, state: ModelState) -> None:
        self._state = state
        self.round, self.step = -1, 0
        self.first: int | None = None
        self.steps: int | None = None
        self.saves_to: str | None = None
        self.saves_every: int | None = None
        self.pace = StepPace()
        self.paused = False
        self.server: int | None = None
        self.attempt = self.alive = 0
        self.participation = Participation()
        self.lost: dict[int, events.LostRound] = {}
        self.pauses: list[events.Paused] = []
        self.reported: list[tuple[float, int]] = []

    @property
    def accuracy(self) -> float | None:
        """Lowest of the last accuracies of honest running peers, as in the summary."""
        return min(self._values("accuracy"), default=None)

    @property
    def loss(self) -> float | None:
        """Mean of the last loss of honest running peers, as in the summary."""
        values = self._values("loss")
        return sum(values) / len(values) if values else None

    def _values(self, name: str) -> list[float]:
        rows = [row for row in self._state.rows.values() if not row.lie and row.state != "gone"]
        return [value for row in rows if (value := getattr(row, name)) is not None]

    @property
    def rate(self) -> float | None:
        """Rounds a second between the first report and the last; None if not known."""
        if len(self.reported) < 2:
            return None
        (began, first), (ended, last) = self.reported
        return (last - first) / (ended - began) if ended > began else None

    def finish(self, row: PeerRow, last: int) -> None:
        """Record the last round of a peer. Events of rounds are throttled, so the peer may not have
        reported it before."""
        row.step += max(0, last - row.round)
        self.step = max(self.step, row.step)
        row.round = max(row.round, last)
        self.round = max(self.round, last)

    def _on_plan(self, event: events.Plan) -> None:
        """Record the plan of the script, in rounds. The last report counts."""
        if isinstance(event.steps, int) and 0 < event.steps < ENDLESS_STEPS:
            self.steps = event.steps
        folder = str(event.folder or "")
        in_stage = self._state.stages and re.fullmatch(r"stage-\d+", PurePath(folder).name)
        self.saves_to = str(PurePath(folder).parent) if in_stage else folder
        self.saves_every = event.every if isinstance(event.every, int) else None

    def _on_metrics(self, event: events.Metrics, row: PeerRow) -> None:
        if event.loss is not None:
            row.loss, row.logs_loss = event.loss, True
        if event.accuracy is not None:
            row.accuracy = event.accuracy

    def _on_closed_without(self, event: events.Late) -> None:
        for missing in map(self._state.rows.get, event.missing or ()):
            if missing is not None and event.round is not None:
                missing.figures.record_late(event.round)

    def _on_lost_round(self, event: events.LostRound) -> list[str] | None:
        if event.round is None or event.round in self.lost:
            return []
        self.lost[event.round] = event
        return None

    def _on_paused(self, event: events.Paused, row: PeerRow) -> None:
        row.pause = self._state.speaker.format(
            "since round {round}: alive are {alive}, a round needs {need} {why}", event
        )
        # A pause in an earlier round belongs to a single peer that was absent or is cut off.
        self.paused = self.paused or event.round is None or event.round >= self.round
        if self._state.details:
            self.pauses.append(event)

    def _on_resumed(self, event: events.Resumed, row: PeerRow) -> None:
        self.paused, row.pause = False, ""

    def _on_round(self, event: events.Round, row: PeerRow) -> list[str]:
        row.round, row.pause = event.round or 0, ""
        if row.state != "stopped":  # Reports of earlier rounds may arrive later.
            row.state = "training"
        if event.loss is not None and not row.logs_loss:  # A logged loss is the peer's own.
            row.loss = event.loss
        row.step = event.step or row.round + 1
        row.pace.stepped(event.t, row.step)
        self.reported[1:] = [(event.t, row.round)]
        self._computed(row, event)
        if row.round > self.round or event.server is None or self._state.stages:
            # All peers, or all of a stage, report the same about a round with a commit.
            for peer, score in event.scores.items():
                if peer in self._state.rows:
                    self._state.rows[peer].trust = score
        told = self._record_participation(row.round, event)
        first = event.rounds.start
        self.first = first if self.first is None else min(self.first, first)
        if row.round >= self.round:
            self._record_newest(row, event)
        return told

    def _record_newest(self, row: PeerRow, event: events.Round) -> None:
        self.round, self.server, self.attempt = row.round, event.server, event.attempt or 0
        self.paused = False
        if row.step > self.step:
            self.step = row.step
            self.pace.stepped(event.t, row.step)
        self.alive = event.alive_count or 0
        if self._state.stages:
            self.alive = sum(each.state == "training" for each in self._state.rows.values())

    def _record_participation(self, round_id: int, event: events.Round) -> list[str]:
        """Record the participation in the rounds of an event. The first report of a round counts.
        Collective operations are not steps. A peer in quarantine does not count as missing.

        In gossip rounds, which have no server, contributors differ from peer to peer. In a pipeline
        a round waits until all its work is done. Neither counts.
        """
        who, alive = event.contributors, event.alive
        if self._state.stages or event.server is None or who is None or not isinstance(alive, int):
            return []
        if not who and self._may_be_operation(round_id, event.step):
            return []
        kept_out = sum(
            row.quarantined and row.state != "gone" and row.peer not in who
            for row in self._state.rows.values()
        )
        found = self.participation.observe(event.rounds, len(who), alive - kept_out)
        return [low_participation(window) for window in found]

    def _may_be_operation(self, round_id: int, step: int | None) -> bool:
        """Whether rounds without contributors may be collective operations: since the last reported
        round there are fewer steps than rounds, or the report is late."""
        behind = step is not None and step - self.step < round_id - self.round
        return behind or round_id <= self.round

    def _computed(self, row: PeerRow, event: events.Round) -> None:
        """Record the time that the peer needed for its update, if it has contributed one."""
        who, took_us = event.contributors, event.took_us
        if took_us is None or who is None:
            return
        at = bisect_left(who, row.peer)  # The contributors of a commit are in order.
        if at == len(who) or who[at] != row.peer:
            return
        if at < len(took_us) and (took := took_us[at]):
            row.pace.computed(event.t, took / 1e6)
