"""What the tests of memberships use; the swarm itself is also what the benchmark runs."""

from gossip.core import Change, PeerId
from gossip_lab.simulation.world import Swarm
from gossip_lab.simulation.world.membership_only import MemberCore, all_fine, member_swarm

__all__ = ["MemberCore", "all_fine", "find_changes", "member_swarm"]


def find_changes(
    swarm: Swarm[MemberCore], what: str, since: float = 0.0, about: PeerId | None = None
) -> list[tuple[float, PeerId, Change]]:
    """(when, by whom noticed, change), of all present lives."""
    return [
        (at, peer, change)
        for peer, core in swarm.cores.items()
        for at, change in core.changes
        if change.what == what and at >= since and about in (None, change.peer)
    ]
