"""A run saves to no folder that has checkpoints of another run: it would remove them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossip.errors import ConfigError
from gossip.run import checkpoints
from gossip.training.saving import CheckpointSaver, SavePlan


@pytest.mark.parametrize(
    ("saved_by", "version", "why"),
    [
        ("former", checkpoints.FORMAT, "has checkpoints of the run former, up to step 4"),
        ("former", 1, "has format 1, this gossip reads 2"),
        ("own", checkpoints.FORMAT, ""),
    ],
)
def test_checkpoints_of_another_run_are_not_saved_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_by: str, version: int, why: str
) -> None:
    with monkeypatch.context() as former:
        former.setattr(checkpoints, "FORMAT", version)
        checkpoints.write(tmp_path, 4, {"model": b"x"}, {"run": saved_by}, keep=9)
    saver = CheckpointSaver(SavePlan(tmp_path, 1, 2), 0, {"run": "own"}, pytest.fail)
    try:
        saver.check_folder(resumes=True)
        if why:
            with pytest.raises(ConfigError, match=why) as refused:
                saver.check_folder(resumes=False)
            assert "save to another folder" in str(refused.value.hint)
        else:
            saver.check_folder(resumes=False)
    finally:
        saver.close()
