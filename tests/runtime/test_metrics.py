"""Figures of a service are kept as they are written, under the names that docs/guides/monitoring.md lists."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.metrics import BOUNDARIES_S, DEFINITIONS, MetricsRegistry
from tests.test_monitoring import exported_names

DOCS = Path(__file__).parents[2] / "docs" / "guides" / "monitoring.md"


def every_figure() -> MetricsRegistry:
    """Two of each that there are tags for."""
    metrics = MetricsRegistry()
    for name, definition in DEFINITIONS.items():
        for tags in ({tag: "one" for tag in definition.tags}, {tag: "two" for tag in definition.tags}):
            for value in (0.02, 7.0):
                metrics.write(name, value, **tags)
    return metrics


def values(metrics: MetricsRegistry) -> dict[tuple[str, ...], float]:
    """What Prometheus reads: by the name of a series and the values of its labels."""
    families = text_string_to_metric_families(metrics.text())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_gauges_are_set_counters_add_up_and_histograms_count() -> None:
    metrics = MetricsRegistry()
    for value in (1.0, 3.5, 2000.0):
        metrics.write("rollmux_queue_length", value)
        metrics.write("rollmux_permits", value, pool="rollout")
        metrics.write("rollmux_permit_wait_seconds", value, pool="rollout")
    metrics.write("rollmux_permits", 5.0, pool="training")
    found = values(metrics)
    assert found["rollmux_queue_length",] == 2000
    assert (found["rollmux_permits_total", "rollout"], found["rollmux_permits_total", "training"]) == (2004.5, 5)
    assert found["rollmux_permit_wait_seconds_sum", "rollout"] == 2004.5
    assert found["rollmux_permit_wait_seconds_count", "rollout"] == 3
    ends = {**{str(end): float((end >= 1) + (end >= 3.5)) for end in BOUNDARIES_S}, "+Inf": 3.0}  # an end belongs to its bucket
    assert {key[1]: value for key, value in found.items() if key[0].endswith("_bucket")} == ends


def test_figures_of_jobs_that_have_ended_go_after_a_while() -> None:
    metrics = MetricsRegistry()
    for job in ("old", "new"):
        metrics.write("rollmux_iterations", 1.0, job_id=job)
        metrics.write("rollmux_at_risk", 0.0, job_id=job)
    metrics.write("rollmux_queue_length", 1.0)

    def jobs() -> set[tuple[str, ...]]:
        return {key for key in values(metrics) if len(key) > 1}

    metrics.keep_jobs({"new"})
    assert {job for _, job in jobs()} == {"old", "new"}  # they can still be scraped
    metrics.keep_jobs({"new"}, ended_s=0.0)
    assert jobs() == {("rollmux_iterations_total", "new"), ("rollmux_at_risk", "new")}
    assert values(metrics)["rollmux_queue_length",] == 1


def test_every_figure_is_documented() -> None:
    text = DOCS.read_text()
    for name, definition in DEFINITIONS.items():
        assert f"`{name}`" in text and all(f"`{tag}`" in text for tag in definition.tags)


def test_every_figure_is_exported_as_what_it_is() -> None:
    families = {family.name: family for family in text_string_to_metric_families(every_figure().text())}
    assert families.keys() == DEFINITIONS.keys()
    assert {sample.name for family in families.values() for sample in family.samples} == exported_names()
    for name, definition in DEFINITIONS.items():
        assert (families[name].type, families[name].documentation) == (definition.kind, definition.description)


def test_promtool_has_nothing_to_say_of_it() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    checked = subprocess.run([promtool, "check", "metrics"], input=every_figure().text(), capture_output=True, text=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
