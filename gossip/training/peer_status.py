"""Position of this peer in the run, for its script."""

from __future__ import annotations

from pathlib import Path

import torch

from .peer_run import PeerRun
from .script_steps import ScriptSteps


class PeerStatus:
    """Properties of a ``Session``."""

    _run: PeerRun
    _steps: ScriptSteps

    @property
    def id(self) -> int:
        """Number of this peer, from 0."""
        return self._run.peer

    @property
    def round(self) -> int:
        """Number of the next round, from 0. The records of the run use this number."""
        return self._run.applied.round_id

    @property
    def step(self) -> int:
        """Number of the next step, from 0. A step counts also if no peer had an update for it, so
        that it changed nothing. A collective operation, such as ``mean``, takes a round and is not
        a step. With ``local_steps`` each round counts as that number of steps. With ``overlap`` the
        last step may be in flight."""
        return self._run.step

    @property
    def stepped(self) -> bool:
        """Whether the last ``optimizer.step()`` was one step of the run. A late peer applies
        several steps in one call, or none. For work that must run once per step use
        ``each_step``."""
        return self._steps.advanced == 1

    @property
    def is_main(self) -> bool:
        """Whether this peer does the work that is done once per run, such as printing. The main
        peer is the lowest of the roster that is trusted to serve, the same for all peers in a
        round. If it dies, another peer becomes the main peer. To write a file once, use
        ``save``."""
        return self._run.view.main == self.id

    @property
    def device(self) -> torch.device:
        """Device for the model of this peer: a CUDA device, assigned in turn to the peers of a
        host, or else the CPU. The run does not depend on it."""
        devices = torch.cuda.device_count()
        return torch.device("cuda", self.id % devices) if devices else torch.device("cpu")

    @property
    def initial_peers(self) -> int:
        """Number of peers at the start of the run. It never changes."""
        return self._run.config.peers

    @property
    def planned_peers(self) -> int:
        """Number of peers for which epochs are planned."""
        return self._run.planned_peers

    @property
    def roster(self) -> tuple[int, ...]:
        """Numbers of the peers in the roster of the present round, ascending, this one included."""
        return self._run.view.roster

    @property
    def roster_peers(self) -> int:
        """Number of peers in ``roster``."""
        return len(self.roster)

    @property
    def alive_peers(self) -> int:
        """Number of peers of the roster that are alive in this peer's view."""
        return self._run.view.alive

    @property
    def run_dir(self) -> Path | None:
        """Folder of the run. None when the run writes nothing, as in a script started alone."""
        return self._run.run_dir

    @property
    def finished(self) -> bool:
        """Whether the run is over: all its rounds are done, or its end was requested."""
        return self._run.is_over

    @property
    def confirmed(self) -> bool | None:
        """Whether enough other peers confirmed that they hold the same final parameters.

        False if too few confirmed, so a Byzantine server of the last round may have forged them.
        None if training is not over, or ``f`` is 0, or replicas differ anyway, as in gossip rounds.
        A script with its own loop gets the answer after ``close()``.
        """
        return self._run.node.confirmed

    @property
    def closed(self) -> bool:
        """Whether this peer has left the swarm."""
        return self._run.is_closed
