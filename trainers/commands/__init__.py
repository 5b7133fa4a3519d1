"""The command for training."""
