"""How long ``gossip report`` takes for a long run, and how large its page is.

The run is made up: its folder has the files that a run of so many rounds and peers would have
left, with liars, a death, a return, a hang and a partition in it. Nothing is trained.

    python benchmarks/report_of_a_long_run.py --rounds 100000 --peers 8
    python benchmarks/report_of_a_long_run.py --peers 200 --rounds 2000 --keep FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from made_up_run import MadeUp, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--pace", type=float, default=25.0, help="Rounds a second.")
    parser.add_argument("--keep", type=Path, help="Leave the run's folder here.")
    options = parser.parse_args()
    run = MadeUp(options.rounds, options.peers, options.pace)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch, "long")
        shutil.rmtree(folder, ignore_errors=True)
        write(run, folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        page = folder / "report.html"
        began, spent = time.monotonic(), os.times()
        command = [sys.executable, "-m", "gossip.launch.cli", "report", str(folder)]
        subprocess.run([*command, "--out", str(page)], check=True)
        wall_s, now = time.monotonic() - began, os.times()
        cpu_s = now.children_user + now.children_system
        cpu_s -= spent.children_user + spent.children_system
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        found = {
            "rounds": run.rounds,
            "peers": run.peers,
            "read_bytes": size,
            "page_bytes": page.stat().st_size,
            "wall_s": round(wall_s, 1),
            "cpu_s": round(cpu_s, 1),
            "memory_bytes": memory,
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main()
