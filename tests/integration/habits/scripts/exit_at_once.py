"""The script ends by ``os._exit(0)``."""

import os

import habit

peer, model, optimizer = habit.prepared()
habit.train(peer, model, optimizer)
habit.done(peer, model)
os._exit(0)
