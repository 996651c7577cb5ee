"""The signals that ask a launcher to end its run."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

AT_ONCE = signal.SIGUSR1  # of ``gossip stop --now``: peers are not waited for
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, AT_ONCE)


@contextlib.contextmanager
def forward_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """``on_signal`` gets their numbers, in the running loop. Where SIGHUP is ignored it stays so:
    ``nohup`` starts a run that outlives its terminal.

    Who has asked may ask again while the launcher writes down how the run went: that changes
    nothing any more. Where nobody has asked, all is afterwards as it was.
    """
    loop = asyncio.get_running_loop()
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    former = {
        number: signal.getsignal(number)
        for number in ASKING
        if not (nohup and number == signal.SIGHUP)
    }
    asked: list[int] = []

    def forward(number: int) -> None:
        asked.append(number)
        on_signal(number)

    for number in former:
        loop.add_signal_handler(number, forward, number)
    try:
        yield
    finally:
        for number, before in former.items():
            loop.remove_signal_handler(number)
            again = asked and number != signal.SIGINT
            # A function and not SIG_IGN, which processes would inherit that are started later.
            signal.signal(number, _asked_already if again else before or signal.SIG_DFL)


def _asked_already(number: int, frame: object) -> None:
    pass
