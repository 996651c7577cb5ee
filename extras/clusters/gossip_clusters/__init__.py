"""Jobs for HTCondor and Kubernetes. They were tested without a real cluster."""
