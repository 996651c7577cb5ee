"""Pipelines of gossip peers: plans, stages, and the search for better initial weights."""
