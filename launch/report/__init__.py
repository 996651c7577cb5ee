"""Reading and presentation of the files of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import (
        alone,
        command,
        history,
        html,
        launchers,
        missed,
        summary,
        words,
    )
    from .exit_codes import status_of
    from .happenings import EXIT_ASKED
    from .live_frame import About
    from .participation import low_influence
    from .run_model import RunModel
    from .run_reader import RunReader
    from .run_state import RUNS, RunState, find, word_for
    from .screens import (
        LiveScreen,
        PlainScreen,
        Screen,
        is_terminal,
        screen_for,
    )
    from .stages import stages_of
    from .words import (
        at_round,
        bytes_word,
        counted,
        figure,
        near,
        numbers,
        print_error,
        print_lines,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
