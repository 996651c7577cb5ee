"""A custom topology without a server:

gossip run -n 4 --topology examples/my_topology.py:hypercube examples/train.py
"""

from gossip.topologies import Plan, Roster, topology


@topology
def hypercube(roster: Roster, round_id: int, seed: int) -> Plan:
    """Pair each peer with one other peer. In round r the ids of both differ in bit r, modulo the
    number of bits. Among 2^k peers, every update has reached all peers after k rounds."""
    peers = sorted(roster.peers)
    bits = max(1, (len(peers) - 1).bit_length())
    pushes = {}
    for at, peer in enumerate(peers):
        other = at ^ (1 << round_id % bits)
        pushes[peer] = (peers[other],) if other < len(peers) else ()
    return Plan(pushes=pushes)
