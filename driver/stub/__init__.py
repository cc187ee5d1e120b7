"""A gateway that runs on a laptop: real leases, a scripted model, and faults on command."""
