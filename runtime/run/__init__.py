"""Carries out a run from its start, or from where it was killed: the driver, its Ray, and who makes the processes of each kind."""
