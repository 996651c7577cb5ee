"""Declarations of the events and commits of a run, and functions that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import documents, events, fields
    from .commits import CommitRow, ContributionRow, read_commits
    from .event import Event, Judgement, SubjectEvent, select
    from .fields import PEERS_MAX, REAL_MAX, ROUNDS_END, WHOLE_MAX, Row
    from .reading import EVENTS, check_row, read_event
else:
    __getattr__, __dir__ = lazy(__name__)
