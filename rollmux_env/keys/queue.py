"""Keys of the queue in scenario and job files: budgets of jobs, and quotas of users."""

from __future__ import annotations

from pydantic import model_validator

from rollmux_env.fields import FileModel, Index, NonNegative, Positive
from rollmux_env.validation_errors import field_error


class Budget(FileModel):
    """What a job may cost and how long it may stay. Exactly what is given counts."""

    usd: Positive | None = None
    """Dollars: of its groups, evenly among their members."""
    hours: Positive | None = None
    """Hours since its admission."""

    @model_validator(mode="after")
    def _says_something(self) -> Budget:
        if self.usd is None and self.hours is None:
            raise field_error("needs usd, hours or both")
        return self


class Quota(FileModel):
    """The most that the jobs of a user may hold at once. Nodes and dollars of a group are those of its members, evenly."""

    nodes: Index | None = None
    """Nodes of all pools together; null is no limit."""
    usd_per_hour: NonNegative | None = None
    """Price of what they hold, $/h; null is no limit."""
