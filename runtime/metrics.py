"""Figures of a service for Prometheus; docs/guides/monitoring.md lists them, `runtime.service.prometheus` writes them as text."""

from __future__ import annotations

from bisect import bisect_left
from time import monotonic
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]
BOUNDARIES_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper ends of a histogram's buckets; one without an end follows."""
KEEPS_ENDED_S = 300.0
"""How long figures of a job stay after its end: a few scrapes."""


class Definition(NamedTuple):
    """A figure: what it is, and by what it is told apart."""

    kind: Kind
    description: str
    tags: tuple[str, ...]


DEFINITIONS = {
    "rollmux_nodes": Definition("gauge", "nodes: busy in a phase, idle in a group, free, or drained", ("pool", "state")),
    "rollmux_pool_utilization": Definition(
        "gauge", "share of the pool's node-seconds of late in which a phase held the node", ("pool",)
    ),
    "rollmux_permits": Definition("counter", "permits given", ("pool",)),
    "rollmux_permit_wait_seconds": Definition("histogram", "from the wish for a permit to the permit", ("pool",)),
    "rollmux_permit_latency_seconds": Definition("histogram", "from the permit to the job's process", ("pool",)),
    "rollmux_queue_length": Definition("gauge", "jobs that wait for a place", ()),
    "rollmux_jobs": Definition("gauge", "jobs by state", ("state",)),
    "rollmux_iterations": Definition("counter", "iterations done", ("job_id",)),
    "rollmux_slo_slack": Definition("gauge", "1 - iteration time of late over the longest that keeps the SLO", ("job_id",)),
    "rollmux_at_risk": Definition("gauge", "1 while a job breaks its SLO if it goes on as of late, else 0", ("job_id",)),
    "rollmux_usd_per_hour": Definition("gauge", "what the nodes of all groups cost", ()),
    "rollmux_suspect_nodes": Definition("gauge", "nodes that lost leases may still use, and that are granted to nobody", ()),
    "rollmux_paused": Definition("gauge", "1 while the journal cannot be written and nothing is granted, else 0", ()),
    "rollmux_stopping": Definition("gauge", "1 once the service is stopping, else 0", ()),
}


class Sample(NamedTuple):
    """A figure: of a gauge the last value, of a counter the sum, of a histogram the sum, and how often it was written.

    Attributes:
        buckets: of a histogram, how many values lie in each bucket of `BOUNDARIES_S` and in the one above.
    """

    name: str
    tags: dict[str, str]
    value: float
    times: int
    buckets: tuple[int, ...] = ()


class _Series:
    """What was written of a figure with the same tags."""

    def __init__(self, kind: Kind) -> None:
        self.value = 0.0
        self.times = 0
        self.written_s = 0.0
        self.buckets = [0] * (len(BOUNDARIES_S) + 1) if kind == "histogram" else []


class Metrics:
    """Takes figures, by the names of `DEFINITIONS`."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, tuple[str, ...]], _Series] = {}

    def write(self, name: str, value: float, **tags: str) -> None:
        """Set a gauge, add to a counter, or note a value of a histogram."""
        definition = DEFINITIONS[name]
        key = name, tuple(tags[tag] for tag in definition.tags)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(definition.kind)
        series.value = value if definition.kind == "gauge" else series.value + value
        series.times += 1
        series.written_s = monotonic()
        if series.buckets:
            series.buckets[bisect_left(BOUNDARIES_S, value)] += 1

    def keep_jobs(self, job_ids: set[str], ended_s: float = KEEPS_ENDED_S) -> None:
        """Forget figures of other jobs, which have ended, when they were last written so many seconds ago.

        Else a service that stays would have more of them every day.
        """
        before_s = monotonic() - ended_s
        for key, series in [*self._series.items()]:
            if DEFINITIONS[key[0]].tags == ("job_id",) and key[1][0] not in job_ids and series.written_s <= before_s:
                del self._series[key]

    def read(self) -> list[Sample]:
        """All figures as they are now."""
        return [
            Sample(name, dict(zip(DEFINITIONS[name].tags, tags, strict=True)), series.value, series.times, tuple(series.buckets))
            for (name, tags), series in sorted(self._series.items(), key=lambda item: item[0])
        ]
