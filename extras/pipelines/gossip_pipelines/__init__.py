"""Pipelines of peers, and the search for better initial weights."""
