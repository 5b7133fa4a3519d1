"""The bench: policies, seeds, processes, intervals. It receives policy objects and knows none by name."""
