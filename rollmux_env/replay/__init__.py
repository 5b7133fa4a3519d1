"""Replays: a scenario and a policy in, an event log and its metrics out."""
