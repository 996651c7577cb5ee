"""Starts and supervises peers: the ``gossip`` command. Imports nothing costly: ``gossip --help``
must be quick."""
