"""Whole steps of published RL jobs and systems: what comparisons with papers need, and nothing of the core."""
