"""A policy is a user's program: what it raises, returns, prints, draws and writes, of every kind, and how long it takes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollmux
from policies.dispatch import make_dispatch
from policies.network import make_network
from policies.registry import make_policy
from policies.rollout import make_rollout
from rollmux_env.bench.harness import Task, run_task
from rollmux_env.errors import DEBUG, InputError, PlanError
from rollmux_env.fabric.play import Forecast, draw_hour, play
from rollmux_env.fabric.steps import GRADIENTS, PIPELINE, WEIGHTS, FabricStep
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.scenario import load_scenario
from rollmux_env.user_code import is_users
from tests.conftest import Command
from tests.policies.test_own import SETTING

ROOT = Path(rollmux.__file__).parent
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")
PROGRAM = """
import os, random, signal, sys, time
import numpy
from policies.api import Arrived, JobPolicy, Park, Place, Placement, Rounds, StaticControl, candidates, isolated

print("said at import")
DRAWN = random.random()


class Solo:
    keeps_slo = True

    def decide(self, state, event):
        if not isinstance(event, Arrived):
            return ()
        self.act(state, event.job)
        return (Place(event.job.id, isolated(event.job, state.cluster)),)

    def act(self, state, job):
        pass


class Strange(BaseException):
    def __str__(self):
        raise Strange


class Raising(Solo):
    def __init__(self, what):
        self.what = what

    def act(self, state, job):
        errors = {"exit": SystemExit(3), "stop": KeyboardInterrupt, "strange": Strange(), "lines": ValueError("two\\nlines")}
        raise errors[self.what]


class Interrupted(Solo):
    def act(self, state, job):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(9)


class Printing(Solo):
    def __init__(self):
        print("said when made")

    def act(self, state, job):
        print("said when asked")
        os.system("echo said by a process")


class Dice(Solo):
    def decide(self, state, event):
        if not isinstance(event, Arrived):
            return ()
        table = candidates(state, event.job.id)
        rows = [row for row in range(len(table)) if table.feasible[row]]
        row = random.choice(rows) if numpy.random.random() < 0.5 else rows[0]
        return (Place(event.job.id, table.placement(row)),)


class Answering(Solo):
    def __init__(self, answer):
        self.answer = answer

    def decide(self, state, event):
        if not isinstance(event, Arrived):
            return ()
        name = event.job.id
        return {
            "real": (Place(name, Placement(None, (), 1.0, 1)),),
            "huge": (Place(name, Placement(None, (), 1, 10**30)),),
            "text": (Place(name, "here"),),
            "nobody": (Place([], isolated(event.job)),),
            "one": (Place(name, Placement(0, 3)),),
            "parked": (Park(name, 3),),
            "numpy": [Place(name, as_numpy(isolated(event.job)))],
        }[self.answer]


def as_numpy(place):
    return Placement(None, (), numpy.int64(place.new_rollout_nodes), numpy.int32(place.training_nodes))


class Clock(Solo):
    def act(self, state, job):
        state.now_s = 0.0


class Nodes(Solo):
    def act(self, state, job):
        state.nodes[:] = 0


class Table(Solo):
    def act(self, state, job):
        state.tables.jobs.done[:] = 1e9


class Members(Solo):
    def act(self, state, job):
        for group in state.group_list():
            group.jobs = ()


class Prices(Solo):
    def act(self, state, job):
        state.limits.pools["usd"][:] = 0.0


class Deliberate(Solo):
    def act(self, state, job):
        object.__setattr__(state, "now_s", 0.0)
        state.view.clock.nodes[:] = 0
        state.view.limits.pools["usd"][:] = 0.0
        state.tables.job_records["done"][:] = 1e9
        state.waiting.clear()
        state.charges._accounts.clear()


class Jobs(Solo):
    def act(self, state, job):
        vars(job.rollout)["worst_case_s"] = 1e6


class Claiming:
    keeps_slo = True

    def __init__(self, usd):
        self.usd = usd

    def replay(self, scenario, check=False):
        from dataclasses import replace
        from policies.registry import make_policy
        from rollmux_env.bench.harness import Task, run_task

        honest = run_task(make_policy, Task("solo", 0, scenario)).outcome
        return replace(honest, metrics=replace(honest.metrics, cost_usd=self.usd)) if self.usd else "free"


class Endless(Solo):
    def act(self, state, job):
        while True:
            try:
                time.sleep(1)
            except BaseException:
                pass


class Choosing:
    def choose(self, group):
        print("said when asked")
        raise SystemExit(4)


class Launching:
    def begin_job(self, setting):
        print("said when asked")
        return JobPolicy(Rounds(setting.prompts, setting.responses, 1), Control())


class Control(StaticControl):
    def act(self, fleet):
        raise SystemExit(5)

    def begin(self, fleet, round):
        super().begin(fleet, round)
        return self.act(fleet)


class Setting:
    def first(self, forecast):
        print("said when asked")
        raise SystemExit(6)

    def topology_for(self, forecast, step, present):
        return 0
"""


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv(DEBUG, "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "program", raising=False)


def line_of(command: Command, policy: str, *more: str) -> str:
    """Return the last line of a bench that ends with status 2."""
    status, out, err = command("bench", QUICKSTART, "-p", "solo", "-p", policy, *more)
    assert status == 2 and not out
    return err.splitlines()[-1]


@pytest.mark.parametrize(
    ("what", "said"),
    [("exit", "SystemExit: 3"), ("stop", "KeyboardInterrupt"), ("strange", "Strange"), ("lines", "ValueError: two lines")],
)
def test_whatever_it_raises_is_one_line_with_its_file_and_line(command: Command, what: str, said: str) -> None:
    line = line_of(command, f"program:Raising,what={what}")
    where = rf"rollmux: policy program:Raising,what={what}: the policy raised {said} in act \(program\.py, line \d+\)"
    assert re.fullmatch(where, line), line


def test_an_error_inside_rollmux_is_told_with_the_line_that_called_it(command: Command, tmp_path: Path) -> None:
    (tmp_path / "asking.py").write_text(
        "class Asking:\n    keeps_slo = True\n    def decide(self, s, e):\n        s.job('nobody')\n"
    )
    assert line_of(command, "asking:Asking").endswith("the policy raised KeyError: 'nobody' in decide (asking.py, line 4)")


def test_ctrl_c_while_it_decides_stops_the_command(command: Command) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert command("bench", QUICKSTART, "-p", "program:Interrupted")[0] == 130
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_it_raises_when_it_is_made_is_one_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "unmade.py").write_text("class Unmade:\n    def __init__(self):\n        raise SystemExit('no weights')\n")
    assert (
        line_of(command, "unmade:Unmade")
        == "rollmux: --policy unmade:Unmade: SystemExit: no weights in __init__ (unmade.py, line 3)"
    )
    (tmp_path / "property.py").write_text(
        "class Odd:\n    keeps_slo = property(lambda self: 1 / 0)\n    def decide(self, s, e): ...\n"
    )
    assert "raised ZeroDivisionError: division by zero" in line_of(command, "property:Odd")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("real", "P2: the placement of job math-7b has 1.0, which is no whole number"),
        ("huge", "P2: the placement of job math-7b has 1000000000000000000000000000000, which is no whole number"),
        ("text", "P2: the plan has 'here' for job math-7b, which is no Placement"),
        ("nobody", "P1: the plan names job [], which is no text"),
        ("one", "P2: the placement of job math-7b has rollout_nodes 3, which is no tuple"),
        ("parked", "P1: the plan parks math-7b for job 3, which is no text"),
    ],
)
def test_whatever_it_returns_is_checked(command: Command, answer: str, problem: str) -> None:
    assert line_of(command, f"program:Answering,answer={answer}").endswith(problem)


def test_numbers_of_numpy_are_whole_numbers() -> None:
    scenario = load_scenario(QUICKSTART)
    solo, own = (run_task(make_policy, Task(name, 0, scenario)) for name in ("solo", "program:Answering,answer=numpy"))
    assert own.outcome.metrics == solo.outcome.metrics


@pytest.mark.parametrize(
    "arguments", [["bench", QUICKSTART, "-p"], ["plan", QUICKSTART, "-p"], ["explain", QUICKSTART, "-j", "math-7b", "-p"]]
)
def test_what_it_prints_is_not_in_the_results(command: Command, arguments: list[str]) -> None:
    status, out, err = command(*arguments, "program:Printing", "--format", "json")
    assert status == 0 and json.loads(out)
    assert all(words in err for words in ("said at import", "said when made", "said when asked"))


def test_what_its_processes_print_is_not_in_the_results_either(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "rollmux.py"), "plan", QUICKSTART, "-p", "program:Printing", "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(done.stdout) and "said by a process" in done.stderr


def test_what_it_draws_follows_the_seed() -> None:
    import random

    random.seed(7)
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    first, second = (rollmux.bench("mixed", ["program:Dice"], seeds, settings={"jobs": 25}).runs for seeds in ([1], [0, 1]))
    assert first[0].figures == second[1].figures and first[0].figures != second[0].figures
    assert (random.getstate(), repr(np.random.get_state())) == before, "the user's own draws are not disturbed"  # noqa: NPY002


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("Clock", "AttributeError: 'now_s' of the state cannot be set: a policy reads the state, and only `apply` writes it"),
        ("Nodes", "ValueError: assignment destination is read-only"),
        ("Table", "ValueError: assignment destination is read-only"),
        ("Members", "FrozenInstanceError: cannot assign to field 'jobs'"),
        ("Prices", "ValueError: assignment destination is read-only"),
    ],
)
def test_writing_into_the_state_by_mistake_fails_at_that_line(command: Command, policy: str, said: str) -> None:
    line = line_of(command, f"program:{policy}")
    assert line.startswith(f"rollmux: policy program:{policy}: the policy raised {said} in act (program.py, line "), line


@pytest.mark.parametrize("dispatch", [None, "round-robin"])
def test_writing_into_the_state_on_purpose_changes_nothing(dispatch: str | None) -> None:
    scenario, rule = load_scenario(QUICKSTART), dispatch and make_dispatch(dispatch)
    solo, own = (run_task(make_policy, Task(name, 0, scenario, rule or None)) for name in ("solo", "program:Deliberate"))
    assert own.outcome.metrics == solo.outcome.metrics and own.outcome.jobs == solo.outcome.jobs


def test_writing_into_the_jobs_ends_the_replay(command: Command) -> None:
    assert line_of(command, "program:Jobs") == (
        "rollmux: policy program:Jobs: F4: it wrote into the jobs or the cluster of the scenario"
    )


@pytest.mark.parametrize(
    ("usd", "problem"),
    [
        ("-5", "F1: cost_usd is -5, which cannot be"),
        ("NaN", "F1: cost_usd is nan, which cannot be"),
        ("0", "its replay returned 'free', which is no Outcome"),
    ],
)
def test_figures_that_cannot_be_end_a_run(command: Command, usd: str, problem: str) -> None:
    assert line_of(command, f"program:Claiming,usd={usd}") == f"rollmux: policy program:Claiming,usd={usd}: {problem}"


def test_one_that_never_ends_can_be_given_a_limit(command: Command) -> None:
    status, _, err = command("bench", QUICKSTART, "-p", "program:Endless", "--time-limit", "0.5")
    assert status == 2 and err.splitlines()[-1] == "rollmux: policy program:Endless: it took longer than --time-limit 0.5 s"


def test_a_suite_that_runs_in_this_process_takes_no_limit(command: Command) -> None:
    status, _, err = command("bench", "--suite", "fabric", "--quick", "--time-limit", "9")
    assert (status, err) == (2, "rollmux: --time-limit: the suite fabric runs in this process alone\n")


def test_policies_of_the_other_kinds_are_programs_too(capsys: pytest.CaptureFixture[str]) -> None:
    scenario = load_scenario(QUICKSTART)
    with pytest.raises(
        PlanError, match=r"^policy solo with dispatch policy Choosing: the dispatch policy raised SystemExit: 4 in choose"
    ):
        run_task(make_policy, Task("solo", 0, scenario, make_dispatch("program:Choosing")))
    with pytest.raises(PlanError, match=r"^the rollout policy raised SystemExit: 5 in act \(program\.py, line \d+\)$"):
        JobRollouts(SETTING, make_rollout("program:Launching"), 0).next()
    steps = tuple(FabricStep(kind, 1.0, 1.0) for kind in (PIPELINE, GRADIENTS, WEIGHTS))
    hour = draw_hour(Forecast(steps, 1.0, np.array([[3.0, 1.0]] * 3), 0.5), 1.0, 2, 0.1, 0)
    with pytest.raises(PlanError, match=r"^the network policy raised SystemExit: 6 in first \(program\.py, line \d+\)$"):
        play(hour, make_network("program:Setting"))
    printed = capsys.readouterr()
    assert not printed.out and printed.err.count("said when asked") == 3


def test_a_function_of_streams_is_a_program_too() -> None:
    def streams(seed: int) -> Any:
        if seed:
            raise SystemExit(seed)
        return "a stream"

    with pytest.raises(InputError, match=r"^the workload streams returned 'a stream', which is no Scenario$"):
        rollmux.bench(streams, seeds=[0])
    with pytest.raises(PlanError, match=r"^the workload streams raised SystemExit: 1 in streams \(test_user_code\.py, line \d+\)$"):
        rollmux.bench(streams, seeds=[1])


def test_policies_of_rollmux_are_asked_directly() -> None:
    assert not any(is_users(make_policy(name)) for name in ("solo", "consolidate", "optimal", "learned:default"))
    assert not is_users(make_dispatch("fifo")) and not is_users(make_rollout("tail-batching")) and not is_users(None)
    assert is_users(make_policy("program:Solo")) and is_users(os.path.join)
