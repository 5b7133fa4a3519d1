"""What goes wrong with a job's training, as opposed to what is wrong with its files."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """The job's own numbers cannot be trained on: one line that says which. The weights are finite, and what they were."""
