"""Integrations with the training loops of other libraries: ``gossip.integrations.transformers``,
``.lightning`` and ``.accelerate``. Each needs its library, which an extra of this package
installs."""
