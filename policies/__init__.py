"""Placement, dispatch and rollout policies, and the registry of their names."""
