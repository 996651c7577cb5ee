"""The sans-IO protocol: state machines that take an event and ``now`` and return effects."""
