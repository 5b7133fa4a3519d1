"""Placement policies: which group a job joins, which nodes it is pinned to, and whether it moves."""
