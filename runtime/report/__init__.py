"""What a run leaves to be read: figures, a summary, pictures, TensorBoard."""
