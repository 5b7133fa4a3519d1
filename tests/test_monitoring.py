"""The dashboard and the alerts in examples/deploy show what a service exports, and fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from runtime.metrics import DEFINITIONS

DEPLOY = Path(__file__).parents[1] / "examples" / "deploy"
ENDINGS = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
OF_PROMETHEUS = {"instance", "job", "le"}  # labels that it adds, and those of buckets
TESTS = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'up{{job="rollmux", instance="s"}}', values: '1x10 0x110'}}
      - {{series: 'rollmux_paused{{instance="s"}}', values: '0x10 1x110'}}
      - {{series: 'rollmux_journal_facts{{instance="s"}}', values: '700000x120'}}
      - {{series: 'rollmux_at_risk{{instance="s", job_id="late"}}', values: '1x120'}}
      - {{series: 'rollmux_at_risk{{instance="s", job_id="fine"}}', values: '0x120'}}
      - {{series: 'rollmux_overdue_seconds{{instance="s", job_id="late"}}', values: '0x10 120x110'}}
      - {{series: 'rollmux_jobs{{instance="s", state="running"}}', values: '2x200'}}
      - {{series: 'rollmux_jobs{{instance="s", state="failed"}}', values: '3x3 0x1 1x115'}}
      - {{series: 'rollmux_permits_total{{instance="s", pool="rollout"}}', values: '5x200'}}
      - {{series: 'rollmux_suspect_nodes{{instance="s"}}', values: '1x120'}}
      - {{series: 'rollmux_queue_length{{instance="s"}}', values: '3x200'}}
      - {{series: 'rollmux_permit_latency_seconds_bucket{{instance="s", pool="rollout", le="1.0"}}', values: '0+1x120'}}
      - {{series: 'rollmux_permit_latency_seconds_bucket{{instance="s", pool="rollout", le="3.0"}}', values: '0+2x120'}}
      - {{series: 'rollmux_permit_latency_seconds_bucket{{instance="s", pool="rollout", le="+Inf"}}', values: '0+2x120'}}
    alert_rule_test:
{expected}
"""


def exported_names() -> set[str]:
    """Names of all series that a service exports."""
    return {name + ending for name, definition in DEFINITIONS.items() for ending in ENDINGS[definition.kind]}


def expressions() -> Iterator[str]:
    """Every query of the dashboard and the alerts."""
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (re.sub(r"label_values\((.*), instance\)", r"\1", one["definition"]) for one in dashboard["templating"]["list"][1:])
    for group in rules()["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def rules() -> Any:
    return YAML(typ="safe").load(DEPLOY / "alerts.yaml")


def test_every_metric_and_label_that_is_asked_for_is_exported() -> None:
    used = {name for text in expressions() for name in re.findall(r"\brollmux_\w+", text)}
    assert used <= exported_names() and len(used) > 8
    for text in expressions():
        for name, labels in re.findall(r"\b(rollmux_\w+)\{([^}]*)\}", text):
            figure = next(known for known in DEFINITIONS if name.startswith(known))
            assert {*re.findall(r"(\w+)=", labels)} <= {*DEFINITIONS[figure].tags, *OF_PROMETHEUS}, text


def test_every_figure_of_a_service_is_on_the_dashboard() -> None:
    text = " ".join(expressions())
    assert {name for name in DEFINITIONS if name not in text} <= {"rollmux_stopping"}


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus's checker."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def run(promtool: str, *arguments: str) -> None:
    checked = subprocess.run([promtool, *arguments], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_promtool_accepts_the_rules_and_the_configuration(promtool: str, tmp_path: Path) -> None:
    for name in ("alerts.yaml", "prometheus.yaml"):
        shutil.copy(DEPLOY / name, tmp_path)
    (tmp_path / "rollmux-token").write_text("rollmux_x")
    run(promtool, "check", "rules", str(tmp_path / "alerts.yaml"))
    run(promtool, "check", "config", str(tmp_path / "prometheus.yaml"))


def test_every_alert_fires_after_its_time_and_not_before(promtool: str, tmp_path: Path) -> None:
    after_m = {
        "RollmuxDown": 13,
        "RollmuxPaused": 12,
        "RollmuxJournalLong": 16,
        "RollmuxNoPermits": 65,
        "RollmuxJobAtRisk": 16,
        "RollmuxPhaseOverdue": 12,
        "RollmuxJobsFailed": 8,
        "RollmuxNodesSuspect": 16,
        "RollmuxQueueWaits": 61,
        "RollmuxPermitSlow": 20,
    }
    alerts = {rule["alert"]: rule for group in rules()["groups"] for rule in group["rules"]}
    assert alerts.keys() == after_m.keys()
    labels = {
        "RollmuxDown": "job: rollmux, ",
        "RollmuxJobAtRisk": "job_id: late, ",
        "RollmuxPhaseOverdue": "job_id: late, ",
        "RollmuxJobsFailed": "state: failed, ",
    }
    lines = ["      - {eval_time: 5m, alertname: RollmuxJobsFailed, exp_alerts: []}"]  # the jobs of before have been forgotten
    for name, minutes in after_m.items():
        summary = alerts[name]["annotations"]["summary"].replace("{{ $labels.instance }}", "s")
        summary = summary.replace("{{ $labels.job_id }}", "late").replace("{{ $value | humanizeDuration }}", "2m 0s")
        summary = summary.replace("{{ $value | humanize }}", "700k")
        alert = f"exp_labels: {{{labels.get(name, '')}instance: s, severity: {alerts[name]['labels']['severity']}}}"
        lines.append(f"      - {{eval_time: 1m, alertname: {name}, exp_alerts: []}}")
        lines.append(f"      - {{eval_time: {minutes}m, alertname: {name}, exp_alerts: [")
        lines.append(f"          {{{alert}, exp_annotations: {{summary: {json.dumps(summary)}}}}}]}}")
    test = tmp_path / "test.yaml"
    test.write_text(TESTS.format(rules=DEPLOY / "alerts.yaml", expected="\n".join(lines)))
    run(promtool, "test", "rules", str(test))
