"""Nodes that cost nothing, as those of a team's own may: a ratio that would divide by their dollars is none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from policies.experiments import bench
from policies.registry import PLACEMENT
from policies.replaying import Fidelity
from policies.sweeps import sweep
from rollmux_env.bench.columns import LOST_SHARE, OVER_OPTIMAL, PENALISED, SAVING, SAVING_PER_WORK, SLO_KEPT
from rollmux_env.bench.leaderboard.entries import StreamResult
from rollmux_env.bench.suite import Suite, SuiteCase, suite_rows
from rollmux_env.report.benches import plots_of, tables_of, write_bench
from rollmux_env.report.latex import to_latex
from rollmux_env.report.suites import suite_csv, suite_plots, suite_report, suite_table
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions


@pytest.fixture(scope="module")
def free() -> Scenario:
    data = make_workload("mixed", WorkloadOptions(jobs=6)).model_dump(exclude_none=True)
    for pool in ("rollout", "training"):
        data["cluster"][pool]["usd_per_gpu_hour"] = 0.0
    return Scenario.model_validate(data)


@pytest.mark.parametrize("fidelity", ["fluid", "event"])
def test_a_saving_over_no_dollars_is_none(free: Scenario, fidelity: Fidelity) -> None:
    policies = [name for name in PLACEMENT if name not in ("optimal", "optimal-work", "naive")]
    found = bench(free, policies, fidelity=fidelity)
    assert {(row.cost_usd.mean, row.saving, row.saving_per_work) for row in found.summary} == {(0.0, None, None)}
    assert {one.cost_ratio for one in found.differences} == {None}
    assert all(row.slowdown.mean >= 1 - 1e-9 for row in found.summary)


@pytest.mark.parametrize("policy", ["optimal", "optimal-work"])
def test_a_yardstick_of_free_nodes(free: Scenario, policy: str) -> None:
    found = bench(free, ["solo", policy])
    assert [row.saving for row in found.summary] == [None, None]
    assert all(value is None or math.isfinite(value) for run in found.runs for value in run.extra.values())


def test_tables_plots_and_page(free: Scenario, tmp_path: Path) -> None:
    benched = bench(free)
    tables = tables_of(benched)
    write_bench(tmp_path, benched)
    assert [row["saving"] for row in json.loads((tmp_path / "results.json").read_text())["summary"]] == [None, None]
    assert "0 & - & 0.00 & - &" in "".join(map(to_latex, tables))
    assert 'data-label="saving $"><span class="name">-<' in (tmp_path / "results.html").read_text()
    swept = sweep(free, {"max_group_size": [1, 2]})
    assert "0 & - & 0.00 & - &" in "".join(map(to_latex, tables_of(swept)))
    assert plots_of(swept) and swept.as_dict()


def test_a_suite(free: Scenario) -> None:
    results = bench(free).results
    columns = SAVING, SAVING_PER_WORK, replace(OVER_OPTIMAL, against=("solo",)), replace(PENALISED, against=("solo",))
    case = SuiteCase("free", lambda seed, quick: free, ("solo", "rollmux"))
    suite = Suite("free", "free nodes", "", (case,), (*columns, LOST_SHARE, SLO_KEPT))
    rows = suite_rows(suite, [(case, result) for result in results])
    assert [[row.figures[column.heading] for column in columns] for row in rows] == [[None] * 4] * 2
    json.dumps(suite_report(suite, rows, [0], False), allow_nan=False)
    assert (
        suite_csv(suite, rows, [0], False).count("SLO kept") == 2
        and suite_table(suite, rows, [0], False)
        and suite_plots(suite, rows)
    )


def test_a_leaderboard_without_dollars_scores_nothing() -> None:
    result = StreamResult("mixed", 0, "", False, 0.0, 0.0, 0.0, slo_kept=True, moves=0, decision_ms=0.1)
    assert result.score == 0.0
