"""Peers as pods of an indexed job."""
