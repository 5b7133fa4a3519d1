"""The cluster: its state, the events that change it, the possible decisions, and whether a decision is allowed."""
