"""The report of a run as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import command, page
    from .incident_lines import lines_of
    from .recorded import RecordedRun, read
    from .rounds import reasons_of_turns
else:
    __getattr__, __dir__ = lazy(__name__)
