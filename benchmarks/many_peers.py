"""Rounds of 1,000 simulated peers: bytes of a peer in a round, and the largest messages.

    python benchmarks/many_peers.py --peers 64 256 1000
    python benchmarks/many_peers.py --peers 1000 --topology random-k

One line of JSON for each size. 20 rounds, in which one peer is killed, one joins and the killed one
returns. The time grows with the square of the number of peers.

Exit codes: 0 all is well, 1 the peers did not end up together.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import asdict

from gossip_lab.simulation.campaign.many_peers import ManyPeers, many_peers


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", type=int, nargs="+", default=[1000])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--topology", default="rolling")
    options = parser.parse_args()
    well = True
    gc.disable()  # millions of objects that stay, and hardly any cycles of references
    for n in options.peers:
        found = many_peers(
            ManyPeers(n, options.seed, options.rounds, options.topology),
            lambda text: print(text, file=sys.stderr, flush=True),
        )
        print(json.dumps({**asdict(found), "cpu_s": round(time.process_time(), 1)}), flush=True)
        well = well and found.together
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
