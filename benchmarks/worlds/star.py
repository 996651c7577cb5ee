"""A hub and leaves: the graph with the largest differences of degrees."""

from gossip.topologies import Plan, Roster, topology


@topology
def star(roster: Roster, round_id: int, seed: int, *, metropolis: bool = False) -> Plan:
    """Return a star: the peer with the lowest id exchanges with all others, and they exchange only
    with this peer."""
    hub, *leaves = roster
    pushes = {hub: tuple(leaves), **dict.fromkeys(leaves, (hub,))}
    return Plan(pushes=pushes, metropolis=metropolis)
