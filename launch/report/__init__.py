"""What a run has left behind, read and said to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import alone as alone
    from . import command as command
    from . import history as history
    from . import html as html
    from . import launchers as launchers
    from . import lineage as lineage
    from . import missed as missed
    from . import summary as summary
    from . import words as words
    from .error_lines import print_error as print_error
    from .growing import Row as Row
    from .live_frame import About as About
    from .loopback import LoopbackServer as LoopbackServer
    from .merging import PeerOutput as PeerOutput
    from .run_record import CommitRecord as CommitRecord
    from .run_record import RunRecord as RunRecord
    from .run_state import RUNS as RUNS
    from .run_state import find as find
    from .run_state import word_for as word_for
    from .screens import LiveScreen as LiveScreen
    from .screens import PlainScreen as PlainScreen
    from .screens import Screen as Screen
    from .screens import is_terminal as is_terminal
    from .screens import screen_for as screen_for
    from .stages import stages_of as stages_of
    from .top import standing_of as standing_of
    from .view import EXIT_ASKED as EXIT_ASKED
    from .view import RunView as RunView
    from .words import at_round as at_round
    from .words import bytes_word as bytes_word
    from .words import counted as counted
    from .words import near as near
    from .words import print_lines as print_lines
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "alone": ("alone",),
            "command": ("command",),
            "error_lines": ("print_error",),
            "history": ("history",),
            "html": ("html",),
            "growing": ("Row",),
            "launchers": ("launchers",),
            "lineage": ("lineage",),
            "missed": ("missed",),
            "live_frame": ("About",),
            "loopback": ("LoopbackServer",),
            "merging": ("PeerOutput",),
            "run_record": (
                "CommitRecord",
                "RunRecord",
            ),
            "run_state": (
                "RUNS",
                "find",
                "word_for",
            ),
            "screens": (
                "LiveScreen",
                "PlainScreen",
                "Screen",
                "is_terminal",
                "screen_for",
            ),
            "summary": ("summary",),
            "stages": ("stages_of",),
            "top": ("standing_of",),
            "view": (
                "EXIT_ASKED",
                "RunView",
            ),
            "words": (
                "at_round",
                "bytes_word",
                "counted",
                "near",
                "print_lines",
                "words",
            ),
        },
    )
