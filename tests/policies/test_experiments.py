"""Results as data: one shape from Python, JSON and CSV; what was observed of each job; sweeps; what is not overwritten."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

import rollmux
from policies.api import ArrivalPolicy, Job, Placement, State, isolated
from policies.experiments import texts_of
from rollmux_env.bench.differences import holm, p_value
from rollmux_env.errors import InputError
from rollmux_env.report.bench_results import results_schema
from rollmux_env.report.bench_tables import broken_words
from rollmux_env.scenario import parse_scenario
from tests.conftest import Command
from tests.test_package import ROOT


def stream(actual: dict[str, float] | None = None) -> rollmux.Scenario:
    """Two jobs that share nodes under `rollmux`: `tight` is slowed down by `loose` and its sampled durations."""
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1}
    phase = {"nodes": 1, "worst_case_s": 50, **({"actual": actual} if actual else {})}
    jobs = [{"id": name, "arrival_s": 0, "iterations": 20, "slo": slo, "rollout": phase, "training": phase} for name, slo in SLOS]
    return parse_scenario({"version": 1, "cluster": {"rollout": pool, "training": pool}, "jobs": jobs})


SLOS = (("tight", 1.001), ("loose", 3.0))
LUCK = {"mean_fraction": 0.6, "cv": 0.5}


class Alone(ArrivalPolicy):
    """Every job on nodes of its own."""

    def place(self, state: State, job: Job) -> Placement | None:
        return isolated(job, state.cluster)


class OneByOne(ArrivalPolicy):
    """One job at a time, although nodes are unlimited."""

    def place(self, state: State, job: Job) -> Placement | None:
        return None if state.group_list() else isolated(job, state.cluster)


class Patient(OneByOne):
    """The same, under another name."""


def test_policies_are_told_apart_by_their_names() -> None:
    class Other(Alone):
        pass

    Other.__name__ = "Alone"
    for policies in ([Alone, Other], [partial(Alone), Alone], ["Alone", Alone]):
        with pytest.raises(InputError, match=r"^policies: two are called Alone, by which results tell them apart"):
            rollmux.bench(stream(), policies)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^policies: must be names or classes, not an object of Alone$"):
        rollmux.bench(stream(), [Alone()])  # type: ignore[list-item]
    for policy, given in (("solo", "'solo'"), (Alone, "Alone")):
        with pytest.raises(InputError, match=rf"^policies: must be a list, as in \[{given}\]$"):
            rollmux.bench(stream(), policy)  # type: ignore[arg-type]
    assert [row.policy for row in rollmux.bench(stream(), [Alone, "solo", Alone, "solo"]).summary] == ["Alone", "solo"]
    assert [row.policy for row in rollmux.bench(stream(), [partial(Alone)]).summary] == ["Alone"]


def test_seeds_may_be_numbers_of_numpy_and_nothing_else() -> None:
    found = rollmux.bench(stream(), ["solo"], np.arange(2))
    assert found.as_dict()["seeds"] == rollmux.bench(stream(), ["solo"], np.int64(2)).as_dict()["seeds"] == [0, 1]  # type: ignore[arg-type]
    for seeds in ([0, -1], [0.5], ["1"]):
        with pytest.raises(InputError, match=r"^seeds: must be whole numbers of at least 0, not "):
            rollmux.bench(stream(), ["solo"], seeds)  # type: ignore[arg-type]


def test_a_class_that_no_process_can_be_sent_is_said_in_a_line() -> None:
    class Local(Alone):
        pass

    with pytest.raises(InputError, match=r"^workers=2: .*Local.*; define it at the top level of a module$"):
        rollmux.bench(stream(), [Local, "solo"], workers=2)


def test_a_policy_that_lets_jobs_wait_on_unlimited_nodes_is_seen_to() -> None:
    """Also beside policies under which no job waits, of which one may be the baseline."""
    for policies in (["solo", OneByOne, Patient], [OneByOne, Patient, "solo"]):
        found = rollmux.bench(stream(), policies)  # type: ignore[arg-type]
        completion_h = {row.policy: row.mean_completion_h and row.mean_completion_h.mean for row in found.summary}
        hours = pytest.approx(1.5 * 20 * 100 / 3600)
        assert completion_h == {"solo": None, "OneByOne": hours, "Patient": hours}
        assert {row.policy: row.sooner is None for row in found.summary}["OneByOne"] == (policies[0] == "solo")
        assert [one.mean_completion_h is None for one in found.differences].count(False) == 1
        table = found.to_latex()
        assert "blank: no job waited" in table and re.search(r"^OneByOne & 0\.8 & .*^\S*% Dollars", table, re.MULTILINE | re.DOTALL)


def test_waits_on_some_seeds_alone_are_told() -> None:
    def now_and_then(seed: int) -> rollmux.Scenario:
        jobs = stream().jobs[: 1 + seed % 2]
        return stream().model_copy(update={"jobs": jobs})

    found = rollmux.bench(now_and_then, ["solo", OneByOne], 2)
    assert found.summary[1].mean_completion_h is None
    assert "OneByOne: jobs waited on some seeds, 0.139 h on average over all; runs.csv of --out has more" in found.to_latex()


@pytest.mark.parametrize("keys", [{"slo": np.linspace(1.25, 1.5, 2)}, {"jobs": [np.int64(2), np.int64(3)]}])
def test_numbers_of_numpy_are_numbers(keys: dict[str, Any]) -> None:
    found = rollmux.sweep("mixed", keys, ["solo"], settings={} if "jobs" in keys else {"jobs": np.int64(2)})
    assert [[*point.swept.values()] for point in found.points] in ([["1.25"], ["1.5"]], [["2"], ["3"]])
    assert texts_of({"csv": Path("a.csv"), "slo": np.array([1, 2])}) == {"csv": "a.csv", "slo": "[1, 2]"}
    with pytest.raises(InputError, match=r"^settings: must be texts, numbers, lists or mappings, not "):
        rollmux.bench("mixed", ["solo"], settings={"jobs": object()})
    with pytest.raises(InputError, match=r"^keys: must be at least one$"):
        rollmux.sweep("mixed", {}, ["solo"])


def test_the_command_prints_what_python_returns(command: Command) -> None:
    found = rollmux.bench("quickstart", ["solo", "rollmux"], 2, dispatch="fifo")
    words = ("bench", "quickstart", "-p", "solo", "-p", "rollmux", "--seeds", "2", "--dispatch", "fifo", "--format")
    printed, ours = json.loads(command(*words, "json")[1]), found.as_dict()
    for report in (printed, ours):
        report.pop("timings")
    assert printed == json.loads(json.dumps(ours))
    rows = list(csv.DictReader(io.StringIO(command(*words, "csv")[1])))
    assert [(row["policy"], row["seed"], float(row["cost_usd"])) for row in rows] == [
        (run.policy, str(run.seed), run.figures.cost_usd) for run in found.runs
    ]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"seeds": 3},
        {"dispatch": "fifo"},
        {"fleet": "2+2"},
        {"failures": "job_h=5,every=4"},
        {"policies": ["solo", "optimal", "gavel", Alone]},
    ],
)
def test_every_result_has_the_shape_of_the_schema(how: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found = rollmux.bench(stream(LUCK), **how)
    schema = json.loads(files("rollmux_env.report").joinpath("results.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    report = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    jsonschema.validate(report, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**report, "schema": 1}, schema)
    report["runs"][0]["jobs"][0].pop("slowdown")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema)


def test_the_schema_file_is_that_of_the_results() -> None:
    assert json.loads(files("rollmux_env.report").joinpath("results.schema.json").read_text()) == results_schema()


def test_solo_has_a_slowdown_of_one_under_its_own_sampling() -> None:
    run = rollmux.replay(stream(LUCK), "solo", fidelity="event")
    for job in run.jobs:
        assert job.slowdown_observed == pytest.approx(1.0) and job.slo_kept_observed
        assert job.slowdown < 0.9, "against worst cases it is faster"
        assert job.saving == pytest.approx(1.0)
        assert job.completion_s == job.departed_s - job.arrived_s and job.queueing_s == 0.0
    assert rollmux.replay(stream(LUCK), "solo").jobs[0].slowdown_observed is None


def test_a_job_whose_slo_is_broken_is_named_everywhere(command: Command, tmp_path: Path) -> None:
    run = rollmux.replay(stream(LUCK), "random", fidelity="event")
    broken = [job for job in run.jobs if not job.keeps_slo]
    assert [job.job for job in broken] == ["tight"] and run.figures.slo_attainment_observed == 0.5
    (tmp_path / "stream.json").write_text(stream(LUCK).canonical_json())
    out = tmp_path / "out"
    words = ("bench", str(tmp_path / "stream.json"), "-p", "random", "--fidelity", "event", "--out", str(out))
    status, table, _ = command(*words)
    said = f"tight {broken[0].slowdown_observed:.3f}x of 1.001x"
    assert status == 0 and f"random: broken SLOs: {said}" in table
    page = (out / "results.html").read_text()
    assert f"50.0% of SLOs kept, as observed; broken: {said}" in page and ">broken<" in page and 'class="bad"' in page
    rows = {row["job"]: row for row in csv.DictReader(io.StringIO((out / "jobs.csv").read_text()))}
    assert (rows["tight"]["slo_kept_observed"], rows["loose"]["slo_kept_observed"]) == ("False", "True")
    written = json.loads((out / "results.json").read_text())
    assert written["runs"][0]["jobs"][0]["slo_kept_observed"] is False and written["versions"]["rollmux"]
    before = (out / "results.json").read_bytes()
    status, _, err = command(*words)
    assert status == 2 and "holds results already (results.json); choose another folder, or --overwrite" in err
    assert (out / "results.json").read_bytes() == before
    assert command(*words, "--overwrite", "--plots", "svg")[0] == 0 and (out / "saving.svg").read_bytes().startswith(b"<?xml")
    assert (out / "results.html").read_text().count("data:image/svg+xml;base64,") == 4


def test_a_broken_slo_is_seen_in_its_digits() -> None:
    run = rollmux.replay(stream(LUCK), "random", fidelity="event")
    barely = replace(run.jobs[0], slowdown_observed=1.0010004, slo=1.001, slo_kept_observed=False)
    assert broken_words([barely]) == "tight 1.0010004x of 1.001x"


@pytest.mark.parametrize("table", ["runs", "jobs", "summary", "differences"])
def test_tables_are_tidy_and_pandas_has_them(table: Any) -> None:
    pandas = pytest.importorskip("pandas")
    found = rollmux.bench(stream(LUCK), ["solo", "rollmux", Alone], 2, fidelity="event")
    frame = found.to_pandas(table)
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == {"runs": 6, "jobs": 12, "summary": 3, "differences": 3}[table]
    assert not any(isinstance(value, dict) for value in frame.to_numpy().ravel())
    with pytest.raises(InputError, match="table: must be one of runs, jobs, summary, differences, timeline, phases, not 'job'"):
        found.to_pandas("job")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def mixed() -> rollmux.BenchResult:
    """Three policies on three short streams."""
    return rollmux.bench("mixed", ["solo", "rollmux", "consolidate"], [3, 4, 5], settings={"jobs": 10})


def test_a_result_is_saved_shown_and_said_in_a_line(mixed: rollmux.BenchResult, command: Command, tmp_path: Path) -> None:
    words = (
        "bench",
        "mixed",
        "-p",
        "solo",
        "-p",
        "rollmux",
        "-p",
        "consolidate",
        "--seed",
        "3",
        "--seeds",
        "3",
        "--set",
        "jobs=10",
    )
    status, latex, err = command(*words, "--format", "latex", "--out", str(tmp_path / "command"))
    assert status == 0, err
    mixed.save(tmp_path / "python")
    names = sorted(path.name for path in (tmp_path / "command").iterdir() if path.suffix != ".lock")
    assert [path.name for path in sorted((tmp_path / "python").iterdir()) if path.suffix != ".lock"] == names
    for name in ("jobs.csv", "differences.csv", "timeline.csv", "saving.png"):
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    with pytest.raises(InputError, match="holds results already"):
        mixed.save(tmp_path / "python")
    with pytest.raises(InputError, match=r"^plots: must be one of png, svg, pdf, not 'jpg'"):
        mixed.save(tmp_path / "jpg", plots="jpg")  # type: ignore[arg-type]
    shown = [re.sub(r"[0-9.]+ ms", "", text) for text in (mixed.to_latex(), latex)]
    assert shown[0] == shown[1] and "<table" in mixed._repr_html_()
    assert len(repr(mixed)) < 150 and len(repr(mixed.runs)) < 1000 and "mixed, 3 seeds, fluid: solo $" in repr(mixed)
    figure = mixed.plot("cost_over_time")
    assert [line.get_label() for line in figure.axes[0].lines] == ["solo", "rollmux", "consolidate"]
    with pytest.raises(InputError, match=r"plot: must be one of cost_over_time, .*, not 'costs'"):
        mixed.plot("costs")


def test_files_of_different_prices_and_nodes_are_drawn_as_they_are() -> None:
    def priced(seed: int) -> rollmux.Scenario:
        data = json.loads(stream().canonical_json())
        for side in ("rollout", "training"):
            data["cluster"][side].update(gpus_per_node=8 + 8 * seed, usd_per_gpu_hour=1 + 9 * seed)
        return parse_scenario(data)

    found = rollmux.bench(priced, ["solo"], 2)
    costs, gpus = found.plot("cost_over_time").axes[0].lines[0], found.plot("gpus_over_time").axes[0].lines[0]
    assert costs.get_ydata()[-1] == pytest.approx(found.summary[0].cost_usd.mean / 1000)
    assert max(gpus.get_ydata()) == found.summary[0].gpus["rollout"]


def test_the_timeline_adds_up_to_the_dollars(mixed: rollmux.BenchResult) -> None:
    run = mixed.runs[1]
    rows = [row for row in mixed.rows("timeline") if (row["policy"], row["seed"]) == (run.policy, run.seed)]
    pools = mixed.stream.cluster.pools
    usd = [sum(row[f"nodes.{name}"] * pool.usd_per_node_hour for name, pool in pools.items()) for row in rows]
    hours = [(b["time_s"] - a["time_s"]) / 3600 for a, b in itertools.pairwise(rows)]
    assert sum(h * price for h, price in zip(hours, usd, strict=False)) == pytest.approx(run.figures.cost_usd)
    assert rows[-1]["nodes.rollout"] == rows[-1]["waiting"] == 0


def test_phases_are_kept_on_request(mixed: rollmux.BenchResult) -> None:
    found = rollmux.bench(stream(LUCK), ["rollmux"], fidelity="event", keep_phases=True)
    rows = found.rows("phases")
    assert sum(row["phase"] == "training" and row["job_id"] == "tight" for row in rows) == 20
    assert all(row["start_s"] < row["end_s"] for row in rows)
    with pytest.raises(InputError, match="phases: were not kept"):
        mixed.rows("phases")
    with pytest.raises(InputError, match=r"^keep_phases: a fluid replay runs no single phases"):
        rollmux.bench(stream(), keep_phases=True)


def test_jobs_say_what_they_are(mixed: rollmux.BenchResult) -> None:
    by_id = {job.id: job for job in mixed.stream.jobs}
    jobs = [job for run in mixed.runs if run.seed == 3 and run.policy == "consolidate" for job in run.jobs]
    assert all(job.t_solo_s == by_id[job.job].solo_s == job.rollout_s + job.training_s for job in jobs)
    run = next(run for run in mixed.runs if run.policy == "consolidate")
    assert sum(job.moves for job in run.jobs) == run.figures.migrations
    assert len({job.group for job in run.jobs}) <= len(run.jobs) and None not in {job.group for job in run.jobs}
    assert rollmux.replay(stream(), "optimal").jobs[0].group is None


def test_p_values_are_those_of_scipy_after_holm(mixed: rollmux.BenchResult) -> None:
    costs = {run.policy: [one.figures.cost_usd for one in mixed.runs if one.policy == run.policy] for run in mixed.runs}
    expected = [ttest_rel(costs[one.policy], costs[one.other]).pvalue for one in mixed.differences]
    assert [one.p["cost_usd"] for one in mixed.differences] == pytest.approx(expected)
    # Holm: the smallest of three is tripled, the next doubled, and none is below one before it.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([None, 0.9]) == [None, 0.9] and holm([0.6, 0.6]) == [1.0, 1.0]
    assert (p_value([0.0, 0.0]), p_value([1.0]), p_value([2.0, 2.0])) == (1.0, None, None)
    one = rollmux.bench(stream(), ["solo", "rollmux"]).differences[0]
    assert one.p["cost_usd"] is None is one.p_holm["cost_usd"]


def test_differences_are_paired_by_seed() -> None:
    found = rollmux.bench("mixed", ["solo", "rollmux"], [3, 4, 5], settings={"jobs": 10})
    costs = {name: [run.figures.cost_usd for run in found.runs if run.policy == name] for name in ("solo", "rollmux")}
    (one,) = found.differences
    assert (one.policy, one.other) == ("solo", "rollmux")
    assert one.cost_usd.mean == pytest.approx(sum(costs["solo"]) / 3 - sum(costs["rollmux"]) / 3)
    assert one.cost_ratio is not None
    assert one.cost_ratio.mean == pytest.approx(sum(b / a for a, b in zip(*costs.values(), strict=True)) / 3)


def test_seeds_that_do_nothing_are_said_to_do_nothing(command: Command) -> None:
    note = "seeds: all give the same here, since nothing is drawn"
    assert note in command("bench", "quickstart", "-p", "solo", "--seeds", "2")[1]
    assert note not in command("bench", "quickstart", "-p", "solo", "-p", "random", "--seeds", "2")[1]
    assert note not in command("bench", "quickstart", "-p", "solo")[1]
    swept = ("bench", "quickstart", "-p", "solo", "--sweep", "max_group_size=1,2", "--seeds", "2")
    assert note in command(*swept)[1] and note not in command(*swept, "-p", "random")[1]


def test_a_yardstick_is_left_out_of_an_event_bench_in_a_word(command: Command) -> None:
    status, out, _ = command("bench", "quickstart", "-p", "solo", "-p", "optimal", "--fidelity", "event")
    assert status == 0 and "optimal is left out: a yardstick with a fluid replay only" in out
    found = rollmux.bench("quickstart", ["optimal", "solo"], fidelity="event")
    assert (found.baseline, [run.policy for run in found.runs]) == ("solo", ["solo"])


@pytest.mark.parametrize(
    ("key", "values", "more"),
    [
        ("slo", [1.1, 2], {"settings": {"jobs": 8}}),
        ("max_group_size", [1, 3], {"settings": {"jobs": 8}}),
        ("migration_s", [0, 600], {"settings": {"jobs": 8}}),
        ("rollout.usd_per_gpu_hour", [1.0, 4.0], {"settings": {"jobs": 8}}),
    ],
)
def test_a_sweep_is_a_bench_at_each_value(key: str, values: list[float], more: dict[str, Any]) -> None:
    found = rollmux.sweep("mixed", {key: values}, ["solo", "rollmux"], 2, **more)
    assert [point.swept for point in found.points] == [{key: json.dumps(value)} for value in values]
    first, last = (point.bench for point in found.points)
    if key == "slo":
        assert first.as_dict()["runs"] == rollmux.bench("mixed", seeds=2, settings={"jobs": 8, "slo": [1.1, 1.1]}).as_dict()["runs"]
    if key != "migration_s":
        assert first.summary[1].cost_usd != last.summary[1].cost_usd
    else:
        assert first.summary[1].cost_usd == last.summary[1].cost_usd, "rollmux never moves a job"
    assert len(found.rows("jobs")) == 2 * 2 * 2 * 8 and {row[f"swept.{key}"] for row in found.rows()} == {
        json.dumps(v) for v in values
    }


def test_a_sweep_of_a_file_has_a_table_and_a_plot(command: Command, tmp_path: Path) -> None:
    words = ("bench", "quickstart", "-p", "solo", "-p", "rollmux", "--sweep", "max_group_size=1,3")
    status, out, _ = command(*words, "--out", str(tmp_path))
    assert status == 0 and "Differences of every two policies" in out
    tables = {f"{name}.csv" for name in ("runs", "jobs", "summary", "differences", "timeline")}
    assert {path.name for path in tmp_path.iterdir()} == {*tables, "results.json", "results.html", "max_group_size_sweep.png"}
    status, latex, _ = command(*words, "--format", "latex")
    assert status == 0 and latex.count(r"\begin{tabular}") == latex.count(r"\bottomrule") == 2 and r"cost \$" in latex


def test_a_sweep_of_several_keys_is_their_grid(command: Command, tmp_path: Path) -> None:
    words = ("bench", "mixed", "--set", "jobs=4", "--sweep", "slo=1.2,2", "--sweep", "max_group_size=1,2,3")
    status, out, _ = command(*words, "--out", str(tmp_path))
    assert status == 0 and "4 jobs" in out and "by slo and max_group_size" in out
    assert out.count(" slo   max_group_size   policy ") == 2, "in both tables"
    found = json.loads((tmp_path / "results.json").read_text())
    grid = [{"slo": slo, "max_group_size": size} for slo in ("1.2", "2") for size in ("1", "2", "3")]
    assert found["keys"] == ["slo", "max_group_size"] and [point["swept"] for point in found["points"]] == grid
    assert (tmp_path / "slo_max_group_size_sweep.png").is_file()
    settings = {"jobs": 4, "slo": [1.2, 1.2], "max_group_size": 2}
    assert found["points"][1]["bench"]["runs"] == rollmux.bench("mixed", settings=settings).as_dict()["runs"]
    both = rollmux.sweep("mixed", {"slo": [2], "migration_s": [60]}, ["solo"], settings={"jobs": 4})
    assert both.rows()[0] | {"swept.slo": "2", "swept.migration_s": "60"} == both.rows()[0]
    assert both.points[0].bench.settings == {"jobs": "4", "slo": "[2, 2]"}


def test_a_sweep_of_a_file_derives_anew_what_its_jobs_derive_from_the_cluster(tmp_path: Path) -> None:
    file, slow = ROOT / "examples" / "shared_link.yaml", tmp_path / "slow.yaml"
    slow.write_text(file.read_text().replace("link_gbps: 40", "link_gbps: 20"))
    found = rollmux.sweep(str(file), {"network.link_gbps": [20, 40]}, ["solo"], 1)
    alone = [rollmux.bench(str(path), ["solo"], 1) for path in (slow, file)]
    assert [point.bench.summary[0].cost_usd for point in found.points] == [one.summary[0].cost_usd for one in alone]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("mixed", "--sweep", "slo"), "--sweep: 'slo' is not of the form key=value,value,..."),
        (
            ("mixed", "--sweep", "slos=1,2"),
            "--sweep slos: neither an option of the workload nor a key of its cluster; did you mean slo?",
        ),
        (("mixed", "--sweep", "slo=1.5,1.5"), "--sweep slo: give one value or more, each once"),
        (("mixed", "--sweep", "slo=1,2", "--sweep", "slo=3"), "--sweep slo: is given twice"),
        (("mixed", "--set", "jobs=4", "--set", "jobs=5"), "--set jobs: is given twice"),
        (("mixed", "--set", "jobs=4", "--sweep", "jobs=4,5"), "--sweep jobs: is an option of --set too; give it once"),
        (("quickstart", "--sweep", "max_group_size=0"), "--sweep max_group_size=0: cluster.max_group_size: must be at least 1"),
        (("quickstart", "--sweep", "rollout.colour=1"), "--sweep rollout.colour=1: cluster.rollout.colour: is not a key"),
        (("--suite", "mixed", "--sweep", "slo=1,2"), "a suite has its own"),
        (("trace.csv",), "trace.csv: a CSV file is a trace: `rollmux bench philly --set csv=trace.csv` has its jobs"),
    ],
)
def test_what_cannot_be_swept_is_one_line(command: Command, words: tuple[str, ...], problem: str) -> None:
    status, out, err = command("bench", *words)
    assert (status, out, err.count("\n")) == (2, "", 1) and problem in err


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"policies": []}, "policies: must be at least one"),
        ({"seeds": []}, "seeds: must be at least one"),
        ({"fidelity": "exact"}, "fidelity: must be one of fluid, event, not 'exact'"),
        ({"fidelity": "fluid", "dispatch": "fifo"}, "--dispatch: a fluid replay runs no single phases"),
        ({"settings": {"jobs": 3}}, "settings: only a workload by name has options"),
        ({"policies": [dict]}, "policy dict: dict has no method `decide`"),
    ],
)
def test_what_python_asks_for_and_cannot_have_is_one_line(how: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        rollmux.bench(stream(), **how)
    assert "\n" not in str(refused.value)


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "results.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=["bench", "pandas"])
def test_the_snippets_of_the_page_run(snippet: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "to_pandas" in snippet:
        pytest.importorskip("pandas")
    exec(compile(snippet, str(PAGE), "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) >= 3


def test_the_page_names_every_key() -> None:
    found = rollmux.bench(stream(), ["solo"]).as_dict()
    text = PAGE.read_text()
    assert all(f"`{key}`" in text for key in (*found, *found["runs"][0], *found["runs"][0]["jobs"][0]))
