"""What a user's policy raises, or returns that is no plan, is one line that says where; so it is for every command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import rollmux
from rollmux_env.errors import DEBUG, PlanError
from rollmux_env.replay.event import replay_events
from rollmux_env.scenario import load_scenario
from tests.conftest import Command
from tests.runtime.pretend import carry_out, plan_of

QUICKSTART = str(Path(rollmux.__file__).parent / "examples" / "quickstart.yaml")
RAISING = """
class Raising:
    keeps_slo = True

    def decide(self, state, event):
        return self.score(0)

    def score(self, x):
        return 1 / x


class Late(Raising):
    def decide(self, state, event):
        from policies.api import Arrived, Place, isolated

        if not isinstance(event, Arrived):
            return None
        return (Place(event.job.id, isolated(event.job)),)


class NeverMade:
    def __init__(self):
        raise LookupError("no weights")
"""
LINE = r"the policy raised ZeroDivisionError: division by zero in score \(raising_policy\.py, line 9\)"


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DEBUG, "")
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raising_policy.py").write_text(RAISING)
    (tmp_path / "stopping_policy.py").write_text("raise SystemExit(3)\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["bench", QUICKSTART, "-p", "raising_policy:Raising"], LINE),
        (["plan", QUICKSTART, "-p", "raising_policy:Raising"], LINE),
        (
            ["bench", QUICKSTART, "-p", "raising_policy:Late"],
            "decide returned None, which is no tuple of Place, Move, Park and Wait",
        ),
        (["bench", QUICKSTART, "-p", "raising_policy:NeverMade"], "raising_policy:NeverMade: LookupError: no weights"),
        (["bench", QUICKSTART, "-p", "stopping_policy:Never"], "cannot import stopping_policy: SystemExit: 3"),
    ],
)
def test_it_is_one_line_and_with_debug_a_traceback(command: Command, arguments: list[str], line: str) -> None:
    status, _, err = command(*arguments)
    assert status == 2 and err.count("\n") == 1 and re.search(line, err), err
    status, _, err = command("--debug", *arguments)
    assert status == 2 and err.startswith("Traceback") and re.search(line, err.splitlines()[-1]), err


@pytest.mark.parametrize("policy", ["raising_policy:Raising", "raising_policy:Late"])
def test_it_ends_a_run_with_that_line(tmp_path: Path, policy: str) -> None:
    jobs = [{"id": name, "iterations": 2} for name in "ab"]
    with pytest.raises(PlanError, match=LINE if policy == "raising_policy:Raising" else "decide returned None"):
        carry_out(plan_of(tmp_path, jobs, policy=policy))


class Choosing:
    """A dispatch policy that does what a test asks for."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def choose(self, group: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_so_it_is_for_a_dispatch_policy() -> None:
    from policies.registry import make_runnable

    scenario = load_scenario(QUICKSTART)
    with pytest.raises(PlanError, match=r"the dispatch policy raised KeyError: 'x' in choose \(test_asking\.py, line \d+\)"):
        replay_events(scenario, make_runnable("rollmux"), Choosing(KeyError("x")), 0)
    with pytest.raises(PlanError, match="D1: the dispatch policy chose 'the first', which is no phase and no member of the group"):
        replay_events(scenario, make_runnable("rollmux"), Choosing("the first"), 0)


def test_what_nobody_foresaw_is_one_line_too(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("in two\nlines")

    monkeypatch.setattr("rollmux_env.commands.validate.load_scenario", broken)
    status, out, err = command("validate", QUICKSTART)
    assert (status, out) == (1, "") and err == "rollmux: RuntimeError: in two lines (`rollmux --debug COMMAND ...` prints where)\n"
