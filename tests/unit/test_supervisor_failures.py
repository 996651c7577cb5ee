from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gossip
from gossip.launch.local.failures import FROM_DDP, LINES_MAX, explain
from gossip.launch.local.peer_process import ProcessLife

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 48, in <module>
    main()
  File "/home/me/train.py", line 40, in main
    loss = F.cross_entropy(model(x), y)
  File "/usr/lib/python3/site-packages/torch/nn/functional.py", line 3000, in cross_entropy
    return torch._C._nn.cross_entropy_loss(input)
ValueError: Expected input batch_size (32) to match target batch_size (31)
"""


def life(tail: str = "") -> ProcessLife:
    return ProcessLife(2, 0, 1, None, tuple(tail.splitlines()), 0.0, 1.0)


def write(folder: Path, **fields: Any) -> None:
    (folder / "error.json").write_text(json.dumps(fields))


def test_what_the_session_wrote_is_told_with_the_round_and_the_users_frames(tmp_path: Path) -> None:
    frames = [{"file": "/home/me/train.py", "line": 40, "function": "main", "code": "loss = f(x)"}]
    write(tmp_path, peer=2, round=391, type="ValueError", message="Expected 32", frames=frames)
    lines = explain(life(), 3, 0, tmp_path)
    assert lines[0] == "x peer 2 failed at round 391 (exit code 1); 3 peers continue"
    assert lines[1] == "  /home/me/train.py:40  loss = f(x)"
    assert lines[2] == "  ValueError: Expected 32"
    assert lines[-1] == f"  log: {tmp_path / 'out.log'}"


@pytest.mark.parametrize("fields", [{}, {"round": -1}, {"round": "?"}])
def test_before_the_first_round_no_round_is_told(tmp_path: Path, fields: dict[str, Any]) -> None:
    write(tmp_path, type="ValueError", message="too early", **fields)
    assert explain(life(), 3, 0, tmp_path)[0] == "x peer 2 failed (exit code 1); 3 peers continue"


def test_a_script_that_died_before_the_session_is_explained_from_its_stderr(tmp_path: Path) -> None:
    lines = explain(life(TRACEBACK), 1, 0, tmp_path)
    assert lines[0] == "x peer 2 ended: exit code 1; 1 peer continues"
    assert "  /home/me/train.py:40  loss = F.cross_entropy(model(x), y)" in lines
    assert "  ValueError: Expected input batch_size (32) to match target batch_size (31)" in lines


def test_an_explanation_is_never_longer_than_twelve_lines(tmp_path: Path) -> None:
    frames = [
        {"file": f"/home/me/{number}.py", "line": 1, "code": "x" * 500} for number in range(50)
    ]
    write(
        tmp_path,
        type="ValueError",
        message="\n".join(map(str, range(100))),
        frames=frames,
        hint="do this",
    )
    lines = explain(life(TRACEBACK * 3), 3, 0, tmp_path)
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= 160
    assert lines[-1].startswith("  log: ")


def test_a_syntax_error_is_explained(tmp_path: Path) -> None:
    tail = (
        '  File "/home/me/train.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid '
        "syntax\n"
    )
    lines = explain(life(tail), 0, 0, tmp_path)
    assert "  SyntaxError: invalid syntax" in lines
    assert any("train.py:3" in line for line in lines)


def test_a_script_that_says_nothing_is_told_by_its_code(tmp_path: Path) -> None:
    assert explain(life(), 0, 0, tmp_path) == [
        "x peer 2 ended: exit code 1",
        f"  log: {tmp_path / 'out.log'}",
    ]


def test_when_nobody_is_left_to_go_on_who_finished_is_told(tmp_path: Path) -> None:
    assert explain(life(), 0, 1, tmp_path)[0] == "x peer 2 ended: exit code 1; 1 peer has finished"
    assert (
        explain(life(), 0, 3, tmp_path)[0] == "x peer 2 ended: exit code 1; 3 peers have finished"
    )
    assert explain(life(), 1, 3, tmp_path)[0] == "x peer 2 ended: exit code 1; 1 peer continues"


def test_an_error_of_an_earlier_life_is_not_told_again(tmp_path: Path) -> None:
    write(tmp_path, incarnation=3, type="ValueError", message="old")
    assert not any("old" in line for line in explain(life(), 0, 0, tmp_path))


@pytest.mark.parametrize("with_session", [False, True])
@pytest.mark.parametrize(
    "asks",
    [
        lambda: dist.init_process_group("gloo"),
        lambda: dist.init_process_group("gloo", rank=0, world_size=int(os.environ["WORLD_SIZE"])),
        lambda: int(os.environ["RANK"]),
        lambda: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])),
        lambda: dist.get_rank(),
        lambda: torch.utils.data.DistributedSampler(range(8)),  # type: ignore[arg-type]
        lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)),
        lambda: object.__new__(gossip.Session).rank,  # type: ignore[attr-defined]
    ],
)
def test_a_script_of_ddp_is_told_which_page_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: Callable[[], object], with_session: bool
) -> None:
    """With what torch itself says when it misses torchrun."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises((KeyError, ValueError, AttributeError)) as raised:
        asks()
    told = "" if with_session else "".join(traceback.format_exception(raised.value))
    if with_session:
        write(tmp_path, type=type(raised.value).__name__, message=str(raised.value), frames=[])
    lines = explain(life(told), 0, 0, tmp_path)
    assert lines[-2] == f"  {FROM_DDP}"
    assert (Path(__file__).parents[2] / FROM_DDP.rpartition(" ")[2]).is_file()


def test_other_missing_keys_are_no_matter_of_ddp(tmp_path: Path) -> None:
    for tail in ("KeyError: 'LANG'", "KeyError: 'RANKED'", "ValueError: RANK", "KeyError: rank"):
        assert not any("from_ddp" in line for line in explain(life(tail), 0, 0, tmp_path))


@pytest.mark.parametrize(
    "error",
    [
        "AttributeError: module 'random' has no attribute 'Random'",
        "AttributeError: partially initialized module 'random' has no attribute 'x' (most likely)",
        "ImportError: cannot import name 'Random' from 'random' (/home/me/random.py)",
        "ModuleNotFoundError: No module named 'random.x'; 'random' is not a package",
    ],
)
def test_a_file_that_shadows_a_module_is_named_with_the_remedy(tmp_path: Path, error: str) -> None:
    tail = (
        f'Traceback (most recent call last):\n  File "train.py", line 1\n    import torch\n{error}'
    )
    hint = "  hint: rename /home/me/random.py: it is imported instead of the module random"
    shadowing = {"random": "/home/me/random.py", "queue": "/home/me/queue.py"}
    assert hint in explain(life(tail), 0, 0, tmp_path, shadowing)
    caught = f"{tail}\n\nDuring handling\n\nTraceback (most recent call last):\nImportError: x"
    assert hint in explain(life(caught), 0, 0, tmp_path, shadowing)
    other = tail.replace("'random'", "'statistics'").replace("'random.x'", "'statistics.x'")
    assert not any("hint" in line for line in explain(life(other), 0, 0, tmp_path, shadowing))
    assert not any("hint" in line for line in explain(life(tail), 0, 0, tmp_path))


def test_a_hint_comes_after_the_error_below_a_long_usage(tmp_path: Path) -> None:
    error = "shapes.py: error: unrecognized arguments: -n 4"
    shown = explain(life(f"usage: shapes.py [-h]\n  [--noise NOISE]\n{error}"), 0, 0, tmp_path)
    assert (shown[3], shown[4][:8]) == (f"  {error}", "  hint: ")


def test_what_a_worker_of_a_data_loader_was_refused_for_is_shown(tmp_path: Path) -> None:
    ended = "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"
    tail = f"gossip.errors.ConfigError: no\nhint: put it below\nTraceback\n{ended}\n"
    write(tmp_path, type="RuntimeError", message=ended.partition(": ")[2], frames=[])
    assert "  hint: put it below" in explain(life(tail), 0, 0, tmp_path)
    write(tmp_path, type="RuntimeError", message="another", frames=[])
    assert "  hint: put it below" not in explain(life(tail), 0, 0, tmp_path)
