"""The life of a peer: beginning, going on, coming back, ending."""
