"""What must come about once the faults are over, and how soon."""
