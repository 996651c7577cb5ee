"""A world of the playground as a script under ``gossip run``. Each peer computes updates from the
same samples as its learner in the playground. Then it sleeps until the random duration of the
computation is over.

The script writes parameters to ``parameters-PEER-ROUND.f32`` in the run's folder.
``times-PEER.json`` in this folder has a row for each round: the number of applied rounds, the time,
and the seconds of the computation before it. ``playground_real.py`` starts this script.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

import gossip
from gossip_lab import World
from gossip_lab.playground.networks import make_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("world", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="rounds between two saves")
    options = parser.parse_args()

    torch.set_num_threads(1)
    world = World.from_toml(options.world)
    parts = world.build()
    data, steps = parts.task.data, world.local_steps
    model = make_model(world.model, data.images.shape[1], data.classes, world.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=world.lr)
    peer = gossip.init()
    assert peer.run_dir is not None
    model, optimizer = peer.prepare(model, optimizer)
    local, rows, computed_s = np.array([peer.id]), [], 0.0
    for step in peer.steps(options.rounds * steps):
        began, round_id = time.monotonic(), peer.round
        chosen = parts.task.draw_batches(local, round_id)[0].chunk(steps)[step % steps]
        optimizer.zero_grad()
        cross_entropy(model(data.images[chosen]), data.labels[chosen]).backward()
        computes_s = float(parts.compute(local, round_id)[0]) / steps
        time.sleep(max(0.0, began + computes_s - time.monotonic()))
        computed_s += time.monotonic() - began
        optimizer.step()
        if peer.round == round_id:
            continue  # a local step
        rows.append((peer.round, time.monotonic(), computed_s))
        computed_s = 0.0
        if peer.round % options.every == 0:
            here = parameters_to_vector(model.parameters()).detach().numpy()
            here.tofile(peer.run_dir / f"parameters-{peer.id}-{peer.round}.f32")
    (peer.run_dir / f"times-{peer.id}.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
