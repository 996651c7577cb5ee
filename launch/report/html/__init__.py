"""The report of a run as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import page
    from .charts import BAND, Axis, Chart, HeatChart, Line, LineChart, Section, TextTable
    from .figures import number
    from .incident_lines import lines_of
    from .incidents import slowness
    from .overview import Fact
    from .page import render_page
    from .recorded import RecordedRun
    from .rounds import reasons_of_turns, too_long
else:
    __getattr__, __dir__ = lazy(__name__)
