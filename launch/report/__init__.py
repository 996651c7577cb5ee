"""What a run has left behind, read and said to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import (
        alone as alone,
        command as command,
        history as history,
        html as html,
        launchers as launchers,
        lineage as lineage,
        missed as missed,
        summary as summary,
        words as words,
    )
    from .error_lines import print_error as print_error
    from .live_frame import About as About
    from .loopback import LoopbackServer as LoopbackServer
    from .merging import PeerOutput as PeerOutput
    from .run_record import CommitRecord as CommitRecord, RunRecord as RunRecord
    from .run_state import RUNS as RUNS, find as find, word_for as word_for
    from .screens import (
        LiveScreen as LiveScreen,
        PlainScreen as PlainScreen,
        Screen as Screen,
        is_terminal as is_terminal,
        screen_for as screen_for,
    )
    from .stages import stages_of as stages_of
    from .top import standing_of as standing_of
    from .view import EXIT_ASKED as EXIT_ASKED, RunView as RunView
    from .words import (
        at_round as at_round,
        bytes_word as bytes_word,
        counted as counted,
        near as near,
        print_lines as print_lines,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
