"""The peers of a run on this machine: started, watched, stopped, explained."""
