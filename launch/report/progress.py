"""Progress of a run: its rounds, the servers of the rounds, and the number of rounds that the
script plans."""

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
from .participation import Participation
from .peer_row import PeerRow

ENDLESS_STEPS = 2**40  # A training loop without an end reports at least this number as its plan.


class ServerTurns:
    """Rounds that needed more than one attempt, or were closed without a late peer.

    Attributes:
        attempts: Reasons for an attempt, with the number of peers that reported each reason, by
            (round, attempt). An earlier server may have committed the round nevertheless.
        refused: Number of results of a server that peers rejected, by server.
        late: (late peers, seconds that the server waited for them) by round.
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
        """Return for each round the reason why another server than the first committed it. This is
        the reason that most peers reported for the first attempt after attempt 0.

        Args:
            handed: (round, attempt that committed the round) of these rounds.
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
        first, round: First and last reported round; ``round`` is -1 before the first report.
        step: Number of completed steps. ``steps``: number of rounds that the script plans; None if
            not known.
        saves_to, saves_every: Folder of checkpoints, and number of rounds between two checkpoints.
            The folder is "" if the script saves none, and None if not known yet.
        server, attempt, alive: Server, attempt and number of live peers of the last round.
        lost: First report about each lost round.
        pauses: Reports of peers that they wait for a quorum.
        reported: (time, round) of the first and of the last report about a round.
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
        """Lowest of the last accuracies that honest, present peers have logged, as in the
        summary."""
        return min(self._values("accuracy"), default=None)

    @property
    def loss(self) -> float | None:
        """Mean of the last losses of honest, present peers, as in the summary."""
        values = self._values("loss")
        return sum(values) / len(values) if values else None

    def _values(self, name: str) -> list[float]:
        rows = [row for row in self._state.rows.values() if not row.lie and row.is_present]
        return [value for row in rows if (value := getattr(row, name)) is not None]

    def finish(self, row: PeerRow, last: int) -> None:
        """Record the last round of a peer that ends. The peer may not have reported it before,
        because not every round has an event."""
        row.step += max(0, last - row.round)
        self.step = max(self.step, row.step)
        row.round = max(row.round, last)
        self.round = max(self.round, last)

    def _on_plan(self, event: events.Plan) -> None:
        """Record the number of rounds and the checkpoints that the script plans. The last report
        counts."""
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
        # A pause in an earlier round does not pause the run: it concerns a single peer that was
        # absent or is cut off.
        self.paused = self.paused or event.round is None or event.round >= self.round
        if self._state.details:
            self.pauses.append(event)

    def _on_resumed(self, event: events.Resumed, row: PeerRow) -> None:
        self.paused, row.pause = False, ""

    def _on_round(self, event: events.Round, row: PeerRow) -> list[str]:
        row.round, row.pause = event.round or 0, ""
        if row.state != "stopped":  # Reports of earlier rounds may arrive later.
            row.state = "training"
        # A logged loss is the peer's own and has priority.
        if event.loss is not None and not row.logs_loss:
            row.loss = event.loss
        row.step = event.step or row.round + 1
        row.pace.stepped(event.t, row.step)
        self.reported[1:] = [(event.t, row.round)]
        self._computed(row, event)
        if row.round > self.round or event.server is None or self._state.stages:
            # All peers, or all peers of a stage, report the same scores about a round with a
            # commit. So the first report is enough.
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
        """Record the participation in the rounds of an event. Only the first report of a round
        counts. Rounds of collective operations are no steps and are ignored. A peer in quarantine
        does not count as missing.

        Rounds without a server are ignored, because their contributors differ between peers. Rounds
        of a pipeline are ignored, because they wait until all work is done.
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
        return self.participation.observe(event.rounds, len(who), alive - kept_out)

    def _may_be_operation(self, round_id: int, step: int | None) -> bool:
        """Whether a round without contributors may be a collective operation. This is so if, since
        the last reported round, there were fewer steps than rounds; or if the report is late, so
        that this is unknown."""
        behind = step is not None and step - self.step < round_id - self.round
        return behind or round_id <= self.round

    def _computed(self, row: PeerRow, event: events.Round) -> None:
        """Record the time that the peer needed for its update, if it contributed to the round."""
        who, took_us = event.contributors, event.took_us
        if took_us is None or who is None:
            return
        at = bisect_left(who, row.peer)  # Contributors are sorted.
        if at == len(who) or who[at] != row.peer:
            return
        if at < len(took_us) and (took := took_us[at]):
            row.pace.computed(event.t, took / 1e6)
