"""What the trajectories of a run's rollouts were like: a file of each job in its folder, a line a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollmux_env.timing.trajectories import Trajectory
from runtime.output import append_bounded

TRAJECTORIES = "trajectories"
LARGEST = 64 << 20  # bytes of a file; a larger one loses its older half


def write_trajectories(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Append an iteration's trajectories to a job's file, if there is room on the disk."""
    append_bounded(path, "".join(one.line() + "\n" for one in trajectories), LARGEST)
