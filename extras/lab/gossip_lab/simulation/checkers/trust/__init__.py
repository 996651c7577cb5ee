"""Checkers of trust: the suspected peers, and the evidence against them."""

from . import lengths, omissions, quarantine
