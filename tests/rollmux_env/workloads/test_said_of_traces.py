"""What a reader of traces rounds, leaves out or makes up, it says in one line with counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command


def test_short_stays_of_a_trace_are_counted(command: Command, tmp_path: Path) -> None:
    trace = tmp_path / "short.csv"
    trace.write_text("timestamp,duration\n0,20\n60,0\n120,36000\n180,12\n")
    status, _, err = command("workload", "philly", "--set", f"csv={trace}", "--out", str(tmp_path / "a.json"))
    assert status == 0 and err.count("\n") == 1
    assert f"{trace}: 3 of 4 rows are jobs (1 are left out: of duration 0, or by the options)" in err
    assert "2 are shorter than an iteration and do one: " in err and " h of work of 10.0 h in the trace" in err
    status, _, err = command(
        "workload", "philly", "--set", f"csv={trace}", "--set", "stays=fixed", "--out", str(tmp_path / "b.json")
    )
    assert status == 0 and "rounded" not in err


def test_jobs_of_a_trace_without_gpus_are_one_node_wide(command: Command, tmp_path: Path) -> None:
    trace = tmp_path / "wide.csv"
    trace.write_text("timestamp,duration,gpu_num\n0,36000,32\n60,36000,8\n")
    asked = ("workload", "philly", "--set", f"csv={trace}", "--out")
    assert "; each has one node of each pool, since columns= names none of gpus; " in command(*asked, str(tmp_path / "a.json"))[2]
    named = ("--set", "columns={gpus: gpu_num}")
    assert "one node" not in command(*asked, str(tmp_path / "b.json"), *named)[2]


def test_short_stays_of_the_authors_traces_are_counted(command: Command, tmp_path: Path) -> None:
    trace = tmp_path / "authors.csv"
    trace.write_text("a,2025-07-30 15:33:33,1,7B_8k\na,2025-07-30 15:33:53,-1\n")
    status, _, err = command("workload", "authors", "--set", f"trace={trace}", "--out", str(tmp_path / "a.json"))
    assert status == 0 and err.count("\n") == 1
    assert f"{trace}: 1 of 1 jobs; the SLOs of 1 are drawn; stays are rounded to iterations; 1 are shorter" in err


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a b", ""])
def test_a_name_that_is_none_is_refused_where_it_is_read(command: Command, tmp_path: Path, name: str) -> None:
    trace = tmp_path / "authors.csv"
    trace.write_text(f"a,2025-07-30 15:33:33,1,7B_8k\n{name},2025-07-30 15:33:53,1,7B_8k\n")
    status, out, err = command("workload", "authors", "--set", f"trace={trace}", "--out", str(tmp_path / "a.json"))
    assert (status, out, err.count("\n")) == (2, "", 1) and f"{trace}: line 2: job: m" in err
