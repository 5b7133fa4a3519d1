"""Metrics of a service for Prometheus; docs/guides/monitoring.md lists them."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Kind = Literal["gauge", "counter", "histogram"]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDARIES_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper bounds of a histogram's buckets, in seconds; an unbounded bucket follows."""
KEEPS_ENDED_S = 300.0
"""Seconds for which metrics of a job remain after its end: a few scrapes."""


class MetricDefinition(NamedTuple):
    """Definition of a metric.

    Attributes:
        kind: Kind of the metric.
        description: Help text.
        tags: Names of its labels.
    """

    kind: Kind
    description: str
    tags: tuple[str, ...]


DEFINITIONS = {
    "rollmux_nodes": MetricDefinition(
        "gauge", "nodes: busy in a phase, idle in a group, free, suspect, or drained", ("pool", "state")
    ),
    "rollmux_pool_utilization": MetricDefinition(
        "gauge", "share of the pool's recent node-seconds in which a phase held the node", ("pool",)
    ),
    "rollmux_permits": MetricDefinition("counter", "permits given", ("pool",)),
    "rollmux_permit_wait_seconds": MetricDefinition("histogram", "from the wish for a permit to the permit", ("pool",)),
    "rollmux_permit_latency_seconds": MetricDefinition("histogram", "from the permit to the job's process", ("pool",)),
    "rollmux_queue_length": MetricDefinition("gauge", "jobs that wait for a place", ()),
    "rollmux_jobs": MetricDefinition("gauge", "jobs by state", ("state",)),
    "rollmux_iterations": MetricDefinition("counter", "iterations done", ("job_id",)),
    "rollmux_slo_slack": MetricDefinition("gauge", "1 - recent iteration time over the longest that keeps the SLO", ("job_id",)),
    "rollmux_at_risk": MetricDefinition("gauge", "1 while a job breaks its SLO at its recent pace, else 0", ("job_id",)),
    "rollmux_overdue_seconds": MetricDefinition(
        "gauge", "for how long a phase has held nodes over its worst case, else 0", ("job_id",)
    ),
    "rollmux_usd_per_hour": MetricDefinition("gauge", "what the nodes of all groups cost", ()),
    "rollmux_suspect_nodes": MetricDefinition("gauge", "nodes that lost leases may still use, and that are granted to no job", ()),
    "rollmux_paused": MetricDefinition("gauge", "1 while the journal cannot be written and nothing is granted, else 0", ()),
    "rollmux_journal_facts": MetricDefinition("gauge", "facts in the newest part of the journal, which a start reads", ()),
    "rollmux_stopping": MetricDefinition("gauge", "1 once the service is stopping, else 0", ()),
}


_WRITE: dict[Kind, str] = {"gauge": "set", "counter": "inc", "histogram": "observe"}


class MetricsRegistry:
    """Registry of the metrics in `DEFINITIONS`."""

    def __init__(self) -> None:
        from prometheus_client import (
            CollectorRegistry,
            disable_created_metrics,
        )  # not at the top: reports of a folder do without it

        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._figures = {name: _figure(name, definition, self._registry) for name, definition in DEFINITIONS.items()}
        self._tagged: dict[tuple[str, ...], Any] = {}  # metrics by name and values of the labels
        self._written_s: dict[tuple[str, str], float] = {}  # time of the last change, by name and job

    def write(self, name: str, value: float, **tags: str) -> None:
        """Set a gauge, increase a counter, or observe a value of a histogram.

        Args:
            name: Name of the metric.
            value: Value or increase.
            **tags: Values of its labels.
        """
        figure = self._tagged.get(known := (name, *tags.values()))
        if figure is None:
            figure = self._tagged[known] = self._figures[name].labels(**tags) if tags else self._figures[name]
        getattr(figure, _WRITE[DEFINITIONS[name].kind])(value)
        if "job_id" in tags:
            self._written_s[name, tags["job_id"]] = monotonic()

    def keep_jobs(self, job_ids: set[str], ended_s: float = KEEPS_ENDED_S) -> None:
        """Remove metrics of jobs that have ended, so that their number does not grow without bound.

        Args:
            job_ids: Ids of the jobs that have not ended.
            ended_s: Seconds since the last change after which metrics of other jobs are removed.
        """
        before_s = monotonic() - ended_s
        for (name, job_id), written_s in [*self._written_s.items()]:
            if job_id not in job_ids and written_s <= before_s:
                self._figures[name].remove(job_id)
                del self._tagged[name, job_id]
                del self._written_s[name, job_id]

    def text(self) -> str:
        """Return all metrics in Prometheus's text format, version 0.0.4."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()


def _figure(name: str, definition: MetricDefinition, registry: CollectorRegistry) -> Any:
    from prometheus_client import Counter, Gauge, Histogram

    known = name, definition.description, definition.tags
    if definition.kind == "histogram":
        return Histogram(*known, registry=registry, buckets=BOUNDARIES_S)
    return (Gauge if definition.kind == "gauge" else Counter)(*known, registry=registry)
