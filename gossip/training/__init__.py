"""What touches the user's model: the session, the flat layout, the data, the arena shared with the node."""
