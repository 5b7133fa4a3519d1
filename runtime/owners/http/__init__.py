"""Owners that attach over HTTP, and the leases that give them a job's placement."""
