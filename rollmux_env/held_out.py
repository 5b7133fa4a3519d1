"""Which streams are for training, and which for evaluation."""

from __future__ import annotations

FIRST_DRAWN_SEED = 2**16  # environments draw the seeds of their streams from here on; those below are for evaluation
