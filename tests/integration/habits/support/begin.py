"""Runs before a script in plain torch: ``import gossip`` gives ``plain``."""

import os
import sys

sys.path.insert(1, os.environ["HABIT_SUPPORT"])
import plain

sys.modules["gossip"] = plain
