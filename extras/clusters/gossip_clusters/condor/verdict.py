"""``python -m gossip_clusters.condor.verdict``: the last node of a DAG. It determines the outcome
of the run from the files of the peers.

Its exit code is 0 if at least one peer has finished, and is also the outcome of the DAG.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gossip.errors import ConfigError, GossipError
from gossip.launch.report import RUNS, print_error
from gossip.launch.schedulers import read_ad, run_of, verdict

FAILED = 1


def main() -> int:
    try:
        ad = read_ad(os.environ.get("_CONDOR_JOB_AD", ""))
        if not ad:
            raise ConfigError(
                "this is not a job of HTCondor",
                "python -m gossip.launch.schedulers.task_runs FOLDER 1 does the same",
            )
        return verdict(Path(RUNS) / run_of(ad), FAILED)
    except GossipError as error:
        print_error(error)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
