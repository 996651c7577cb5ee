"""What is asked of a GPU, and when. That a real one answers so, no test here can show."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gossip.node import gpus
from gossip.node.gpus import GpuMeter, read

ANSWER = "0, 93, 70000, 81559, 61\n1, [N/A], 20, 81559, [N/A]\n"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of nvidia-smi: says what ``answer`` holds, and notes how it was asked."""
    path = tmp_path / "nvidia-smi"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexec cat {tmp_path}/answer\n')
    path.chmod(0o700)
    (tmp_path / "answer").write_text(ANSWER)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "uses_gpu", lambda pid: True)
    return tmp_path


def answered(meter: GpuMeter) -> None:
    meter._asked.wait(30)


def test_the_answer_is_there_the_next_time(tool: Path) -> None:
    meter = GpuMeter(os.getpid())
    assert meter.measure() == []
    answered(meter)
    first = {"index": 0.0, "busy": 0.93, "memory": 70000 << 20, "memory_total": 81559 << 20}
    second = {"index": 1.0, "memory": 20 << 20, "memory_total": 81559 << 20}
    assert meter.measure() == [{**first, "celsius": 61.0}, second]
    answered(meter)
    meter.close()
    assert "--query-gpu=index,utilization.gpu" in (tool / "asked").read_text()
    assert "-i" not in (tool / "asked").read_text()


def test_only_those_the_peer_may_see_are_asked(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    meter = GpuMeter(os.getpid())
    meter.measure()
    answered(meter)
    meter.close()
    assert (tool / "asked").read_text().rstrip().endswith("-i 2,3")


def test_a_tool_that_hangs_is_not_asked_again_and_not_left_behind(tool: Path) -> None:
    (tool / "answer").unlink()
    os.mkfifo(tool / "answer")
    meter = GpuMeter(os.getpid())
    meter.measure()
    asked = meter._asked
    assert [meter.measure(), meter.measure()] == [[], []]
    assert meter._asked is asked
    assert asked.poll() is None
    meter.close()  # it returns, whatever holds the tool
    assert asked.wait(30) == -signal.SIGKILL


def test_a_trainer_without_a_gpu_is_not_asked_about(tool: Path) -> None:
    gpus_used = GpuMeter(os.getpid())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpus, "uses_gpu", lambda pid: False)
        gpus_used.measure()
    assert gpus_used._asked is None
    assert not (tool / "asked").exists()


def test_who_holds_no_device_uses_none() -> None:
    assert not gpus.uses_gpu(os.getpid())
    assert not gpus.uses_gpu(2**30)


def test_an_answer_that_is_no_table_holds_nothing() -> None:
    assert read("No devices were found\n") == []
    assert read("0, 1\nx, 1, 2, 3, 4\n0, nan, inf, 1, 2\n") == [
        {"index": 0.0, "memory_total": 1 << 20, "celsius": 2.0}
    ]
