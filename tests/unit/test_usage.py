"""What a node tells of itself and its machine, and how long its rule takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gossip.node import usage
from gossip.node.usage import EVERY_S, FIRST_S, RuleClock, UsageMeter


def test_a_meter_is_due_soon_after_the_start_and_then_seldom() -> None:
    meter = UsageMeter(os.getpid(), None, now=100.0)
    assert not meter.due(100.0 + FIRST_S / 2)
    assert meter.due(100.0 + FIRST_S)
    assert not meter.due(100.0 + FIRST_S + EVERY_S / 2)
    assert meter.due(100.0 + FIRST_S + EVERY_S)


def test_both_processes_count_and_a_thread_counts_once(tmp_path: Path) -> None:
    used = "x = bytearray(50 << 20)\nprint(flush=True)\ninput()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", used], stdin=pipe, stdout=pipe) as trainer:
        assert trainer.stdin is not None
        trainer.stdout.readline()
        alone = UsageMeter(os.getpid(), tmp_path, 0.0).measure()
        both = UsageMeter(trainer.pid, tmp_path, 0.0).measure()
        trainer.stdin.close()
    assert both["memory"] - alone["memory"] > 50 << 20
    assert both["cpu_s"] >= alone["cpu_s"] > 0
    assert alone["disk_free"] > 0
    assert alone["machine_memory_free"] > 0


def test_a_process_that_has_ended_uses_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert usage.used_by([ended.pid]) == (0.0, 0)


def test_the_rule_of_an_earlier_round_is_not_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(usage.time, "monotonic", lambda: now[0])
    clock = RuleClock()
    clock.asked(7, 0)
    now[0] = 10.5
    clock.asked(7, 1)
    now[0] = 11.0
    assert (clock.rule_time_s(7, 0), clock.rule_time_s(7, 1), clock.rule_time_s(6, 0)) == (
        1.0,
        0.5,
        None,
    )
    clock.asked(8, 1)
    assert clock.rule_time_s(7, 0) is None
    assert clock.rule_time_s(8, 0) is None
