"""What tests fork ends as what they would have executed."""

from __future__ import annotations

import subprocess
import sys

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
