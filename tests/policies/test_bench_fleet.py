"""A bench on a fleet that is owned: one way to say it, for workloads and files, in Python and in the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollmux
from rollmux_env.files import EXAMPLES
from rollmux_env.scenario import parse_scenario
from tests.conftest import Command


def test_a_sweep_of_fleets_shows_completion_first(command: Command, tmp_path: Path) -> None:
    words = ("bench", "mixed", "--set", "jobs=8", "--sweep", "fleet=2+2,load=1.6", "-p", "rollmux", "-p", "solo")
    status, out, _ = command(*words, "--out", str(tmp_path))
    assert status == 0 and out.index("completion h") < out.index("Sharing") < out.index("SLO kept") and "$" not in out
    assert "no policy has a mean completion below" in out
    assert {path.name for path in tmp_path.iterdir()} == {
        "results.json", "runs.csv", "jobs.csv", "summary.csv", "differences.csv", "timeline.csv", "results.html",
        "fleet_sweep.png", "fleet_completion.png",
    }  # fmt: skip
    points = json.loads((tmp_path / "results.json").read_text())["points"]
    assert [(point["swept"], point["bench"]["fleet"]) for point in points] == [
        ({"fleet": "2+2"}, "2+2"),
        ({"fleet": "load=1.6"}, "load=1.6"),
    ]
    alone = rollmux.bench("mixed", ["rollmux", "solo"], fleet="2+2", settings={"jobs": 8})
    assert points[0]["bench"]["runs"] == json.loads(json.dumps(alone.as_dict()["runs"]))
    own, other = alone.runs
    assert alone.differences[0].completion_ratio is not None and alone.summary[1].sooner is not None
    ratio = (other.figures.mean_completion_h or 0) / (own.figures.mean_completion_h or 1)
    assert (alone.differences[0].completion_ratio.mean, alone.summary[1].sooner.mean) == pytest.approx((ratio, 1 / ratio))
    assert "completion_h" in alone.rows("jobs")[0] and "fleet_busy.rollout" in alone.rows()[0]
    page = (tmp_path / "results.html").read_text()
    assert "completion h" in page and "fleet completion" in page


def test_a_title_says_the_load_and_a_short_stream_that_it_says_little(command: Command) -> None:
    assert command("bench", "mixed", "--set", "jobs=60", "--fleet", "12+10", "-p", "solo")[1].startswith(
        "mixed, jobs 60, 12 + 10 nodes (load 0.76): 60 jobs"
    )
    out = command("bench", "quickstart", "--fleet", "load=1.6", "-p", "solo")[1]
    assert "load=1.6 says little here" in " ".join(out.split())


def test_a_file_gets_a_fleet_as_a_workload_does(command: Command, tmp_path: Path) -> None:
    status, out, _ = command("bench", "quickstart", "--fleet", "3+3", "-p", "solo", "-p", "rollmux", "--out", str(tmp_path))
    assert status == 0 and out.startswith("quickstart, 3 + 3 nodes: 6 jobs")
    assert {"completion_cdf.png", "queue_over_time.png"} <= {path.name for path in tmp_path.iterdir()}
    _, shared, _ = command("bench", "quickstart", "--fleet", "3+3", "-p", "solo", "-p", "colocated")
    assert "mean completion below" not in shared  # the bound is of jobs on separate pools
    _, latex, _ = command("bench", "quickstart", "--fleet", "load=2", "--format", "latex")
    assert latex.count(r"\begin{tabular}") == 2 and "completion h &" in latex


def test_a_quota_of_a_user_without_jobs_is_named(command: Command, tmp_path: Path) -> None:
    """A mistyped name would otherwise say that quotas change nothing."""
    said = "quotas that limit no job, since none is of the user: 'anne'"
    file = tmp_path / "typo.yaml"
    file.write_text((EXAMPLES / "queue.yaml").read_text().replace("    ann: {nodes", "    '*': {nodes: 4}\n    anne: {nodes"))
    assert said in " ".join(command("bench", str(file), "-p", "solo")[1].split())
    assert "quotas that limit" not in command("bench", "queue", "-p", "solo")[1]
    swept = ("--sweep", 'quotas={"ann":{"nodes":4}},{"anne":{"nodes":4}}')
    assert said in " ".join(command("bench", "queue", *swept, "-p", "solo")[1].split())


def test_files_of_different_fleets_jobs_and_users_are_told_as_they_are(command: Command, tmp_path: Path) -> None:
    """Only some of the streams are on owned nodes, and only some have users."""
    for number, (nodes, user) in enumerate(((2, ""), (2, "ann"), (None, "ann"))):
        pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1.0, "max_nodes": nodes}
        phases = {"rollout": {"worst_case_s": 60}, "training": {"worst_case_s": 40}}
        jobs = [{"id": f"j{k}", "arrival_s": 0, "iterations": 36, "slo": 3, "user": user, **phases} for k in range(2 + number)]
        data = {"version": 1, "cluster": {"rollout": pool, "training": pool}, "jobs": jobs}
        (tmp_path / f"s{number}.json").write_text(json.dumps(data))
    words = ("-p", "solo", "-p", "rollmux,prune=false")
    lines = command("bench", str(tmp_path / "s*.json"), *words)[1]
    assert "s*.json: 2 to 4 jobs, 3 seeds" in "".join(lines.split("\n")) and "cost $" in lines and "user ann" in lines
    owned = " ".join(command("bench", str(tmp_path / "s[01].json"), *words)[1].split())
    assert "$/work-h" not in owned and "user ann" in owned
    assert "packed although idle nodes would have been faster, of 5 jobs: rollmux,prune=false 3;" in owned


def test_a_sweep_says_what_a_bench_says(command: Command) -> None:
    """A policy that is left out, a load that says little, jobs packed beside idle nodes, and how many jobs there are."""
    words = ("--fidelity", "event", "-p", "solo", "-p", "optimal", "-p", "rollmux,prune=false")
    out = " ".join(command("bench", "quickstart", "--sweep", "fleet=8+8,load=0.5,load=2", *words)[1].split())
    assert "optimal is left out: a yardstick with a fluid replay only" in out
    assert "load=0.5, load=2 say little here" in out
    assert "packed although idle nodes would have been faster, of 18 jobs: rollmux,prune=false" in out
    assert "mixed: 3 to 5 jobs, seed 0" in command("bench", "mixed", "--sweep", "jobs=3,5", "-p", "solo")[1]


def test_a_sweep_says_the_same_in_either_order(command: Command) -> None:
    """With and without limits: completions and their differences are shown where there are any."""
    for values in ("null,3", "3,null"):
        words = ("bench", "quickstart", "--sweep", f"rollout.max_nodes={values}", "-p", "solo", "-p", "rollmux")
        out = " ".join(command(*words)[1].split())
        assert "busy: nodes held by groups, rollout + training;" in out
        assert "less the other" in out and "completion h" in out[out.index("less the other") - 200 :]


def test_a_sweep_without_a_bound_is_drawn_without_one(command: Command, tmp_path: Path) -> None:
    """The bound is of jobs on separate pools."""
    words = ("bench", "quickstart", "--sweep", "fleet=3+3,4+4", "-p", "colocated", "--out", str(tmp_path))
    status, _, err = command(*words)
    assert (status, err) == (0, "") and (tmp_path / "fleet_completion.png").exists()


def test_jobs_that_take_equally_long_are_drawn(recwarn: pytest.WarningsRecorder) -> None:
    """All completions are 1 h, and the axis has some width nevertheless."""
    phases = {"rollout": {"worst_case_s": 60}, "training": {"worst_case_s": 40}}
    jobs = [{"id": name, "arrival_s": 0, "iterations": 36, "slo": 1, **phases} for name in "ab"]
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1.0, "max_nodes": 2}
    scenario = parse_scenario({"version": 1, "cluster": {"rollout": pool, "training": pool}, "jobs": jobs})
    figure = rollmux.bench(scenario, ["solo"]).plot("completion_cdf")
    low, high = figure.axes[0].get_xlim()
    assert 0.9 < low < 1 < high < 1.2 and not recwarn.list


def test_the_bound_of_dollars_is_explained_where_it_is_shown(command: Command) -> None:
    words = ("bench", "mixed", "--set", "jobs=3", "-p", "solo", "--bound")
    assert "bound: no policy" in command(*words)[1] and "bound: no policy" not in command(*words, "--fleet", "3+3")[1]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("mixed", "--fleet", "8"), "--fleet 8: must be a number of nodes for each pool of the cluster: rollout + training"),
        (("mixed", "--fleet", "8+8", "--sweep", "fleet=2+2,4+4"), "--sweep fleet: is given by --fleet too; give it once"),
        (
            ("mixed", "--set", "jobs=3", "--sweep", "fleet=2+2,many"),
            "--fleet many: is neither numbers of nodes, as in 12+10, nor load=NUMBER",
        ),
        (("mixed", "--fleet", "8+8", "--sweep", "rollout.max_nodes=2,9"), "--sweep rollout.max_nodes: is what a fleet says"),
        (("mixed", "--set", "jobs=3", "--fleet", "load=1e-308"), "--fleet load=1e-308: is too small"),
        (("mixed", "--fleet", "\u0663+\u0663"), "is neither numbers of nodes"),
        (("--suite", "fleet", "--fleet", "8+8"), "a suite has its own"),
        (
            ("--suite", "fleet", "--set", "jobs=3"),
            "--set jobs: the suite fleet has its own options, and takes csv=FILE, workload=",
        ),
    ],
)
def test_a_fleet_that_cannot_be_is_one_line(command: Command, words: tuple[str, ...], problem: str) -> None:
    status, out, err = command("bench", *words)
    assert (status, out, err.count("\n")) == (2, "", 1) and problem in err
