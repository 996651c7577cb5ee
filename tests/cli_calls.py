"""The command ``gossip``, called in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gossip.launch.cli import commands as cli


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Gossip = Callable[..., Done]


def gossip_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *first: str
) -> Gossip:
    """Return a function that runs ``gossip`` with these and further words."""

    def call(*words: str, cwd: Path | None = None) -> Done:
        if cwd is not None:
            monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["gossip", *first, *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said, code = capsys.readouterr(), ended.value.code
        return Done(code if isinstance(code, int) else 0, said.out, said.err)

    return call
