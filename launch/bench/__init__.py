"""What rules cost, and what they are worth."""
