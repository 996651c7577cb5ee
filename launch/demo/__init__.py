"""The digits under faults."""
