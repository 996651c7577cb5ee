"""By which signals a launcher is asked to end, and what they do when it is already ending."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from gossip.launch import signals


@pytest.fixture(autouse=True)
def before() -> Iterator[None]:
    """Whatever a test leaves behind, the tests after it find what this one found."""
    former = {number: signal.getsignal(number) for number in signals.ASKING}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def heard(*sent: int) -> list[int]:
    """The numbers that a launcher hears that gets these."""
    found: list[int] = []

    async def lead() -> None:
        with signals.forward_signals(found.append):
            for count, number in enumerate(sent, 1):
                os.kill(os.getpid(), number)
                while len(found) < count:
                    await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(lead(), 20))
    return found


@pytest.mark.parametrize("number", signals.ASKING)
def test_each_of_them_is_heard(number: signal.Signals) -> None:
    assert heard(number, number) == [number, number]


def test_who_asks_again_while_the_summary_is_written_does_not_end_that() -> None:
    heard(signal.SIGHUP)
    for number in (signal.SIGTERM, signal.SIGHUP, signals.AT_ONCE):
        assert callable(signal.getsignal(number)), "a process started later would inherit SIG_IGN"
        os.kill(os.getpid(), number)  # by default it would end this process
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_nobody_asked_all_is_as_it_was() -> None:
    signal.signal(signal.SIGTERM, own := lambda number, frame: None)
    heard()
    assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signals.AT_ONCE) is signal.SIG_DFL


def test_under_nohup_a_run_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def lead() -> None:
        with signals.forward_signals(lambda number: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    asyncio.run(lead())
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert heard(signal.SIGTERM) == [signal.SIGTERM]
