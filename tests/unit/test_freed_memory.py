"""What a node has freed it takes again, with no page fault. In a process of its own: nothing puts
malloc back as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gossip.node import freed_memory

SCRIPT = """
import resource, threading
import numpy as np
from gossip.node.freed_memory import keep_freed_memory

assert keep_freed_memory()

def faults(nbytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(nbytes, np.uint8)[::4096] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = []
def thrice():
    found.append([faults(100_000_000) for _ in range(3)])

thrice()
thread = threading.Thread(target=thrice)
thread.start()
thread.join()
print(found[0][0], max(found[0][1:] + found[1]), flush=True)
"""


def test_what_was_freed_is_taken_again_by_every_thread_without_a_page_fault() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, later = map(int, done.stdout.split())
    assert first > 40, "48 if all pages are huge"
    assert later < first / 10


def test_an_older_glibc_that_refuses_the_threshold_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class OlderGlibc:
        @staticmethod
        def mallopt(option: int, value: int) -> int:
            asked.append(option)
            return int(value < 2**25)

    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: OlderGlibc)
    assert not freed_memory.keep_freed_memory()
    assert asked == [freed_memory.MMAP_THRESHOLD]


def test_another_libc_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: object())
    assert not freed_memory.keep_freed_memory()
