"""The cluster: its state, the events that change it, what can be decided, and whether a decision is allowed."""
