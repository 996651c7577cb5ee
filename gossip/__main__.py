"""The command line for ``python -m gossip``."""

from gossip.launch.cli import main

main()
