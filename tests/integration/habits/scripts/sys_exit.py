"""The script ends by ``sys.exit()`` in a ``finally``."""

import sys

import habit

peer, model, optimizer = habit.prepared()
habit.train(peer, model, optimizer)
try:
    habit.done(peer, model)
finally:
    sys.exit()
