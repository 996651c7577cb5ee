"""Peers as jobs of HTCondor."""
