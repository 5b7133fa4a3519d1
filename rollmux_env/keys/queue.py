"""Keys of the queue in scenario and job files: budgets and estimates of jobs, and quotas of users."""

from __future__ import annotations

from pydantic import model_validator

from rollmux_env.fields import Count, FileModel, Index, NonNegative, Positive
from rollmux_env.validation_errors import field_error


class Budget(FileModel):
    """Limits of a job's cost and time. At least one of them is given."""

    usd: Positive | None = None
    """Largest cost, $: the cost of the job's groups, divided evenly among their members."""
    hours: Positive | None = None
    """Largest time since its admission, hours."""

    @model_validator(mode="after")
    def _says_something(self) -> Budget:
        if self.usd is None and self.hours is None:
            raise field_error("needs usd, hours or both")
        return self


class Estimate(FileModel):
    """Length of a job as its owner states it."""

    iterations: Count
    """Number of iterations that policies see instead of the true one."""


class Quota(FileModel):
    """Limits of what the jobs of a user may hold at once. Nodes and dollars of a group are divided evenly among its members."""

    nodes: Index | None = None
    """Largest number of nodes of all pools together; null is no limit."""
    usd_per_hour: NonNegative | None = None
    """Largest price of these nodes, $/h; null is no limit."""
