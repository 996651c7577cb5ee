"""Handing over the state of a training to who joins, returns or has lost the thread."""
