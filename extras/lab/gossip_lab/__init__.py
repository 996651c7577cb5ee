"""The laboratory of gossip: the simulator with its checkers, and the benchmarks."""
