"""Bytes between peers: the contract, the codec, and what carries it (memory, ZeroMQ)."""
