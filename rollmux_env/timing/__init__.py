"""Prediction of phase durations, and their drift over the life of a job."""
