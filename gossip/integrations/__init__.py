"""Training loops of other libraries, hooked to a swarm: ``gossip.integrations.transformers``,
``.lightning`` and ``.accelerate``. Each needs its library, which is an extra of this package."""
