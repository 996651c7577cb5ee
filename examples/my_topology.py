"""A topology of one's own, without a server:

gossip run -n 4 --topology examples/my_topology.py:hypercube examples/train.py
"""

from gossip.topologies import Plan, Roster, topology


@topology
def hypercube(roster: Roster, round_id: int, seed: int) -> Plan:
    """Each peer exchanges with one other: in round r with the one whose number differs in bit r, of
    as many bits as there are. Of 2^k peers everybody has heard of all after k rounds."""
    peers = sorted(roster.peers)
    bits = max(1, (len(peers) - 1).bit_length())
    pushes = {}
    for at, peer in enumerate(peers):
        other = at ^ (1 << round_id % bits)
        pushes[peer] = (peers[other],) if other < len(peers) else ()
    return Plan(pushes=pushes)
