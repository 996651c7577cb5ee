"""Export of the records of a run to a tracker of the user. A separate process reads the run's
files, so that training never waits for a tracker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import command
    from .beside import tracked
else:
    __getattr__, __dir__ = lazy(__name__)
