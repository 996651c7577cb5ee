"""A launcher of fake peers, as a process of its own:  launch_alone.py RUN_FOLDER MODE"""

from __future__ import annotations

import sys
from pathlib import Path

from gossip.config import RunConfig
from gossip.launch.local import runs
from gossip.launch.local.program import Program
from gossip.launch.report.run_model import RunModel
from gossip.launch.report.screens import PlainScreen

ALL_THERE = "all peers are there"


class TellingScreen(PlainScreen):
    """Says when each peer has told the last that it tells by itself."""

    told = False

    def tick(self, view: RunModel) -> None:
        if not self.told and all(row.accuracy is not None for row in view.rows.values()):
            self.told = True
            print(ALL_THERE, flush=True)


def main() -> int:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    config = RunConfig.load(folder / "config.json")
    outcome = runs.train(
        config,
        Program(str(Path(__file__).resolve().with_name("launch_fake_peer.py")), (mode,)),
        TellingScreen(),
    )
    runs.conclude(folder, outcome)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
