"""Moves of running jobs that are considered after an event, and what they save."""
