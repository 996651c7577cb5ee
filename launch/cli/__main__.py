"""``python -m gossip.launch.cli``."""

from .commands import main

main()
