"""The command: what it prints, what it refuses, and that it refuses in one line with status 2."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollmux
from tests.conftest import Command

ROOT = Path(rollmux.__file__).parent
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, rollmux; sys.argv = ['rollmux', '--help']; \ntry: rollmux.main()\nexcept SystemExit: pass\n"
    code += "print(sorted({'numpy', 'numba', 'pydantic', 'matplotlib', 'scipy', 'torch', 'ray', 'vllm'} & set(sys.modules)))"
    assert python("-c", code, cwd=ROOT).stdout.splitlines()[-1] == "[]"


def test_policies_by_name_load_what_only_some_of_them_need_when_it_is_needed() -> None:
    """Every command and service that names a policy loads the registry."""
    code = "import sys, policies.registry; "
    code += "print(sorted({'scipy.linalg', 'scipy.special', 'rollmux_env.envs', 'gymnasium', 'safetensors'} & set(sys.modules)))"
    assert python("-c", code, cwd=ROOT).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "name",
    [
        "validate",
        "schema",
        "workload",
        "plan",
        "bench",
        "explain",
        "trace",
        "shapes",
        "allocate",
        "train",
        "run",
        "profile",
        "serve",
        "submit",
        "status",
        "cancel",
        "logs",
    ],
)
def test_every_command_has_help_with_an_example(command: Command, name: str) -> None:
    status, out, _ = command(name, "--help")
    assert status == 0
    assert f"rollmux {name}" in out.replace("Usage: ", "")
    assert "Example" in out


def test_no_arguments_print_the_help(command: Command) -> None:
    status, out, err = command()
    assert (status, err) == (0, "")
    assert "bench" in out


def test_validate_says_what_is_in_a_file(command: Command) -> None:
    status, out, _ = command("validate", QUICKSTART)
    assert status == 0
    assert "jobs" in out and "sha256" in out


def test_schema_is_a_json_schema(command: Command) -> None:
    status, out, _ = command("schema")
    assert status == 0
    assert json.loads(out)["$schema"].endswith("2020-12/schema")


def test_a_written_workload_can_be_benched(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "stream.yaml"
    assert command("workload", "mixed", "--set", "jobs=12", "--set", "slo=[1.2,1.8]", "--out", str(file))[0] == 0
    status, out, _ = command("bench", str(file), "-p", "solo", "-p", "rollmux", "--check", "--format", "json")
    report = json.loads(out)
    assert status == 0
    assert [run["policy"] for run in report["runs"]] == ["solo", "rollmux"]
    assert (report["schema"], report["scenario"], report["seeds"], len(report["timings"])) == (2, str(file), [0], 2)
    assert report["timings"][0]["policy"] == "solo" and report["timings"][0]["decision_ms_p50"] > 0


def test_bench_prints_the_same_bytes_but_for_the_timings(command: Command) -> None:
    def untimed() -> dict[str, object]:
        report: dict[str, object] = json.loads(
            command("bench", "production", "--set", "jobs=40", "-p", "rollmux", "-p", "random", "--format", "json")[1]
        )
        del report["timings"]
        return report

    assert json.dumps(untimed()) == json.dumps(untimed())


def test_processes_give_the_same_results(command: Command) -> None:
    arguments = ("bench", "mixed", "--set", "jobs=15", "--seeds", "2", "-p", "solo", "-p", "random", "--format", "csv")
    assert command(*arguments)[1] == command(*arguments, "--workers", "2")[1]


def test_seeds_have_intervals_paired_to_the_baseline(command: Command) -> None:
    status, out, _ = command(
        "bench",
        "mixed",
        "--set",
        "jobs=20",
        "--seeds",
        "3",
        "--baseline",
        "solo",
        "-p",
        "rollmux",
        "-p",
        "solo",
        "--format",
        "json",
    )
    report = json.loads(out)
    assert status == 0
    assert report["seeds"] == [0, 1, 2]
    solo = next(row for row in report["summary"] if row["policy"] == "solo")
    assert solo["saving"] == {"mean": 1.0, "half_width": 0.0}
    runs: list[dict[str, float]] = [{}, {}, {}]
    for run in report["runs"]:
        runs[run["seed"]][run["policy"]] = run["figures"]["cost_usd"]
    rollmux_row = next(row for row in report["summary"] if row["policy"] == "rollmux")
    assert rollmux_row["saving"]["mean"] == pytest.approx(sum(run["solo"] / run["rollmux"] for run in runs) / 3)


def test_bench_tables_and_files(command: Command, tmp_path: Path) -> None:
    out_folder = tmp_path / "new" / "results"
    status, out, _ = command("bench", QUICKSTART, "-p", "solo", "-p", "rollmux", "--out", str(out_folder))
    assert status == 0
    assert "rollmux" in out and "saving" in out
    results = json.loads((out_folder / "results.json").read_text())
    assert {len(run["scenario_sha256"]) for run in results["runs"]} == {64}
    assert results["versions"]["rollmux"]
    assert (out_folder / "runs.csv").read_text().startswith("policy,seed,scenario_sha256,cost_usd")
    assert (out_folder / "jobs.csv").read_text().startswith("policy,seed,job,arrived_s")
    for plot in ("cost_over_time", "gpus_over_time", "slowdown_cdf", "saving"):
        assert (out_folder / f"{plot}.png").read_bytes().startswith(b"\x89PNG")


def test_bench_says_what_failures_cost(command: Command) -> None:
    arguments = ("bench", QUICKSTART, "-p", "solo", "--failures", "job_h=5,every=4,write_s=30")
    status, out, _ = command(*arguments, "--format", "json")
    found = json.loads(out)["runs"][0]["extra"]
    assert status == 0 and found["restarts"] == found["job_failures"] > 0 == found["node_failures"]
    assert found["lost_work_h"] > 0 and found["checkpoint_every"] == 4
    _, out, _ = command(*arguments)
    assert "lost" in out and f"{found['lost_work_h']:.1f}" in out
    _, out, _ = command("bench", QUICKSTART, "-p", "solo", "--fidelity", "event", "--format", "json")
    assert not {"restarts", "lost_work_h"} & json.loads(out)["runs"][0]["extra"].keys()


def test_the_figures_of_the_bench_table_stand_under_their_headings(command: Command) -> None:
    _, out, _ = command("bench", QUICKSTART, "-p", "solo", "-p", "rollmux")
    cost_usd = json.loads(command("bench", QUICKSTART, "-p", "solo", "--format", "json")[1])["runs"][0]["figures"]["cost_usd"]
    header = next(line for line in out.splitlines() if "cost $" in line)
    solo = next(line for line in out.splitlines() if line.strip().startswith("solo"))
    assert header.split()[0] == "policy"
    assert solo[: header.index("cost $") + len("cost $")].split() == ["solo", f"{cost_usd:,.0f}"]
    assert len(header.rstrip()) == len(solo.rstrip())


def test_plan_as_table_json_and_csv(command: Command) -> None:
    assert "Co-execution groups" in command("plan", QUICKSTART)[1]
    report = json.loads(command("plan", QUICKSTART, "--format", "json")[1])
    assert list(report) == ["policy", "decisions", "groups", "usd_per_hour"]
    assert sum(group["usd_per_hour"] for group in report["groups"]) == pytest.approx(report["usd_per_hour"])
    assert command("plan", QUICKSTART, "--format", "csv")[1].startswith("job,strategy,group,")


def test_plan_says_why_a_job_is_queued_or_alone(command: Command, tmp_path: Path) -> None:
    pool = "{gpus_per_node: 1, usd_per_gpu_hour: 1, max_nodes: 1}"
    phases = "rollout: {worst_case_s: 10}, training: {worst_case_s: 10}"
    (tmp_path / "full.yaml").write_text(
        f"version: 1\ncluster: {{rollout: {pool}, training: {pool}}}\n"
        f"defaults: {{arrival_s: 0, iterations: 3, slo: 1.1, {phases}}}\njobs: [{{id: a}}, {{id: b}}, {{id: c}}, {{id: d}}]\n"
    )
    report = json.loads(command("plan", str(tmp_path / "full.yaml"), "--format", "json")[1])
    assert {decision["job"]: decision.get("reason") for decision in report["decisions"]} == {
        "a": None,
        "b": None,
        "c": "needs 1 rollout node and 1 training node for a group of its own; 0 and 0 are free; "
        "1 group: an iteration would take 30 s, and the SLO of a allows 1.1 x 20 s = 22 s; slo: 1.5 would do",
        "d": "waits behind c, which needs 1 rollout node and 1 training node; 0 and 0 are free",
    }
    table = command("plan", str(tmp_path / "full.yaml"))[1]
    assert (
        "the SLO of a allows 1.1 x 20 s = 22 s; slo: 1.5 would do" in " ".join(table.split()) and "2 jobs wait for nodes" in table
    )
    quickstart = json.loads(command("plan", QUICKSTART, "--format", "json")[1])["decisions"]
    assert quickstart[0]["job"] not in {decision["job"] for decision in quickstart if "reason" in decision}  # there is no group yet
    assert {decision["strategy"] for decision in quickstart if "reason" in decision} == {"isolated"}
    assert command("plan", str(tmp_path / "full.yaml"), "--format", "csv")[1].splitlines()[-1] == "d,queued,,,,"
    solo = json.loads(command("plan", str(tmp_path / "full.yaml"), "-p", "solo", "--format", "json")[1])["decisions"][1]
    assert solo["reason"] == (
        "the policy lets it wait, though 1 placement would fit in group 0; "
        "needs 1 rollout node and 1 training node for a group of its own; 0 and 0 are free"
    )


def test_a_policy_that_leaves_saturated_groups_out_says_so_of_a_job_that_waits(command: Command, tmp_path: Path) -> None:
    pool = "{gpus_per_node: 1, usd_per_gpu_hour: 1, max_nodes: 1}"
    phases = "rollout: {worst_case_s: 10}, training: {worst_case_s: 10}"
    (tmp_path / "full.yaml").write_text(
        f"version: 1\ncluster: {{rollout: {pool}, training: {pool}}}\n"
        f"defaults: {{arrival_s: 0, iterations: 3, slo: 10, {phases}}}\njobs: [{{id: a}}, {{id: b}}, {{id: c}}]\n"
    )
    asked = ("plan", str(tmp_path / "full.yaml"), "--format", "json", "-p")
    waits = json.loads(command(*asked, "rollmux")[1])["decisions"][2]
    assert waits["reason"] == (
        "1 group would take it, but is saturated (T_load >= T_cycle), which the policy leaves out; "
        "needs 1 rollout node and 1 training node for a group of its own; 0 and 0 are free"
    )
    assert json.loads(command(*asked, "rollmux,prune=false")[1])["decisions"][2]["strategy"] == "direct_packing"


def test_an_interval_of_two_seeds_says_so(command: Command) -> None:
    def notes(seeds: str) -> str:
        return " ".join(command("bench", "mixed", "--set", "jobs=5", "-p", "solo", "--seeds", seeds)[1].split())

    few = "± is the half-width of a 95% interval, paired by seed, and rests on two samples"
    assert few in notes("2") and "±" not in notes("1")
    assert "± is the half-width" in notes("3") and "two samples" not in notes("3")


def test_the_version_is_that_of_the_package(command: Command) -> None:
    assert command("--version") == (0, f"rollmux {importlib.metadata.version('rollmux')}\n", "")


def test_explain_names_the_choice_and_every_alternative(command: Command) -> None:
    job = json.loads(command("plan", QUICKSTART, "--format", "json")[1])["decisions"][-1]["job"]
    status, out, _ = command("explain", QUICKSTART, "--job", job, "--format", "json")
    report = json.loads(out)
    assert status == 0
    assert [row["verdict"] for row in report["alternatives"]].count("chosen") == 1
    assert all(row["verdict"].startswith(("chosen", "dropped: ", "lost")) for row in report["alternatives"])
    assert "chosen" in command("explain", QUICKSTART, "--job", job)[1]


def bad_inputs(folder: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    (folder / "broken.yaml").write_text("version: 1\ncluster: [")
    (folder / "file").write_text("here")
    (folder / "broken.csv").write_text("timestamp,duration\nyesterday,5\n")
    (folder / "broken_module.py").write_text("class Policy(:\n")
    (folder / "failing_module.py").write_text("import nowhere_to_be_found\n")
    (folder / "useless.py").write_text("class Useless:\n    pass\n\n\nNUMBER = 3\n")
    (folder / "silent.py").write_text("class Silent:\n    def decide(self, state, event):\n        return ()\n")
    return {
        "no such command": (("bnech",), "Did you mean 'bench'? Try `rollmux --help`."),
        "no such option": (("bench", QUICKSTART, "--polcy", "solo"), "--polcy"),
        "an option too many": (("plan", QUICKSTART, "--seeds", "3"), "Try `rollmux plan --help`."),
        "no file": (("plan", "nowhere.yaml"), "nowhere.yaml"),
        "no argument": (("plan",), "FILE"),
        "broken file": (("validate", str(folder / "broken.yaml")), "broken.yaml"),
        "a folder": (("validate", str(folder)), str(folder)),
        "neither file nor workload": (("bench", "prodution"), "did you mean production?"),
        "workload options on a file": (("bench", QUICKSTART, "--set", "max_group_size=3"), "(--set max_group_size=3)"),
        "an option of another workload": (("bench", "micro-temporal", "--set", "min_stay_h=3"), "rollmux: --set min_stay_h: "),
        "unknown option of a workload": (("bench", "mixed", "--set", "stay=fixed"), "did you mean stays?"),
        "malformed option of a workload": (("bench", "mixed", "--set", "stays"), "--set: 'stays' is not of the form key=value"),
        "seed as an option of a workload": (("bench", "mixed", "--set", "seed=3"), "--set seed: "),
        "unknown policy": (("bench", QUICKSTART, "-p", "optimum"), "not 'optimum'; did you mean optimal?"),
        "unknown option of a policy": (("bench", QUICKSTART, "-p", "rollmux,prunes=false"), "did you mean prune?"),
        "value of a policy's option": (("bench", QUICKSTART, "-p", "rollmux,prune=no"), "prune: must be true or false, not 'no'"),
        "malformed option of a policy": (("bench", QUICKSTART, "-p", "rollmux,prune"), "prune"),
        "no module": (("bench", QUICKSTART, "-p", "no_such_module:Policy"), "no_such_module"),
        "no class": (("bench", QUICKSTART, "-p", "useless:Policy"), "Policy"),
        "not a policy": (("bench", QUICKSTART, "-p", "useless:Useless"), "decide"),
        "a policy that says nothing of SLOs": (("bench", QUICKSTART, "-p", "silent:Silent"), "keeps_slo"),
        "not callable": (("bench", QUICKSTART, "-p", "useless:NUMBER"), "NUMBER"),
        "module with a syntax error": (("bench", QUICKSTART, "-p", "broken_module:Policy"), "broken_module"),
        "module that needs another": (("bench", QUICKSTART, "-p", "failing_module:Policy"), "nowhere_to_be_found"),
        "relative module": (("bench", QUICKSTART, "-p", "..:Policy"), ".."),
        "baseline that does not run": (("bench", QUICKSTART, "-p", "rollmux", "--baseline", "solo"), "--baseline"),
        "format": (("bench", QUICKSTART, "--format", "xml"), "--format"),
        "seeds": (("bench", QUICKSTART, "--seeds", "0"), "--seeds"),
        "seed": (("bench", QUICKSTART, "--seed", "-1"), "--seed"),
        "seed is no number": (("bench", QUICKSTART, "--seed", "x"), "--seed"),
        "workers": (("bench", QUICKSTART, "--workers", "0"), "--workers"),
        "a typo in an option of all policies": (("plan", QUICKSTART, "-p", "rollmux,swiches=true"), "did you mean switches?"),
        "failures that are none": (("bench", QUICKSTART, "--failures", "node=3"), "--failures: it has no option 'node'"),
        "failures of a wrong value": (("bench", QUICKSTART, "--failures", "every=0"), "--failures: every must be a number of"),
        "failures in a fluid replay": (("bench", QUICKSTART, "--fidelity", "fluid", "--failures", "job_h=9"), "--failures"),
        "failures of a suite": (("bench", "--suite", "drift", "--failures", "job_h=9"), "a suite has its own"),
        "output is a file": (("bench", QUICKSTART, "--out", str(folder / "file")), str(folder / "file")),
        "output below a file": (("bench", QUICKSTART, "--out", str(folder / "file" / "below")), "below"),
        "output nowhere": (("workload", "mixed", "--out", str(folder / "no" / "stream.yaml")), "stream.yaml"),
        "unknown workload": (("workload", "produktion", "--out", str(folder / "a.yaml")), "did you mean production?"),
        "slo": (("workload", "mixed", "--set", "slo=high", "--out", str(folder / "a.yaml")), "slo"),
        "slo order": (("workload", "mixed", "--set", "slo=[2,1]", "--out", str(folder / "a.yaml")), "slo"),
        "stays": (("workload", "mixed", "--set", "stays=long", "--out", str(folder / "a.yaml")), "stays"),
        "philly without a file": (("workload", "philly", "--out", str(folder / "a.yaml")), "csv"),
        "no csv": (("bench", "philly", "--set", "csv=trace.csv"), "rollmux: trace.csv: No such file"),
        "broken csv": (("workload", "philly", "--set", f"csv={folder / 'broken.csv'}", "--out", str(folder / "a.yaml")), "line 2"),
        "no such suite": (("bench", "--suite", "prodution"), "did you mean production?"),
        "a file and a suite": (("bench", QUICKSTART, "--suite", "mixed"), "suite"),
        "neither a file nor a suite": (("bench",), "suite"),
        "quick without a suite": (("bench", QUICKSTART, "--quick"), "--quick"),
        "the leaderboard has its own seeds": (("bench", "--suite", "leaderboard", "-p", "solo", "--seed", "3"), "--seed"),
        "a suite has its own baseline": (("bench", "--suite", "mixed", "--baseline", "solo"), "--baseline"),
        "a suite has its own rollouts": (("bench", "--suite", "mixed", "--rollout-policy", "plain"), "--rollout-policy"),
        "no policy of ours in the suite of rollout policies": (("bench", "--suite", "rollout", "-p", "solo"), "rollout"),
        "no such rollout policy": (("bench", QUICKSTART, "--rollout-policy", "none"), "tail-batching"),
        "a fluid replay has no rollouts": (
            ("bench", QUICKSTART, "--fidelity", "fluid", "--rollout-policy", "plain"),
            "--rollout-policy",
        ),
        "sizes that no job has": (("bench", QUICKSTART, "--rollout-policy", "adaptive-parallelism"), "chooses the size"),
        "sizes of rounds": (("bench", QUICKSTART, "--rollout-policy", "tail-batching+parallelism-planner"), "planner chooses"),
        "training where jobs sample": (("bench", QUICKSTART, "--rollout-policy", "stream-trainer"), "same GPUs"),
        "a suite has its own stays": (("bench", "--suite", "mixed", "--set", "stays=fixed"), "--set"),
        "dispatch in a fluid replay": (("bench", QUICKSTART, "--dispatch", "fifo", "--fidelity", "fluid"), "--dispatch"),
        "no such dispatch": (("bench", QUICKSTART, "--fidelity", "event", "--dispatch", "lifo"), "round-robin"),
        "events of a yardstick": (("bench", QUICKSTART, "--fidelity", "event", "-p", "optimal"), "optimal"),
        "explaining a yardstick": (("explain", QUICKSTART, "--job", "x", "-p", "optimal"), "optimal"),
        "no such job": (("explain", QUICKSTART, "--job", "nobody"), "nobody"),
        "no such format": (("plan", QUICKSTART, "--format", "xml"), "'--format': 'xml' is not one of 'table', 'json', 'csv'"),
    }  # fmt: skip


def test_bad_input_is_one_line_and_status_2(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, (arguments, named) in bad_inputs(tmp_path).items():
        before = sorted(tmp_path.rglob("*.yaml"))
        status, out, err = command(*arguments)
        assert status == 2, name
        assert out == "", name
        assert err.startswith("rollmux: ") and err.count("\n") == 1, f"{name}: {err}"
        assert named in err, f"{name}: {err}"
        assert "Traceback" not in err, name
        assert sorted(tmp_path.rglob("*.yaml")) == before, f"{name}: something was written"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("plan", QUICKSTART), ("schema",), ("--help",)])
def test_output_that_cannot_be_written_is_one_line_too(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        code = (sys.executable, "-m", "rollmux", *arguments)
        ended = subprocess.run(code, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "rollmux: standard output: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "closed", "key"),
    [("schema", "0<&-", "title"), ("schema", "2>&-", "title"), (f"plan {QUICKSTART} --format json", "0<&- 2>&-", "groups")],
)
def test_closed_streams_take_nothing_from_a_command(arguments: str, closed: str, key: str) -> None:
    words = f"{sys.executable} -m rollmux {arguments} {closed}"
    ended = subprocess.run(["bash", "-c", words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 0 and json.loads(ended.stdout)[key]


@pytest.mark.parametrize("name", ["validate", "plan"])
def test_a_closed_standard_output_is_said(name: str) -> None:
    words = f"{sys.executable} -m rollmux {name} {QUICKSTART} >&-"
    ended = subprocess.run(["bash", "-c", words], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "rollmux: standard output: Bad file descriptor\n")


def test_a_working_directory_that_has_gone_is_said(tmp_path: Path) -> None:
    words = 'cd "$0" && rmdir "$0" && exec "$@" -m rollmux bench quickstart -p solo'
    (gone := tmp_path / "gone").mkdir()
    code, there = ("sh", "-c", words, str(gone), sys.executable), {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(code, env=there, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "rollmux: the working directory: No such file or directory\n")


@pytest.mark.parametrize("arguments", [("schema",), ("plan", QUICKSTART)])
def test_a_reader_that_has_gone_is_no_error_to_speak_of(arguments: tuple[str, ...]) -> None:
    code = f"import sys, rollmux; sys.argv = ['rollmux', *{arguments}]; rollmux.main()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout and running.stderr
        running.stdout.close()
        assert running.stderr.read() == b""


def test_a_narrow_encoding_gets_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    ended = python("-m", "rollmux", "bench", QUICKSTART, "-p", "solo", "--seeds", "2", cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "1.00x ? 0.00" in ended.stdout


def test_a_policy_that_breaks_an_invariant_is_named(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greedy_for_nodes.py").write_text(
        "from policies.api import Arrived, Place, Placement\n\n\n"
        "class Greedy:\n    keeps_slo = True\n\n"
        "    def decide(self, state, event):\n"
        "        return (Place(event.job.id, Placement(None, (), 9, 1)),) if isinstance(event, Arrived) else ()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    status, _, err = command("bench", QUICKSTART, "-p", "greedy_for_nodes:Greedy")
    assert status == 2
    assert err.startswith("rollmux: policy greedy_for_nodes:Greedy: P2: ")


def test_a_users_policies_folder_does_not_hide_ours(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "__init__.py").write_text("")
    (tmp_path / "mine.py").write_text("from policies.placement.baselines import Solo\n\n\nclass Mine(Solo):\n    pass\n")
    mine = ("-c", "import sys; sys.path.remove(''); import rollmux; rollmux.main()", "plan", QUICKSTART, "--policy", "mine:Mine")
    assert python(*mine, cwd=tmp_path).returncode == 0
    as_module = python("-m", "rollmux", "plan", QUICKSTART, cwd=tmp_path)
    assert as_module.returncode == 2
    assert as_module.stderr.count("\n") == 1
    assert f"'policies' is found in {tmp_path.resolve() / 'policies'}" in as_module.stderr


def test_the_public_names_are_there() -> None:
    assert rollmux.load_scenario(QUICKSTART).jobs
    assert all(getattr(rollmux, name) for name in rollmux.__all__)
    with pytest.raises(AttributeError):
        _ = rollmux.nothing


def test_a_suite_prints_the_papers_figures_beside_ours(command: Command, tmp_path: Path) -> None:
    status, out, _ = command("bench", "--suite", "temporal", "--quick", "--out", str(tmp_path / "suite"))
    assert status == 0
    assert "[1.82]" in out and "Why it differs" in out
    report = json.loads((tmp_path / "suite" / "temporal.json").read_text())
    ours = {(row["case"], row["policy"]): row["figures"]["saving per work"] for row in report["rows"]}
    assert ours["worst case", "solo"]["mean"] == 1.0
    assert ours["worst case", "rollmux"]["mean"] > 1.9, "two equal jobs whose phases fill each other's bubbles"
    rows = list(csv.DictReader((tmp_path / "suite" / "temporal.csv").read_text(encoding="utf-8").splitlines()))
    assert {(row["seeds"], row["quick"]) for row in rows} == {("1", "true")}
    assert ", quick: shorter streams</title>" in (tmp_path / "suite" / "temporal.html").read_text(encoding="utf-8")
    assert next((tmp_path / "suite").glob("temporal_*.png")).read_bytes().startswith(b"\x89PNG")


def test_a_policy_of_ones_own_joins_a_suite(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setattr(sys, "path", [*sys.path])
    status, out, _ = command("bench", "--suite", "spatial", "-p", "first_fit:FirstFit", "--format", "csv")
    assert status == 0
    assert "worst case,first_fit:FirstFit,saving per work," in out


def test_a_dispatch_policy_asks_for_an_event_replay(command: Command) -> None:
    report = json.loads(command("bench", QUICKSTART, "-p", "rollmux", "--dispatch", "fifo", "--format", "json")[1])
    assert report["fidelity"] == "event"
    assert report["runs"][0]["figures"]["slo_attainment_observed"] is not None
    fluid = json.loads(command("bench", QUICKSTART, "-p", "rollmux", "--format", "json")[1])
    assert fluid["runs"][0]["figures"]["slo_attainment_observed"] is None


def test_tail_batching_makes_jobs_with_models_cheaper(command: Command) -> None:
    usd = {}
    for policy in ("plain", "tail-batching"):
        file = str(ROOT / "examples" / "models.yaml")
        status, out, _ = command("bench", file, "-p", "solo", "--rollout-policy", policy, "--format", "json")
        report = json.loads(out)
        assert (status, report["fidelity"]) == (0, "event")
        usd[policy] = report["runs"][0]["figures"]["usd_per_work_hour"]
    assert usd["tail-batching"] < 0.9 * usd["plain"]


def test_plan_and_explain_say_how_a_job_runs_in_its_shapes(command: Command, tmp_path: Path) -> None:
    """The second job fits beside the first one in its other shape, whose training is shorter."""
    pool = {"gpus_per_node": 1, "usd_per_gpu_hour": 1}
    job = {"arrival_s": 0, "iterations": 9, "slo": 1}
    first = {"id": "first", "rollout": {"worst_case_s": 15}, "training": {"worst_case_s": 15}}
    shapes = [{"rollout": {"worst_case_s": 14}, "training": {"worst_case_s": 15}}]
    second = {"id": "second", "rollout": {"worst_case_s": 10}, "training": {"worst_case_s": 20}, "shapes": shapes}
    file = tmp_path / "scenario.json"
    jobs = [job | first, job | second]
    file.write_text(json.dumps({"version": 1, "cluster": {"rollout": pool, "training": pool}, "jobs": jobs}))
    status, out, _ = command("plan", str(file))
    assert status == 0 and "Chosen shapes" in out
    assert "second 1 1 x rollout 1 x training 14.0 15.0 29.0" in " ".join(out.split())
    status, out, _ = command("explain", str(file), "--job", "second")
    assert status == 0
    assert "second 0 1 x rollout 1 x training 10.0 20.0 30.0 second 1 1 x rollout" in " ".join(out.split())
    assert "Shapes" not in command("explain", str(file), "--job", "first")[1]


@pytest.mark.parametrize("name", ["two_jobs", "async_jobs", "shapes"])
def test_a_job_file_is_named_as_one_where_a_scenario_is_wanted(command: Command, name: str) -> None:
    status, _, err = command("plan", str(ROOT / "examples" / f"{name}.yaml"))
    assert (
        status == 2
        and err.endswith(f"{name}.yaml: is a job file (it has `task`): `rollmux run` reads it\n")
        and err.count("\n") == 1
    )


@pytest.mark.parametrize("words", [("run",), ("submit",), ("exec", "true")])
@pytest.mark.parametrize("name", ["quickstart", "max_nodes", "three_pools"])
def test_a_scenario_is_named_as_one_where_jobs_are_wanted(command: Command, name: str, words: tuple[str, ...]) -> None:
    status, _, err = command(words[0], str(ROOT / "examples" / f"{name}.yaml"), *words[1:])
    assert status == 2 and err.count("\n") == 1
    assert err.endswith("is a scenario file (no job has a task, class, attach or command): `rollmux bench` reads it\n")


@pytest.mark.parametrize(
    ("command_name", "job", "problem"),
    [
        ("run", {"atach": True}, "none is given; did you mean attach? (if it is a scenario file, `rollmux bench` reads it)"),
        ("plan", {"class": "team:rl"}, "not 'team:rl' (if it is a job file, `rollmux run` reads it)"),
        ("run", {"id": 1}, "none is given (if it is a scenario file, `rollmux bench` reads it)"),
    ],
)
def test_the_format_of_a_file_hides_no_mistake(
    command: Command, tmp_path: Path, command_name: str, job: dict[str, Any], problem: str
) -> None:
    pool = {"gpus_per_node": 1, "usd_per_gpu_hour": 1}
    phases = {"rollout": {"worst_case_s": 3}, "training": {"worst_case_s": 2}}
    jobs = [{"id": "a", "arrival_s": 0, "iterations": 3, "slo": 2, **phases, **job}]
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"version": 1, "cluster": {"rollout": pool, "training": pool}, "jobs": jobs}))
    status, _, err = command(command_name, str(file))
    assert status == 2 and err.count("\n") == 1 and err.endswith(f"{problem}\n")
