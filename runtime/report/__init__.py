"""The report of a run: figures, a summary, pictures and TensorBoard events."""
