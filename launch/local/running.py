"""A run in progress: state that the parts of its supervisor share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gossip.config import RunConfig
from gossip.launch.report import RunModel, Screen, at_round, stages_of
from gossip.observe import Event, Row, events, read_event
from gossip.run import JsonLines, Logbook, WriteFailures, shown

from .awaiting import INSECURE, INSECURE_EVERY_S
from .outcome import RunOutcome


class RunRecords:
    """Records of a run. Each event is written, applied to the model, and printed.

    Args:
        peers: First peers of the model.
        relays: Whether another launcher prints the events, and lines about lasting conditions.

    Attributes:
        stop: Set when the run is asked to end.
    """

    def __init__(
        self,
        config: RunConfig,
        screen: Screen,
        peers: Iterable[int],
        relays: bool = False,
    ) -> None:
        self.screen, self._relays, self.stop = screen, relays, asyncio.Event()
        self.view = RunModel(peers, config.plan, config.steps_per_round, stages_of(config))
        self.outcome = RunOutcome(config, self.view)
        self.troubles = WriteFailures(
            lambda path, why: self.record(events.CannotWrite(path=path, why=why))
        )

    def open(self, folder: Path, files: str = "") -> None:
        """Open the files in the run's folder."""
        self.began = self._warn_at = time.monotonic()
        self._events = JsonLines(folder / f"events{files}.jsonl", "events", self.troubles)
        title = self.outcome.config.name
        self._logbook = Logbook(folder / f"logbook{files}.md", title, self.troubles)

    def close(self) -> None:
        """Record the end, and close the files."""
        outcome = self.outcome
        outcome.wall_s = time.monotonic() - self.began
        progress = self.view.progress
        planned = progress.steps is not None and progress.step >= progress.steps
        for line in self.view.epochs.at_end(planned):
            self.remind(line)
        self.screen.close(self.view)
        self.note(
            f"ended after {outcome.wall_s:.1f} s {at_round(self.view.progress.round)}, exit code "
            f"{outcome.exit_code}"
        )
        self._logbook.close()
        self._events.close()
        outcome.lacking.update(self.troubles.lacking)

    def record(self, event: Event, t: float | None = None) -> None:
        """Write an event of the launcher. ``t``: its time; None if now."""
        now = time.monotonic()
        t = now if t is None else t
        self.receive(event.to_row(t, time.time() - (now - t)))

    def receive(self, row: Row) -> Event:
        """Write a checked row, of a peer or the launcher, and apply it. Return its event."""
        self._events.write(row)
        event = read_event(row)
        lines = self.view.apply(event)
        # If it relays, the launcher prints the events of all hosts.
        for line in () if self._relays else lines:
            # one line, also if the text of a peer contains line breaks
            self.print_line(shown(line))
        return event

    def tick(self) -> None:
        """Redraw the screen, and repeat that there are no keys; called several times a second."""
        self.screen.tick(self.view)
        if self.outcome.config.insecure and time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + INSECURE_EVERY_S
            self.remind(INSECURE)

    def note(self, text: str) -> None:
        """Write a line to the logbook."""
        self._logbook.note(text)

    def remind(self, text: str) -> None:
        """Print a line about a lasting condition; it is printed repeatedly. If it relays, only the
        results of connecting from this machine are printed."""
        if not self._relays or text.startswith("!   "):
            self.print_line(text)

    def print_line(self, text: str) -> None:
        self.screen.print_line(text)
        if text[:1] in "x+?-*=":
            self.note(text)


class OngoingRun(RunRecords):
    """A run in progress on this machine.

    Args: As for ``Supervisor``.

    Attributes:
        peers: Ids and first incarnations of the peers that run here.
        joins: Whether they join a run of another launcher.
        ended: Peers that will not be restarted.
    """

    # A run has this many settings.
    def __init__(  # noqa: PLR0913
        self,
        config: RunConfig,
        command: Sequence[str],
        screen: Screen,
        peers: Mapping[int, int],
        joins: bool,
        relays: bool,
    ) -> None:
        super().__init__(config, screen, peers, relays)
        self.config, self.command, self.peers = config, list(command), dict(peers)
        self.folder = Path(config.run_dir).resolve()
        self.joins = self.outcome.joins = joins
        self.ended = set[int]()

    @property
    def is_training(self) -> bool:
        """Whether the run can be disturbed."""
        # The second condition is for peers that joined another launcher's run.
        begun = bool(self.view.lives.ready) or bool(self.training())
        return begun and not self.is_over

    def training(self) -> set[int]:
        """Return the own peers that train with the others."""
        return {peer for peer in self.peers if self.view.rows[peer].state == "training"}

    @property
    def is_over(self) -> bool:
        """Whether the run is ending or has ended."""
        return self.stop.is_set() or self.all_ended

    @property
    def all_ended(self) -> bool:
        return len(self.ended) == len(self.peers)

    @property
    def others_are_done(self) -> bool:
        """Whether all but one peer have ended without a restart, and the training is complete."""
        return bool(self.outcome.finished) and len(self.ended) == len(self.peers) - 1
