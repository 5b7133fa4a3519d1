"""Replays: simulate a scenario under a policy and record an event log and metrics."""
