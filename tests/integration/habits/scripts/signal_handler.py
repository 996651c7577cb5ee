"""The script has a handler of its own for SIGTERM."""

import signal

import habit

signal.signal(signal.SIGTERM, lambda *_: print("stop"))
peer, model, optimizer = habit.prepared()
habit.train(peer, model, optimizer)
habit.done(peer, model, counts={"kept": callable(signal.getsignal(signal.SIGTERM))})
