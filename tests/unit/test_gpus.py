from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gossip.launch.doctor import checks
from gossip.launch.local import feasible, gpus
from gossip.launch.local.gpus import CONTEXT_BYTES, Gpu, Gpus

TWO = """\
0, GPU-aaaa-1, NVIDIA H100 80GB HBM3, 80000, 81559
1, GPU-aabb-2, NVIDIA H100 80GB HBM3, 700, 81559
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def driver(machine: Path, does: str) -> None:
    """What stands for the driver's tool; it must be asked for just the fields that are read."""
    tool = machine / "nvidia-smi"
    asked = "--query-gpu=index,uuid,name,memory.free,memory.total --format=csv,noheader,nounits"
    tool.write_text(
        f"#!{sys.executable}\nimport sys, time\nassert ' '.join(sys.argv[1:]) == {asked!r}\n"
        f"{does}\n"
    )
    tool.chmod(0o755)


def test_what_the_driver_tells_is_read(machine: Path) -> None:
    driver(machine, f"print({TWO!r}, end='')")
    found = gpus.look()
    assert found.each[0] == Gpu(
        0, "GPU-aaaa-1", "NVIDIA H100 80GB HBM3", 80000 * 2**20, 81559 * 2**20
    )
    assert [gpu.room for gpu in found.each] == [156, 1]
    assert Gpus.from_json(json.loads(json.dumps(found.to_json()))) == Gpus(found.each)


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-aab", [1]),
        ("GPU-aa", []),  # of two: CUDA takes neither
        ("0,7,1", [0]),
        ("", []),
        ("-1", []),
        ("1,1", [1]),
    ],
)
def test_only_those_that_trainers_see_count(
    machine: Path, wanted: str | None, indices: list[int]
) -> None:
    assert [gpu.index for gpu in gpus.visible(gpus.read(TWO)[0], wanted)] == indices


def test_a_machine_without_the_tool_has_none_and_that_is_no_error(machine: Path) -> None:
    assert gpus.look() == Gpus()
    (finding,) = checks.on_gpus()
    assert (finding.level, finding.said) == ("skip", "none that nvidia-smi lists")


@pytest.mark.parametrize(
    ("does", "error"),
    [
        ("sys.exit('\\nno driver is loaded\\nmore')", "nvidia-smi: no driver is loaded"),
        ("print('NVIDIA-SMI has failed'); sys.exit(9)", "nvidia-smi: NVIDIA-SMI has failed"),
        ("sys.exit(9)", "nvidia-smi: exit code 9"),
        (
            "print('0, GPU-a, GB10, [N/A], [N/A]')",
            "nvidia-smi printed an unexpected answer: '0, GPU-a, GB10, [N/A], [N/A]'",
        ),
        (
            "sys.stdout.buffer.write(bytes([255, 10]))",
            "nvidia-smi printed an unexpected answer: '\ufffd'",
        ),
    ],
)
def test_what_keeps_us_from_knowing_is_told(machine: Path, does: str, error: str) -> None:
    driver(machine, does)
    found = gpus.look()
    assert found == Gpus(error=error)
    (finding,) = checks.on_gpus()
    assert (finding.level, finding.said) == ("warn", error)
    assert not found.short_of(100), "nothing is claimed about what is not known"


def test_a_driver_that_does_not_answer_is_not_waited_for(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(machine, "time.sleep(600)")
    monkeypatch.setattr(gpus, "ASK_S", 0.1)
    assert gpus.look().error == "nvidia-smi did not answer in 0 s"


def test_one_that_hangs_within_the_driver_and_cannot_be_killed_is_not_waited_for_either(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(machine, "time.sleep(5)")
    monkeypatch.setattr(gpus, "ASK_S", 0.1)
    monkeypatch.setattr(gpus, "KILLED_S", 0.1)
    kill, stuck = subprocess.Popen.kill, list[subprocess.Popen[str]]()
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: stuck.append(process))
    assert gpus.look().error == "nvidia-smi did not answer in 0 s"
    (process,) = stuck
    assert process.poll() is None
    kill(process)
    process.communicate()


def test_more_peers_than_fit_are_told_what_they_lack_and_fewer_nothing() -> None:
    one = Gpus((Gpu(0, "GPU-0", "T4", 3 * CONTEXT_BYTES + 5, 16 * 2**30),))
    assert one.short_of(3) == ""
    said = (
        "4 peers on 1 GPU would need about 512 MiB each before any model; free: 1.5 GiB, room for 3"
    )
    assert one.short_of(4) == said
    halves = Gpus(
        tuple(Gpu(at, f"GPU-{at}", "T4", CONTEXT_BYTES - 1, 16 * 2**30) for at in range(4))
    )
    assert halves.short_of(1).endswith(
        "; free: 512 MiB and 512 MiB and 512 MiB and 512 MiB, no room for any"
    )
    assert Gpus(halves.each * 3).short_of(1).endswith(" and 512 MiB, ..., no room for any")


def test_whoever_starts_peers_is_told_and_nothing_is_refused(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(machine, f"print({TWO!r}, end='')")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    told: list[str] = []
    feasible.say_of_gpus(1, told.append)
    assert not told
    feasible.say_of_gpus(2, told.append)
    said = (
        "! 2 peers on 1 GPU would need about 512 MiB each before any model; free: 700 MiB, room "
        "for 1"
    )
    assert told == [said, f"  try: {gpus.HINT}"]
    told.clear()
    driver(machine, "sys.exit('no driver is loaded')")
    feasible.say_of_gpus(1, told.append)
    assert told == ["! what is free on GPUs is not known: nvidia-smi: no driver is loaded"]


@pytest.mark.parametrize("code", [0, 6])
def test_a_driver_that_finds_no_gpu_is_no_error(machine: Path, code: int) -> None:
    driver(machine, f"print('No devices were found'); sys.exit({code})")
    assert gpus.look() == Gpus()


def test_one_gpu_that_does_not_tell_hides_no_other(machine: Path) -> None:
    driver(machine, f"print({TWO!r} + '2, GPU-bb, NVIDIA GB10, [N/A], [N/A]')")
    found = gpus.look()
    assert [gpu.index for gpu in found.each] == [0, 1]
    assert "NVIDIA GB10, [N/A], [N/A]" in found.error
    assert [finding.level for finding in checks.on_gpus()] == ["ok", "warn"]


def test_parts_of_gpus_are_not_known(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(machine, f"print({TWO!r}, end='')")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1-2")
    assert gpus.look() == Gpus(
        error="CUDA_VISIBLE_DEVICES=MIG-1-2: what is free on a part of a GPU is not known"
    )


def test_doctor_tells_what_each_has_free_and_how_many_peers_find_room(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(machine, f"print({TWO!r}, end='')")
    (finding,) = checks.on_gpus()
    assert finding.level == "ok"
    assert finding.said.endswith(
        "NVIDIA H100 80GB HBM3 (700 MiB of 79.6 GiB free): room for about 157 peers of small models"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (finding,) = checks.on_gpus()
    assert (finding.level, finding.said) == ("skip", "none: CUDA_VISIBLE_DEVICES=")
