"""Where newcomers knock, and where the launchers of a run tell each other where their peers are."""
