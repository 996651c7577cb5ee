"""A new agent ends the one before it, and nothing else that a file names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gossip.launch import guardian
from gossip.launch.report import launchers
from gossip.launch.ssh import agent


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tokens by which peers would have been ended."""
    tokens: list[str] = []
    monkeypatch.setattr(guardian, "end", lambda groups, token, mercy_s: tokens.append(token))
    return tokens


def leave(folder: Path, pid: int, **changes: object) -> None:
    until = time.monotonic() + 20.0
    while not launchers.command_of(pid):  # it has just been started
        assert time.monotonic() < until
    found = guardian.stat(pid)
    fields = {"pid": pid, "started": found.started, "token": "0123456789abcdef", **changes}
    (folder / agent.AGENT).write_text(json.dumps(fields))


def test_a_former_agent_and_its_peers_are_ended(tmp_path: Path, ended: list[str]) -> None:
    words = [sys.executable, "-c", "import sys; sys.stdin.read()", "gossip.launch.ssh.agent"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as former:
        leave(tmp_path, former.pid)
        agent._end_former(tmp_path)
        assert former.wait(20) == -9
    assert ended == ["0123456789abcdef"]


@pytest.mark.parametrize(
    "case", ["no agent", "another start", "another user's", "a link", "nonsense", "no token"]
)
def test_nothing_else_is_ended(
    tmp_path: Path, ended: list[str], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "something else" if case == "no agent" else "gossip.launch.ssh.agent"
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", name], stdin=subprocess.PIPE
    ) as other:
        leave(
            tmp_path,
            other.pid,
            **{"another start": {"started": 1}, "no token": {"token": ""}}.get(case, {}),
        )
        if case == "another user's":
            monkeypatch.setattr(agent, "owner_of", lambda fd: os.geteuid() + 1)
        if case == "a link":
            (tmp_path / agent.AGENT).rename(tmp_path / "elsewhere")
            (tmp_path / agent.AGENT).symlink_to(tmp_path / "elsewhere")
        if case == "nonsense":
            (tmp_path / agent.AGENT).write_text("[" * 10_000)
        agent._end_former(tmp_path)
        assert other.poll() is None
    if case not in ("no agent", "another start"):
        assert ended == []
