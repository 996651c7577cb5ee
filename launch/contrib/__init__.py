"""Launchers for systems that come with files of their own."""
