"""Keys of the queue in scenario and job files: budgets and estimates of jobs, and quotas of users."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rollmux_env.fields import Count, FileModel, Index, NonNegative, Positive
from rollmux_env.validation_errors import field_error

Known = Literal["lengths", "estimates", "classes", "nothing"]
"""What is known of the lengths of jobs: a track of `RollMux/Queue-v0`."""


class Budget(FileModel):
    """Limits of a job's cost and time. At least one of them is given."""

    usd: Positive | None = None
    """Largest cost, $: the cost of the job's groups, divided evenly among their members."""
    hours: Positive | None = None
    """Largest time with a place since its admission, hours."""

    @model_validator(mode="after")
    def _says_something(self) -> Budget:
        if self.usd is None and self.hours is None:
            raise field_error("needs usd, hours or both")
        return self


class Estimate(FileModel):
    """Length of a job as its owner states it."""

    iterations: Count
    """Number of iterations that policies see instead of the true one."""

    def after(self, iterations: int) -> Estimate:
        """Return the estimate of a job that arrives again after some iterations: at least one is left."""
        return Estimate(iterations=max(1, self.iterations - iterations))


class Quota(FileModel):
    """Limits and share of a user. Nodes and dollars of a group are divided evenly among its members."""

    nodes: Index | None = None
    """Largest number of nodes of all pools together; null is no limit."""
    usd_per_hour: NonNegative | None = None
    """Largest price of these nodes, $/h; null is no limit."""
    weight: Annotated[Positive, Field(exclude_if=lambda weight: weight == 1)] = 1.0
    """Share of the user beside others with `order=fair`, which divides the user's usage by it."""
    jobs: Index | None = None
    """Largest number of jobs that wait or run, in a service; null is no limit."""
    node_hours: NonNegative | None = None
    """Node-hours of a calendar month (UTC) after which no job gets its first place, in a service; null is no limit."""
    run_hours: Positive | None = None
    """Largest `budget.hours` of a job, which then needs one, in a service; null is no limit."""


OF_SERVICES = ("jobs", "node_hours", "run_hours")  # limits that take submissions or a calendar
