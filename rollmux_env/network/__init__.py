"""The network between pools: the link that the syncs of all jobs share."""
