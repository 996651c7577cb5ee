"""``python -m gossip.launch.track``."""

import sys

from .exporting import main

sys.exit(main(sys.argv[1:]))
