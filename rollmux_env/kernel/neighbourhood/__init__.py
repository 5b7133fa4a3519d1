"""Moves of running jobs that are looked at after an event, and what they save."""
