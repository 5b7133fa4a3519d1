"""Keys of the phases of a job in scenario files."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from rollmux_env.fields import Count, FileModel, NodeCount, NonNegative, PoolName, Positive, Unwritten, counted_keys
from rollmux_env.validation_errors import field_error


class Actual(FileModel):
    """Actual durations, for event replays: worst_case_s * X with a lognormal X, drawn for every iteration."""

    mean_fraction: Positive
    """Mean of X before the cap, as a fraction of the worst case."""
    cv: NonNegative = 0.0
    """Coefficient of variation of X before the cap."""
    cap: bool = True
    """Whether X is at most 1."""


class Switch(FileModel):
    """Time that a change of jobs on a node adds to a phase, for event replays."""

    warm_s: NonNegative = 0.0
    """Seconds that an event replay adds if a node of the phase last ran another job."""
    cold_s: NonNegative = 0.0
    """Seconds that an event replay adds to the first one in a placement."""


class Phase(FileModel):
    """A job's rollout or training phase."""

    pool: Annotated[PoolName, Field(exclude_if=lambda pool: pool == "rollout")] = "rollout"
    """Name of the pool whose nodes run the phase."""
    nodes: NodeCount = 1
    """Number of nodes that the phase asks for."""
    worst_case_s: Positive
    """Longest duration on that many nodes, seconds; predicted for a job with a model."""
    host_memory_gb: NonNegative = 0.0
    """Host memory that keeps the job resident, GB per node."""
    device_gb: Unwritten[NonNegative] = 0.0
    """Memory that the job keeps on each GPU between its phases, GB."""
    actual: Actual | None = None
    """Actual durations, for event replays; null: every iteration takes the worst case."""
    switch: Switch = Switch()
    """Times of warm and cold starts, for event replays."""


class Training(Phase):
    """A job's training phase."""

    pool: Annotated[PoolName, Field(exclude_if=lambda pool: pool == "training")] = "training"
    """Name of the pool whose nodes run the phase."""
    by_nodes: Annotated[dict[Count, Positive], BeforeValidator(counted_keys("nodes"))] = Field(default={})
    """Longest duration on more nodes: {number of nodes: seconds}. In JSON the numbers are strings."""

    @model_validator(mode="after")
    def _larger(self) -> Training:
        for key in self.by_nodes:
            if key <= self.nodes:
                raise field_error(f"must be above training.nodes, which is {self.nodes}", "by_nodes", key)
        return self

    def seconds_on(self, nodes: int) -> float:
        """Return the worst-case seconds on `nodes` training nodes."""
        seconds = self.worst_case_s
        for key, value in self.by_nodes.items():
            if key <= nodes:
                seconds = value
        return seconds
