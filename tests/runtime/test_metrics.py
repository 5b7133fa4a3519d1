"""Figures of a service are kept as they are written, under the names that docs/guides/serve.md lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.metrics import DEFINITIONS, Metrics

DOCS = Path(__file__).parents[2] / "docs" / "guides" / "serve.md"


def test_gauges_are_set_counters_add_up_and_histograms_count() -> None:
    pytest.importorskip("ray")
    metrics = Metrics()
    for value in (1.0, 3.0):
        metrics.write("rollmux_queue_length", value)
        metrics.write("rollmux_permits", value, pool="rollout")
        metrics.write("rollmux_permit_wait_seconds", value, pool="rollout")
    metrics.write("rollmux_permits", 5.0, pool="training")
    assert [(sample.name, sample.tags, sample.value, sample.times) for sample in metrics.read()] == [
        ("rollmux_permit_wait_seconds", {"pool": "rollout"}, 4.0, 2),
        ("rollmux_permits", {"pool": "rollout"}, 4.0, 2),
        ("rollmux_permits", {"pool": "training"}, 5.0, 1),
        ("rollmux_queue_length", {}, 3.0, 2),
    ]


def test_every_figure_is_documented() -> None:
    text = DOCS.read_text()
    for name, definition in DEFINITIONS.items():
        assert f"`{name}`" in text and all(f"`{tag}`" in text for tag in definition.tags)
