"""Figures of a service are kept as they are written, under the names that docs/guides/monitoring.md lists."""

from __future__ import annotations

from pathlib import Path

from runtime.metrics import BOUNDARIES_S, DEFINITIONS, Metrics

DOCS = Path(__file__).parents[2] / "docs" / "guides" / "monitoring.md"


def test_gauges_are_set_counters_add_up_and_histograms_count() -> None:
    metrics = Metrics()
    for value in (1.0, 3.5, 2000.0):
        metrics.write("rollmux_queue_length", value)
        metrics.write("rollmux_permits", value, pool="rollout")
        metrics.write("rollmux_permit_wait_seconds", value, pool="rollout")
    metrics.write("rollmux_permits", 5.0, pool="training")
    buckets = [0] * (len(BOUNDARIES_S) + 1)
    buckets[BOUNDARIES_S.index(1.0)] = buckets[BOUNDARIES_S.index(10.0)] = buckets[-1] = 1  # an end belongs to its bucket
    assert metrics.read() == [
        ("rollmux_permit_wait_seconds", {"pool": "rollout"}, 2004.5, 3, tuple(buckets)),
        ("rollmux_permits", {"pool": "rollout"}, 2004.5, 3, ()),
        ("rollmux_permits", {"pool": "training"}, 5.0, 1, ()),
        ("rollmux_queue_length", {}, 2000.0, 3, ()),
    ]


def test_figures_of_jobs_that_have_ended_go_after_a_while() -> None:
    metrics = Metrics()
    for job in ("old", "new"):
        metrics.write("rollmux_iterations", 1.0, job_id=job)
        metrics.write("rollmux_at_risk", 0.0, job_id=job)
    metrics.write("rollmux_queue_length", 1.0)
    metrics.keep_jobs({"new"})
    assert {sample.tags.get("job_id") for sample in metrics.read()} == {"old", "new", None}  # they can still be scraped
    metrics.keep_jobs({"new"}, ended_s=0.0)
    assert {sample.tags.get("job_id") for sample in metrics.read()} == {"new", None}


def test_every_figure_is_documented() -> None:
    text = DOCS.read_text()
    for name, definition in DEFINITIONS.items():
        assert f"`{name}`" in text and all(f"`{tag}`" in text for tag in definition.tags)
