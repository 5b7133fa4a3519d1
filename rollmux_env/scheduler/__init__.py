"""The scheduler: a state machine without clock, input or output that decides for replays and for real runs alike."""
