"""``python -m gossip.node``."""

import sys

from .loop import main

sys.exit(main())
