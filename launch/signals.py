"""Signals that make a launcher end its run."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

AT_ONCE = signal.SIGUSR1  # from ``gossip stop --now``: do not wait for peers
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, AT_ONCE)


@contextlib.contextmanager
def forward_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Call ``on_signal`` with the number of each signal, in the running loop. An ignored SIGHUP
    stays ignored: ``nohup`` starts a run that outlives its terminal.

    If a signal arrived before the exit of the context, later signals except SIGINT are ignored, so
    that the launcher can write its records. Otherwise the earlier handlers are restored.
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
            # A function instead of SIG_IGN, which child processes would inherit.
            signal.signal(number, _asked_already if again else before or signal.SIG_DFL)


def _asked_already(number: int, frame: object) -> None:
    pass
