"""Sentences about events, for the screen of a run. Sentences that depend on more than the event
come from the parts of the model."""

from __future__ import annotations

import string
from typing import Any, NamedTuple

from gossip.observe import Event, events
from gossip.run import ROOM_HINT

from .words import counted, named, numbers

QUIET_S = 2.0
"""Minimum time between two sentences about events of the same kind and the same subject, in
seconds."""
EVER = float("inf")


class Sentence(NamedTuple):
    """Sentence about a kind of event.

    Attributes:
        text: Template with fields of the event. ``{x}`` formats a list of peers as ``0-2,5``, and
            ``{x:named}`` as ``peers 0-2,5``. ``{x:update}`` formats a number as ``3 updates``.
        quiet_s: Time after an event in which no sentence about the same subject is printed, in
            seconds.
        about: Field that contains the subject; "" means that the run is the subject.
    """

    text: str
    quiet_s: float = 0.0
    about: str = ""


SENTENCES: dict[type[Event], Sentence] = {
    events.AliveAgain: Sentence("~ peer {subject} is back", QUIET_S, "subject"),
    events.Error: Sentence("! peer {peer}: {message}"),
    events.EventsSuppressed: Sentence(
        "! events.jsonl has only some of the events {of} about {about}, and a count of the others",
        QUIET_S,
        "about",
    ),
    events.Fork: Sentence("! peer {peer} detected a fork at round {round}", QUIET_S, "peer"),
    events.IdenticalUpdates: Sentence(
        "! the updates of {peers:named} are bit-identical since round {round}: they train on "
        "the same batches, or collude, and count as one. Read data through peer.shard(loader), "
        "or draw it without a seed of your own",
        EVER,
    ),
    events.Lingering: Sentence(
        "~ peer {peer} has finished; it waits for {for_:named} up to {at_most_s} s", QUIET_S
    ),
    # Lost rounds usually occur in series, so not all are printed. The summary has their number.
    events.LostRound: Sentence("! round {round} is lost: {reason}", QUIET_S),
    events.MinorityContinues: Sentence(
        "! {alive:named} of {of} continue alone from round {round}: for them the others are dead"
    ),
    events.Notice: Sentence("! peer {peer}: {message} ({hint})"),
    events.Over: Sentence("~ peer {peer}: {message}"),
    events.PassedOver: Sentence(
        "~ peer {subject} serves no rounds for a while: its results did not arrive",
        QUIET_S,
        "subject",
    ),
    events.Paused: Sentence(
        "|| peer {peer} pauses at round {round}: alive are {alive}, a round needs {need} {why}",
        QUIET_S,
    ),
    events.ReducedTolerance: Sentence(
        "! round {round} has {updates:update}: it tolerates f={f} Byzantine peers instead of "
        "{wanted}",
        QUIET_S,
    ),
    events.Restored: Sentence("+ peer {peer} re-synced from peer {from_} at round {round}"),
    events.Resumed: Sentence("~ resumed: alive are {alive}", QUIET_S),
    events.ServesAgain: Sentence("~ peer {subject} serves again", QUIET_S, "subject"),
    events.StageLost: Sentence(
        "x stage {stage} has lost all its peers ({peers}): the others wait for one",
        QUIET_S,
        "stage",
    ),
    events.Unannounced: Sentence(
        "! peers cannot meet: cannot write {path} ({why}), where they exchange addresses\n"
        f"  {ROOM_HINT}",
        QUIET_S,
    ),
    events.UnconfirmedResult: Sentence(
        "! peer {peer} ends unconfirmed: {same} peers have its last parameters, {other} have "
        "others; no reply: {silent}"
    ),
}
WARNINGS = (
    events.IdenticalUpdates,
    events.LowInfluence,
    events.UnconfirmedResult,
    events.UnequalUpdates,
)
"""Kinds of events that are incidents of the run."""


class Speaker:
    """Formats sentences about events, and omits those that repeat too soon."""

    def __init__(self) -> None:
        self._last: dict[tuple[type[Event], object], float] = {}

    def render(self, event: Event) -> list[str]:
        """Return the lines of the sentence about an event, if there is one and it is due."""
        found = SENTENCES.get(type(event))
        if found is None:
            return []
        text, quiet_s, about = found
        if quiet_s and not self.is_due(event, getattr(event, about) if about else None, quiet_s):
            return []
        return [self.format(line, event) for line in text.split("\n")]

    @staticmethod
    def format(text: str, event: Event) -> str:
        """Fill a template with the fields of an event."""
        return _FORMAT.format(text, event=event).rstrip()

    def once(self, event: Event, about: object, line: str) -> list[str]:
        """Return the line if it is due."""
        return [line] if self.is_due(event, about) else []

    def is_due(self, event: Event, about: object, quiet_s: float = QUIET_S) -> bool:
        """Whether the last event of this kind about the same subject is at least ``quiet_s``
        seconds old. The time of this event is recorded."""
        last = self._last.get((type(event), about))
        self._last[type(event), about] = event.t
        return last is None or event.t - last >= quiet_s


class _Format(string.Formatter):
    """Formatter that reads the fields of ``event``, including fields with default values."""

    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        return getattr(kwargs["event"], key)

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, list):
            return named(value) if spec else numbers(value) or "none"
        return counted(value or 0, spec) if spec else "" if value is None else str(value)


_FORMAT = _Format()
