"""State of a run in progress, which the parts of its supervisor share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from gossip.config import RunConfig
from gossip.launch.report import RunModel, Screen, at_round, stages_of
from gossip.observe import Event, Row, events, read_event
from gossip.run import JsonLines, Logbook, WriteFailures, shown

from .awaiting import INSECURE, INSECURE_EVERY_S
from .outcome import RunOutcome
from .program import Program


class RunRecords:
    """Records of a run. Each event is written to a file, applied to the model, and printed.

    Args:
        peers: Initial peers of the model.
        relays: Whether another launcher prints the events, and the lines about lasting conditions.

    Attributes:
        stop: Set when the run must end.
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
        """Record an event of the launcher. ``t``: its time; None means now."""
        now = time.monotonic()
        t = now if t is None else t
        self.receive(event.to_row(t, time.time() - (now - t)))

    def receive(self, row: Row) -> Event:
        """Write a checked row from a peer or the launcher, and apply its event. Return the
        event."""
        self._events.write(row)
        event = read_event(row)
        lines = self.view.apply(event)
        # If ``relays``, the other launcher prints the events of all hosts.
        for line in () if self._relays else lines:
            # one line, even if a text from a peer contains line breaks
            self.print_line(shown(line))
        return event

    def tick(self) -> None:
        """Redraw the screen, and repeat the warning about missing keys. This is called several
        times a second."""
        self.screen.tick(self.view)
        if self.outcome.config.insecure and time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + INSECURE_EVERY_S
            self.remind(INSECURE)

    def note(self, text: str) -> None:
        """Write a line to the logbook."""
        self._logbook.note(text)

    def remind(self, text: str) -> None:
        """Print a line about a lasting condition. If ``relays``, print it only if it is the result
        of a connection from this machine."""
        if not self._relays or text.startswith("!   "):
            self.print_line(text)

    def print_line(self, text: str) -> None:
        self.screen.print_line(text)
        if text[:1] in "x+?-*=":
            self.note(text)


class OngoingRun(RunRecords):
    """Run in progress on this machine.

    Args: As for ``Supervisor``.

    Attributes:
        peers: First incarnations of the peers that run here, by id.
        joins: Whether these peers join a run of another launcher.
        ended: Peers that will not be restarted.
    """

    # All of these are needed to describe a run.
    def __init__(  # noqa: PLR0913
        self,
        config: RunConfig,
        program: Program,
        screen: Screen,
        peers: Mapping[int, int],
        joins: bool,
        relays: bool,
    ) -> None:
        super().__init__(config, screen, peers, relays)
        self.config, self.program, self.peers = config, program, dict(peers)
        self.folder = Path(config.run_dir).resolve()
        self.joins = self.outcome.joins = joins
        self.ended = set[int]()

    @property
    def is_training(self) -> bool:
        """Whether the run trains, so that drills are possible."""
        # The second condition is for peers that joined another launcher's run.
        begun = bool(self.view.lives.ready) or bool(self.training())
        return begun and not self.is_over

    def training(self) -> set[int]:
        """Return the peers of this launcher that are training."""
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
        """Whether all peers but one have ended, and at least one of them has finished."""
        return bool(self.outcome.finished) and len(self.ended) == len(self.peers) - 1
