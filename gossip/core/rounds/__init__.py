"""Rounds, with a server and without: who computes, who serves, what is committed."""
