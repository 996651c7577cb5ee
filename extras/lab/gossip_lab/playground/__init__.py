"""The playground: training with up to ten thousand simulated peers, on one machine, in virtual
time.

    from gossip_lab.playground import World

    world = World(peers=100, topology="random-k:k=7", faults=("sign_flip:90-99*10",))
    run = world.play(rounds=100, every=10)
    print(run.curve("worst"))

A world is a description: data, model, topology, rule, faults, links. Two engines play a world. The
exact engine runs the real protocol core of each peer in the simulator. The fast engine computes all
peers at once, without messages. ``World.check`` plays a world in both engines, and returns the
first round after which their parameters differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import command
    from .compare import Comparison
    from .moments import Moment
    from .played import PlayedRun, Row
    from .run_commands import RunCommand
    from .sweeps import Sweep, grid
    from .world import World
else:
    __getattr__, __dir__ = lazy(__name__)
