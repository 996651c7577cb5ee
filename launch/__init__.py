"""Starts peers and watches over them: the ``gossip`` command. Imports nothing costly:
``gossip --help`` must be quick."""
