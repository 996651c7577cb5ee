"""The files of a run: who is where, what is written down, keys, and what a scheduler says in the environment."""
