"""Integrations with the training loops of other libraries: ``gossip.integrations.transformers``,
``.lightning`` and ``.accelerate``. Each of these modules imports its library. An extra of this
package installs the library."""
