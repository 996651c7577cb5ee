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
        """Number of the next step, from 0. A step that changed nothing, because no peer had an
        update for it, is counted, too. A collective operation, such as ``mean``, uses a round but
        is not a step. With ``local_steps``, a round counts as ``local_steps`` steps. With
        ``overlap``, the last step may be in flight."""
        return self._run.step

    @property
    def stepped(self) -> bool:
        """Whether the last ``optimizer.step()`` call applied exactly one step of the run. In a late
        peer, one call may apply several steps or none. For work that must run once per step, use
        ``each_step``."""
        return self._steps.advanced == 1

    @property
    def is_main(self) -> bool:
        """Whether this peer is the main peer, for work that is done once per run, such as printing.
        The main peer is the lowest peer of the roster that is trusted as a server, the same for all
        peers in a round. If it dies, another peer becomes the main peer. To write a file once, use
        ``save``."""
        return self._run.view.main == self.id

    @property
    def device(self) -> torch.device:
        """Suggested device for this peer's model: one of the host's CUDA devices (peer number
        modulo number of devices), or the CPU. Any other device works, too."""
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
        """Numbers of the peers in the roster of the current round, ascending. This peer is
        included."""
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
        """Folder of the run. None if the run writes no files, as in a script started alone."""
        return self._run.run_dir

    @property
    def finished(self) -> bool:
        """Whether the run is over: all its rounds are done, or its end was requested."""
        return self._run.is_over

    @property
    def confirmed(self) -> bool | None:
        """Whether enough other peers confirmed that they hold the same final parameters.

        False if too few confirmed: a Byzantine server of the last round may have forged this peer's
        parameters. None if training is not over, ``f`` is 0, or peers have different parameters by
        design, as in gossip rounds. In a script with its own loop, ``close()`` sets the value.
        """
        return self._run.node.confirmed

    @property
    def closed(self) -> bool:
        """Whether this peer has left the swarm."""
        return self._run.is_closed
