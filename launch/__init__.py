"""Launcher of peers: the ``gossip`` command. It imports nothing costly: ``gossip --help`` must be
quick."""
