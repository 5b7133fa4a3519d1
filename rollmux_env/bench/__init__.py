"""The bench: contenders, seeds, processes, intervals. It is handed policy objects and knows none by name."""
