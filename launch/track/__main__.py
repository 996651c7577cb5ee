"""``python -m gossip.launch.track``."""

import sys
from types import TracebackType

from .exporting import main


def _print_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the traceback, and then the error in one line, because the launcher prints the last
    line. The last line of a database error would be a link."""
    sys.__excepthook__(kind, error, trace)
    (first, *_) = str(error).strip().splitlines() or [""]
    print(f"{kind.__name__}: {first}", file=sys.stderr)


sys.excepthook = _print_exception
sys.exit(main(sys.argv[1:]))
