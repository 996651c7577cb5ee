"""One swarm on many hosts, over the user's own ssh."""
