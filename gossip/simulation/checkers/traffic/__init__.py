"""How much peers say."""
