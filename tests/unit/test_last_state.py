"""What a peer leaves on disk that gives up, and what is said of it when all are lost."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gossip.launch.local import lost_state
from gossip.training.last_state import LastState
from gossip.training.state import plan_state


def leave(folder: Path, round_id: int) -> str:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return LastState(folder, {"run": "r", "peer": 0}).leave(
        round_id, "too few", lambda: plan_state(model, optimizer, {})
    )


def round_of(place: Path) -> int:
    """Of a folder that is whole."""
    manifest = json.loads((place / "manifest.json").read_text())
    assert {each.stem: each.stat().st_size for each in place.glob("*.safetensors")} == {
        name: about["bytes"] for name, about in manifest["files"].items()
    }
    return int(manifest["round"])


def test_what_is_left_replaces_what_was_left_before(tmp_path: Path) -> None:
    for round_id in (3, 7):
        assert f"its state of round {round_id} is in {tmp_path / 'last_state'}" in leave(
            tmp_path, round_id
        )
    assert round_of(tmp_path / "last_state") == 7
    assert os.listdir(tmp_path) == ["last_state"]


def test_one_from_before_stays_where_the_new_one_cannot_be_put(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leave(tmp_path, 3)
    rename = Path.rename

    def refuse_new(path: Path, target: Any) -> Path:
        if path.name == ".last_state.new":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    assert "could not be written" in leave(tmp_path, 7)
    assert round_of(tmp_path / "last_state") == 3
    assert os.listdir(tmp_path) == ["last_state"]


class Killed(BaseException):
    """At this very moment: nothing is tidied up by hand."""


@pytest.mark.parametrize("fails_at", ["rename", "rmtree"])
def test_who_is_killed_at_any_moment_leaves_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails_at: str
) -> None:
    peer = tmp_path / "peer-0"
    leave(peer, 3)
    for moment in range(1, 4):
        left = moment

        def counted(act: Any) -> Any:
            def call(*given: Any, **how: Any) -> Any:
                nonlocal left
                done = act(*given, **how)
                left -= 1
                if not left:
                    raise Killed
                return done

            return call

        with monkeypatch.context() as patch:
            owner = Path if fails_at == "rename" else shutil
            patch.setattr(owner, fails_at, counted(getattr(owner, fails_at)))
            with contextlib.suppress(Killed):
                leave(peer, 3 + moment)
        whole = [
            place
            for place in peer.iterdir()
            if (place / "manifest.json").exists() and place.name != ".last_state.new"
        ]
        assert whole
        assert all(round_of(place) >= 3 for place in whole)
        assert "safetensors (round " in lost_state.hints(tmp_path)[0]


def test_names_are_on_the_disk_before_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    leave(tmp_path, 3)
    assert synced[-2:] == [str(tmp_path / ".last_state.new"), str(tmp_path)]


def test_what_peers_left_is_named_with_its_round_when_the_state_is_lost(tmp_path: Path) -> None:
    for peer, round_id in enumerate((4, 11, 9)):
        leave(tmp_path / f"peer-{peer}", round_id)
    states = [
        f"{tmp_path}/peer-{peer}/last_state/state.safetensors (round {at})"
        for peer, at in ((1, 11), (2, 9), (0, 4))
    ]
    assert lost_state.hints(tmp_path)[0] == f"  on disk: {', '.join(states)}"
    (tmp_path / "peer-1" / "last_state" / "manifest.json").write_text("[")
    assert "peer-1/last_state/state.safetensors (round unknown)" in lost_state.hints(tmp_path)[0]
