"""Workloads of users wherever one is named: functions of the seed, classes, objects, several files; and the guide's example."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollmux
from policies.targets import find_scenario, find_streams
from rollmux_env.envs.placement.generator import find_generator
from rollmux_env.errors import InputError, PlanError
from rollmux_env.workloads import WorkloadOptions, make_workload
from rollmux_env.workloads.own import draw, is_own, own_source
from tests.conftest import Command

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "workloads.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
OTHERS = """
import random
from rollmux_env.workloads import WorkloadOptions, make_workload

class Few:
    def __init__(self, jobs=3):
        self.jobs, self.cluster = jobs, self.stream(0, jobs).cluster
    def stream(self, seed, jobs):
        return make_workload("mixed", WorkloadOptions(seed=seed, jobs=jobs))
    def scenario(self, seed):
        print("said to no table")
        return self.stream(seed, self.jobs)

few, number = Few(2), 3

def growing(seed):
    return Few().stream(seed, 2 + seed)

def luck(seed):
    return Few().stream(random.randrange(100), 2)

def pools(seed, name="production"):
    options = {"third_pool": True, "jobs": 2} if seed else {"jobs": 2}
    return make_workload(name, WorkloadOptions(**options))

def broken(seed):
    raise ValueError("no stream today")
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with `diurnal.py` of the guide and `others.py`, in which the commands run."""
    (tmp_path / "diurnal.py").write_text(SNIPPETS[0])
    (tmp_path / "others.py").write_text(OTHERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("diurnal", "others"):
        sys.modules.pop(name, None)


def test_the_example_of_the_guide_runs(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", "diurnal:diurnal", "--set", "jobs=4", "--seeds", "2", "--format", "json")
    status, out, err = command(*words)
    assert status == 0, err
    found = json.loads(out)
    assert (found["scenario"], found["settings"], found["seeds"]) == ("diurnal:diurnal", {"jobs": "4"}, [0, 1])
    assert len({run["scenario_sha256"] for run in found["runs"]}) == 2
    swept = json.loads(command(*words, "--sweep", "swing=0,1", "--sweep", "max_group_size=2,3")[1])
    assert [point["swept"] for point in swept["points"]][1] == {"swing": "0", "max_group_size": "3"}
    assert swept["points"][0]["bench"]["settings"] == {"jobs": "4", "swing": "0"}
    assert command("workload", "diurnal:diurnal", "--set", "jobs=4", "--out", "stream.json")[0] == 0
    assert rollmux.load_scenario("stream.json") == draw(own_source("diurnal:diurnal", ["jobs=4"]), 0)
    assert len({job.user for job in rollmux.load_scenario("stream.json").jobs}) > 1
    exec(compile(SNIPPETS[1], str(GUIDE), "exec"), {})
    assert re.fullmatch(r"1\.\d\dx.*\n", capsys.readouterr().out)


def test_the_arrivals_of_the_example_follow_the_hour() -> None:
    hours = [job.arrival_s / 3600 % 24 for job in draw(own_source("diurnal:diurnal", ["jobs=400"]), 0).jobs]
    by_day = sum(6 <= hour < 18 for hour in hours) / len(hours)
    assert by_day == pytest.approx(0.5 + 0.8 / 3.1416, abs=0.06)  # the sine's integral over half of its period


def test_a_class_an_object_and_a_function_are_workloads(command: Command) -> None:
    by_class = json.loads(command("bench", "others:Few", "--set", "jobs=2", "--format", "json")[1])
    by_object = json.loads(command("bench", "others:few", "--format", "json")[1])
    assert by_class["runs"][0]["scenario_sha256"] == by_object["runs"][0]["scenario_sha256"]
    mixed = make_workload("mixed", WorkloadOptions(jobs=2))
    assert by_object["runs"][0]["scenario_sha256"] == mixed.sha256
    assert find_generator("others:few").scenario(1) == make_workload("mixed", WorkloadOptions(jobs=2, seed=1))
    assert rollmux.bench("others:luck", ["solo"]).stream == rollmux.bench("others:luck", ["solo"]).stream, "its draws are seeded"
    assert is_own("others:few") and not is_own("mixed") and not is_own("learned:") and not is_own("a/b:c")


def test_an_environment_takes_a_function_with_as_many_jobs_as_in_seed_0() -> None:
    generator = find_generator("others:growing")
    assert (generator.jobs, len(generator.scenario(0).jobs)) == (2, 2)
    with pytest.raises(InputError, match="the scenario of seed 3: has 5 jobs, and the generator says jobs = 2 at most"):
        generator.scenario(3)


def test_a_suite_has_one_more_case(command: Command) -> None:
    words = ("bench", "--suite", "temporal", "--format", "json", "--set", "workload=others:few")
    cases = [row["case"] for row in json.loads(command(*words)[1])["rows"]]
    assert cases[-1] == "others:few" and cases.count("others:few") == cases.count(cases[0])


def test_files_are_replicates(command: Command) -> None:
    for seed in (1, 0):
        text = make_workload("mixed", WorkloadOptions(seed=seed, jobs=2)).canonical_json()
        Path(f"stream-{seed}.json").write_text(text)
    found = json.loads(command("bench", "stream-*.json", "--format", "json")[1])
    seeds = rollmux.bench("mixed", seeds=2, settings={"jobs": 2})
    assert found["seeds"] == [0, 1] and found["runs"][0]["scenario_sha256"] == seeds.runs[0].scenario_sha256
    assert found["summary"][1]["saving"]["mean"] == seeds.summary[1].saving.mean  # type: ignore[union-attr]
    listed = rollmux.bench(["stream-0.json", "stream-1.json"])
    assert (listed.scenario, listed.differences) == ("stream-0.json and 1 more", seeds.differences)
    swept = json.loads(command("bench", "stream-0.json", "stream-1.json", "--sweep", "max_group_size=1", "--format", "json")[1])
    assert swept["points"][0]["bench"]["summary"][1]["saving"]["mean"] == 1.0
    assert find_streams("stream-0.json").seeds(None) == [0]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("nowhere:stream",), "workload nowhere:stream: there is no module 'nowhere' on the path or in this folder"),
        (("others:none",), "others.py has no workload 'none'"),
        (("others:number",), "others.py has no workload 'number'"),
        (("others:Few", "--set", "job=2"), "workload others:Few: others:Few has no option 'job'; it has jobs; did you mean jobs?"),
        (("others:few", "--set", "jobs=2"), "workload others:few: others:few has no option 'jobs'; it has none"),
        (("others:broken",), "the workload others:broken raised ValueError: no stream today in broken (others.py, line"),
        (("diurnal:math",), "diurnal.py has no workload 'math'"),
        (
            ("others:pools", "--seeds", "2"),
            "seed 1: has the pools rollout + training + A100, and the first seed rollout + training",
        ),
        (("none-*.yaml",), "none-*.yaml: no file matches"),
        (("a.json", "b.json", "--seeds", "2"), "a.json and 1 more has 2 files, and each is one replicate"),
        (("others:growing", "--sweep", "job=1"), "--sweep job: neither an option of the workload nor a key of its cluster"),
        (("--suite", "temporal", "--set", "workload=mixed"), "--set workload=mixed: must be module:name of a workload"),
    ],
)
def test_a_workload_that_cannot_be_is_one_line(command: Command, words: tuple[str, ...], problem: str) -> None:
    status, out, err = command("bench", *words)
    assert (status, out, err.count("\n")) == (2, "", 1) and problem in err


def test_what_a_workload_raises_in_python_is_a_plan_error() -> None:
    with pytest.raises(PlanError, match="the workload others:broken raised ValueError"):
        rollmux.bench("others:broken")
    with pytest.raises(InputError, match="target: must be a file, a workload or a scenario, not 3"):
        rollmux.bench(3)  # type: ignore[arg-type]


def test_the_toy_of_the_environments_is_a_target_too() -> None:
    """`rollmux train toy` leaves an agent that `rollmux bench toy` compares."""
    toy = find_streams("toy")
    assert (toy.name, toy.options, len(toy.scenario(0, {"rounds": "1"}).jobs)) == ("toy", ("rounds",), 4)
    assert find_scenario("toy", 0, ()) == toy.scenario(0, {})
    for rounds in ("0", "1.5", "many"):
        with pytest.raises(InputError, match="Toy: rounds: must be a whole number of at least 1, not "):
            toy.scenario(0, {"rounds": rounds})
    with pytest.raises(InputError, match="authors, toy, or module:name of your own; did you mean toy"):
        find_scenario("toyy", 0, ())
