"""Phase durations, and how they change over a job's life."""
