"""Timing: how long phases take, and how that changes over a job's life."""
