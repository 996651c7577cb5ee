"""Jobs of batch systems that no real cluster of ours has run yet: HTCondor, Kubernetes."""
