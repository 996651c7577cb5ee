"""The node: one loop on the real clock that holds the sockets, drives the core and serves one trainer."""
