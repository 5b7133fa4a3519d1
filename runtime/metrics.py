"""Figures of a service for Prometheus, by `ray.util.metrics`; docs/guides/serve.md lists them.

What was written is also kept here, so that it can be read where Ray exports nothing.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]
_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]


class Definition(NamedTuple):
    """A figure: what it is, and by what it is told apart."""

    kind: Kind
    description: str
    tags: tuple[str, ...]


DEFINITIONS = {
    "rollmux_nodes": Definition("gauge", "nodes: busy in a phase, idle in a group, or free", ("pool", "state")),
    "rollmux_pool_utilization": Definition(
        "gauge", "share of the pool's node-seconds of late in which a phase held the node", ("pool",)
    ),
    "rollmux_permits": Definition("counter", "permits given", ("pool",)),
    "rollmux_permit_wait_seconds": Definition("histogram", "from the wish for a permit to the permit", ("pool",)),
    "rollmux_permit_latency_seconds": Definition("histogram", "from the permit to the job's process", ("pool",)),
    "rollmux_queue_length": Definition("gauge", "jobs that wait for a place", ()),
    "rollmux_jobs": Definition("gauge", "jobs by state", ("state",)),
    "rollmux_iterations": Definition("counter", "iterations done", ("job",)),
    "rollmux_slo_slack": Definition("gauge", "1 - iteration time of late over the longest that keeps the SLO", ("job",)),
    "rollmux_at_risk": Definition("gauge", "1 while a job breaks its SLO if it goes on as of late, else 0", ("job",)),
}


class Sample(NamedTuple):
    """A figure: of a gauge the last value, of a counter the sum, of a histogram the sum, and how often it was written."""

    name: str
    tags: dict[str, str]
    value: float
    times: int


class Metrics:
    """Takes figures, by the names of `DEFINITIONS`."""

    def __init__(self) -> None:
        from ray.util import metrics

        self._exported: dict[str, Any] = {}
        for name, (kind, description, tags) in DEFINITIONS.items():
            if kind == "histogram":
                self._exported[name] = metrics.Histogram(name, description, boundaries=_SECONDS, tag_keys=tags)
            else:
                self._exported[name] = (metrics.Gauge if kind == "gauge" else metrics.Counter)(name, description, tag_keys=tags)
        self._values: dict[tuple[str, tuple[str, ...]], tuple[float, int]] = {}

    def write(self, name: str, value: float, **tags: str) -> None:
        """Set a gauge, add to a counter, or note a value of a histogram."""
        definition = DEFINITIONS[name]
        key = name, tuple(tags[tag] for tag in definition.tags)
        before, count = self._values.get(key, (0.0, 0))
        self._values[key] = value if definition.kind == "gauge" else before + value, count + 1
        exported = self._exported[name]
        method = {"gauge": "set", "counter": "inc", "histogram": "observe"}[definition.kind]
        getattr(exported, method)(value, tags=tags)

    def read(self) -> list[Sample]:
        """All figures as they are now."""
        return [
            Sample(name, dict(zip(DEFINITIONS[name].tags, tags, strict=True)), *value)
            for (name, tags), value in sorted(self._values.items())
        ]
