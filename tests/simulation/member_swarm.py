"""What the tests of memberships use; the swarm itself is also what the benchmark runs."""

from gossip_lab.simulation.world.membership_only import (
    MemberCore,
    all_fine,
    find_changes,
    member_swarm,
)

__all__ = ["MemberCore", "all_fine", "find_changes", "member_swarm"]
