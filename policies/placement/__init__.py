"""Placement policies: which group, which nodes, whether to move."""
