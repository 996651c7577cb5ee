"""What tests fork ends as what they would have executed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import zygote

SAYS = "import atexit, sys, threading, time\natexit.register(print, 'at exit')\nprint('said')\n"


@pytest.mark.parametrize(
    "ends",
    [
        "",
        "sys.exit()",
        "sys.exit(3)",
        "sys.exit(-1)",
        "sys.exit(True)",
        "sys.exit('no such file')",
        "sys.exit(('no', 'number'))",
        "1 / 0",
        "raise KeyboardInterrupt",
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()",
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "sys.stdout.close()",
    ],
)
def test_a_forked_command_ends_as_the_interpreter_ends_it(ends: str) -> None:
    command = [sys.executable, "-c", SAYS + ends]
    forked, executed = (
        run(command, capture_output=True, text=True, timeout=60)
        for run in (zygote.run, subprocess.run)
    )
    assert (forked.returncode, forked.stdout) == (executed.returncode, executed.stdout)
    # A traceback also shows how the fork came there.
    assert forked.stderr.splitlines()[-1:] == executed.stderr.splitlines()[-1:]


def test_a_forked_command_goes_on_as_the_one_that_it_executes() -> None:
    words = "sys.executable, '-m', 'gossip.launch.cli', '--version'"
    code = f"import os, sys\nos.execve(sys.executable, [{words}], dict(os.environ))"
    forked, executed = (
        run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        for run in (zygote.run, subprocess.run)
    )
    assert (forked.returncode, forked.stdout) == (executed.returncode, executed.stdout)
    assert forked.stdout.startswith("gossip")


def test_a_forked_script_is_told_what_an_executed_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "beside.py").write_text("HERE = 'beside'\n")
    (tmp_path / "lab" / "script.py").write_text(
        "import sys\nfrom beside import HERE\n"
        "print(sys.argv, sys.orig_argv, __name__, __file__, sys.path[0], HERE)\n"
    )
    command = [sys.executable, "-u", "lab/script.py", "-m", "5"]
    forked, executed = (
        run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        for run in (zygote.run, subprocess.run)
    )
    assert (forked.stdout, forked.stderr) == (executed.stdout, executed.stderr)
    assert "beside" in forked.stdout
