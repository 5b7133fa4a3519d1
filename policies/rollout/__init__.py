"""Rollout policies: what happens inside a rollout."""
