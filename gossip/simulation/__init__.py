"""The virtual world: the real core under a virtual clock."""
