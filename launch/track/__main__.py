"""``python -m gossip.launch.track``."""

import sys
from types import TracebackType

from .exporting import main


def _print_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """The traceback, and then in one line what it was: the launcher tells the last line. What
    databases raise ends with a link."""
    sys.__excepthook__(kind, error, trace)
    (first, *_) = str(error).strip().splitlines() or [""]
    print(f"{kind.__name__}: {first}", file=sys.stderr)


sys.excepthook = _print_exception
sys.exit(main(sys.argv[1:]))
