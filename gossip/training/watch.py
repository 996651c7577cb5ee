"""Handles what may end the script: SIGTERM, Ctrl-C, the end of the launcher, or an exception."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from gossip.errors import LocalError, RemoteError, SwarmError, TrainingWarning
from gossip.run import shown_lines

FRAMES = 3
_OURS = str(Path(__file__).resolve().parent.parent)
_OTHERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", "<frozen ")


HURRIED_S = 2.0
"""Time for a peer to finish its step, or to leave, after a signal, in seconds."""
TOGETHER_S = 2.0
"""Signals SIGTERM within this number of seconds count as one. Slurm and systemd send the signal to
every process of a job, and the launcher also forwards the signal that it receives."""
WARNINGS_MAX = 20


class TerminationHandler:
    """Handler that records SIGTERM instead of ending the process. Another SIGTERM at least
    ``TOGETHER_S`` later kills the process as usual. While ``in_step`` returns True, Ctrl-C is
    recorded, too. A second Ctrl-C raises KeyboardInterrupt.

    Attributes:
        since: Time of the first signal on the monotonic clock, or None.
        stop: Function that ends the script, set by the session.
        in_step: Function that returns whether a step is running. The step may then finish before
            Ctrl-C takes effect.
        interrupted: Whether Ctrl-C was recorded.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.stop: Callable[[], NoReturn] = sys.exit
        self.in_step: Callable[[], bool] = lambda: False
        self.interrupted = False
        self._installed = self._interrupts = False

    def install(self, launched: bool = False) -> None:
        """Install the handlers if this is the main thread. A script's own handlers are not
        replaced.

        Args:
            launched: Whether a launcher forwards Ctrl-C. If so, SIGINT is handled even if the
                process ignores it. A process that was started in the background ignores SIGINT.
        """
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._came)
            self._installed = True
        ours = (signal.default_int_handler, signal.SIG_IGN if launched else None)
        if in_main and signal.getsignal(signal.SIGINT) in ours:
            signal.signal(signal.SIGINT, self._interrupt)
            self._interrupts = True

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.since is not None or not self.in_step():
            raise KeyboardInterrupt
        self.since, self.interrupted = time.monotonic(), True

    def _came(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.since is None:
            self.since = now
        elif now - self.since >= TOGETHER_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def uninstall(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self._installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._installed = self._interrupts = False


def watch_launcher(status_fd: int, gone: Callable[[], None]) -> None:
    """Call ``gone`` in a daemon thread when the launcher has closed its end of the status socket.
    The thread does not read from the socket."""

    def wait() -> None:
        poll = select.poll()
        poll.register(status_fd, select.POLLRDHUP)
        while True:
            events = poll.poll()
            if any(
                flags & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, flags in events
            ):
                gone()
                return
            if any(flags & select.POLLNVAL for _, flags in events):
                return  # this process has closed the socket

    threading.Thread(target=wait, name="gossip-launcher-watch", daemon=True).start()


def user_frames(trace: TracebackType | None) -> list[dict[str, Any]]:
    """Return file, line, function and code of the last frames in the user's code, outermost first.
    If no frame is in the user's code, use all frames."""
    frames = traceback.extract_tb(trace)
    own = [
        f
        for f in frames
        if not f.filename.startswith(_OURS) and not any(word in f.filename for word in _OTHERS)
    ]
    return [
        {
            "file": f.filename,
            "line": f.lineno,
            "function": f.name,
            "code": f.line or "",
        }
        for f in (own or frames)[-FRAMES:]
    ]


class ExceptHook:
    """Hook that prints an uncaught exception as usual, and calls ``raised`` with the exception. If
    the exception has an exit code, the process exits with it."""

    def __init__(
        self, raised: Callable[[BaseException], None], quiet: Callable[[], bool] = lambda: False
    ) -> None:
        """``quiet``: function that returns whether a KeyboardInterrupt is printed without a
        traceback."""
        self._raised, self._quiet = raised, quiet
        self._before = sys.excepthook
        sys.excepthook = self

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SwarmError | RemoteError | LocalError):
            # A traceback would not help, because the script is not at fault.
            print(f"{kind.__name__}: {shown_lines(error)}", file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt) and self._quiet():
            pass  # the interrupt took effect only after the step, so a traceback would not help
        else:
            self._before(kind, error, trace)
        hint = getattr(error, "hint", None)
        if hint:
            print(f"hint: {shown_lines(hint)}", file=sys.stderr)
        sys.stderr.flush()
        self._raised(error)
        code = getattr(error, "exit_code", None)
        if isinstance(code, int):
            raise SystemExit(code)  # exit with this code instead of 1

    def uninstall(self) -> None:
        # A hook that was installed later still calls this hook, so do not replace that hook.
        if sys.excepthook is self:
            sys.excepthook = self._before


def record_warnings(warned: Callable[[str], object]) -> Callable[[], None]:
    """Call ``warned`` with the text of each TrainingWarning, once for each text, and at most
    ``WARNINGS_MAX`` times. Warnings are still printed as usual. Return a function that stops the
    recording."""
    texts, before = set[str](), warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        before(message, category, *args, **kwargs)
        text = str(message)
        is_new = text not in texts and len(texts) < WARNINGS_MAX
        if is_new and issubclass(category, TrainingWarning):
            texts.add(text)
            warned(text)

    def end() -> None:
        if warnings.showwarning is show:
            warnings.showwarning = before

    warnings.showwarning = show
    return end
