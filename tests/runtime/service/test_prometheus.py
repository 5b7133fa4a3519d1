"""What Prometheus reads of a service: its own parsers understand every figure."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from runtime.metrics import BOUNDARIES_S, DEFINITIONS, Metrics, Sample
from runtime.service.prometheus import exported_names, to_text


def every_figure() -> list[Sample]:
    """Two of each that there are tags for."""
    metrics = Metrics()
    for name, definition in DEFINITIONS.items():
        for tags in ({tag: "one" for tag in definition.tags}, {tag: "two" for tag in definition.tags}):
            for value in (0.02, 7.0):
                metrics.write(name, value, **tags)
    return metrics.read()


def test_the_text_is_as_the_format_says() -> None:
    metrics = Metrics()
    metrics.write("rollmux_queue_length", 2)
    metrics.write("rollmux_permits", 3, pool="rollout")
    metrics.write("rollmux_iterations", 1, job_id='a"\\\n')
    assert to_text(metrics.read()) == (
        "# HELP rollmux_iterations_total iterations done\n"
        "# TYPE rollmux_iterations_total counter\n"
        'rollmux_iterations_total{job_id="a\\"\\\\\\n"} 1.0\n'
        "# HELP rollmux_permits_total permits given\n"
        "# TYPE rollmux_permits_total counter\n"
        'rollmux_permits_total{pool="rollout"} 3.0\n'
        "# HELP rollmux_queue_length jobs that wait for a place\n"
        "# TYPE rollmux_queue_length gauge\n"
        "rollmux_queue_length 2.0\n"
    )
    assert to_text([]) == ""


def test_what_is_no_number_is_written_as_prometheus_reads_it() -> None:
    values = {"nan": float("nan"), "up": float("inf"), "down": -float("inf")}
    text = to_text([Sample("rollmux_slo_slack", {"job_id": name}, value, 1) for name, value in values.items()])
    assert [line.split()[-1] for line in text.splitlines()[2:]] == ["NaN", "+Inf", "-Inf"]


def test_its_own_parser_reads_what_was_written() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    samples = every_figure()
    families = {family.name: family for family in parser.text_string_to_metric_families(to_text(samples))}
    assert families.keys() == DEFINITIONS.keys()
    assert {sample.name for family in families.values() for sample in family.samples} == exported_names()
    for name, definition in DEFINITIONS.items():
        assert (families[name].type, families[name].documentation) == (definition.kind, definition.description)
    waits = [sample for sample in families["rollmux_permit_wait_seconds"].samples if sample.labels["pool"] == "one"]
    counts = {sample.labels["le"]: sample.value for sample in waits if "le" in sample.labels}
    assert counts == {**{str(end): float(end >= 0.02) + (end >= 7.0) for end in BOUNDARIES_S}, "+Inf": 2.0}
    assert [sample.value for sample in waits if "le" not in sample.labels] == [7.02, 2.0]


def test_promtool_has_nothing_to_say_of_it() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    checked = subprocess.run([promtool, "check", "metrics"], input=to_text(every_figure()), capture_output=True, text=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
