"""A small model under ``gossip run``, with local steps that each last a stated time.

The model predicts which of 32 tokens follows two others. Each peer writes its number of steps and
its computing time to ``computed-PEER.json`` in the run's folder. The run ends at the round that the
file ``until`` in this folder names. ``slow_links.py`` starts it; ``planned_storm.py`` trains the
same model.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

TOKENS, WIDTH = 32, 32
SAMPLES, HELD_OUT = 200_000, 2_000


def source(seed: int = 0) -> tuple[Any, Any]:
    """Return training samples and test samples. A sample is two tokens and the token that
    follows."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    first, second = 1.5 * torch.randn(2, TOKENS, TOKENS, generator=draw)
    before = torch.randint(TOKENS, (SAMPLES + HELD_OUT, 2), generator=draw)
    chances = torch.softmax(first[:, None] + second[None], dim=2).flatten(0, 1)
    # Invert the cumulative distribution, so that a restarted peer generates all samples quickly.
    of_pair = before[:, 0] * TOKENS + before[:, 1]
    upto = (chances.cumsum(dim=1) + torch.arange(TOKENS**2)[:, None]).flatten()
    lots = of_pair + torch.rand(len(before), generator=draw)
    follows = (torch.searchsorted(upto, lots) - TOKENS * of_pair).clamp(0, TOKENS - 1)
    rows = torch.cat([before, follows[:, None]], dim=1)
    return rows[:SAMPLES], rows[SAMPLES:]


def model_of(hidden: int, layers: int = 0) -> Any:
    """Return a model with 97 parameters for each hidden unit and 1,056 others. Each of ``layers``
    further hidden layers adds ``hidden * (hidden + 1)`` parameters."""
    from torch import nn

    deeper = [part for _ in range(layers) for part in (nn.Linear(hidden, hidden), nn.ReLU())]
    return nn.Sequential(
        nn.Embedding(TOKENS, WIDTH),
        nn.Flatten(),
        nn.Linear(2 * WIDTH, hidden),
        nn.ReLU(),
        *deeper,
        nn.Linear(hidden, TOKENS),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.04, help="seconds that a step sleeps")
    parser.add_argument("--batch", type=int, default=8, help="samples of a peer in a step")
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--layers", type=int, default=0, help="more hidden layers")
    options = parser.parse_args()

    import torch
    from torch.nn.functional import cross_entropy

    import gossip

    peer = gossip.init()
    rows, _ = source()
    torch.manual_seed(0)
    model = model_of(options.hidden, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = peer.prepare(model, optimizer)
    loader = peer.shard(torch.utils.data.DataLoader(rows, batch_size=options.batch, shuffle=True))
    assert peer.run_dir is not None
    until, steps, computed_s = peer.run_dir / "until", 0, 0.0
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        began = time.monotonic()
        optimizer.zero_grad()
        cross_entropy(model(batch[:, :2]), batch[:, 2]).backward()
        time.sleep(options.pause)
        steps, computed_at = steps + 1, time.monotonic()
        optimizer.step()
        local = peer.step % options.local_steps > 0  # no round ended with it
        computed_s += (time.monotonic() if local else computed_at) - began
        if not local and is_over(until, peer.round):
            break
    computed = {"steps": steps, "computed_s": computed_s}
    (peer.run_dir / f"computed-{peer.id}.json").write_text(json.dumps(computed))
    peer.close()


def is_over(until: Path, round_id: int) -> bool:
    return until.exists() and round_id >= int(until.read_text())


if __name__ == "__main__":
    main()
