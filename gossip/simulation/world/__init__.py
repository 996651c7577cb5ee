"""The virtual world: clocks, machines, links and trainers, and the faults that befall them."""
