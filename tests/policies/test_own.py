"""Policies of a user's own of every kind: the examples of the pages, and what is said of answers that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.api import Fleet, JobPolicy, Round, Rounds, Setting, StaticControl, Wake, deal
from policies.dispatch import make_dispatch
from policies.network import make_network
from policies.rollout import make_rollout, migrating
from policies.rollout.environment import PolicyAgent
from policies.rollout.places import make_at
from rollmux_env.bench.suites.fabric import fabric_rows
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.errors import InputError, PlanError
from rollmux_env.fabric.play import Forecast, Hour, draw_hour, play
from rollmux_env.fabric.steps import GRADIENTS, PIPELINE, WEIGHTS, FabricStep
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.replica import ReplicaTiming
from tests.conftest import Command

ROOT = Path(__file__).parents[2]
KINDS: dict[str, Callable[[str], Any]] = {"dispatch": make_dispatch, "rollout": make_rollout, "network": make_network}
EXAMPLES = {
    "dispatch": "shortest_sync:ShortestSync,patience=2",
    "rollout": "early_tail:EarlyTail,at=0.4",
    "network": "patient_circuits:PatientCircuits,margin=1",
}
PAGES = {"shortest_sync": "dispatch.md", "early_tail": "rollout_policies.md", "patient_circuits": "fabric.md"}


@pytest.fixture(autouse=True)
def _in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize(("module", "page"), PAGES.items())
def test_the_documented_policies_are_the_examples(module: str, page: str) -> None:
    text = (ROOT / "docs" / "reference" / page).read_text()
    assert (ROOT / "examples" / f"{module}.py").read_text().rstrip() in text


def test_bench_and_trace_take_a_dispatch_policy(command: Command, tmp_path: Path) -> None:
    status, out, err = command("bench", "quickstart", "--dispatch", EXAMPLES["dispatch"], "-p", "rollmux", "--format", "csv")
    assert (status, err) == (0, "") and out.count("\n") == 2
    status, out, err = command("trace", "quickstart", "--dispatch", EXAMPLES["dispatch"], "--out", str(tmp_path))
    assert (status, err) == (0, "") and (tmp_path / "trace.json").exists()


def test_bench_and_trace_take_a_rollout_policy(command: Command, tmp_path: Path) -> None:
    words = ("models", "--rollout-policy", EXAMPLES["rollout"], "-p", "rollmux")
    status, early, err = command("bench", *words, "--format", "csv")
    assert status == 0, err  # on a slow machine it says there how far it is
    assert early != command("bench", "models", "--rollout-policy", "plain", "-p", "rollmux", "--format", "csv")[1]
    status, _, err = command("trace", *words, "--out", str(tmp_path))
    assert status == 0 and (tmp_path / "trace.json").exists()


def test_a_suite_takes_policies_of_its_kind(command: Command) -> None:
    from policies.makers import makers
    from rollmux_env.bench.suites.fabric import CASES

    rows = fabric_rows(CASES[:1], [0], True, makers(), [EXAMPLES["network"]])
    assert [row.policy for row in rows][-1] == f"{EXAMPLES['network']} 30, 10 ms"
    for suite, kind in (("fabric", "network"), ("rollout", "rollout")):
        status, _, err = command("bench", "--suite", suite, "-p", "nosuch")
        assert status == 2 and err.startswith(f"rollmux: {kind} policy: must be one of ") and err.count("\n") == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("nosuch:Thing", "there is no module 'nosuch' on the path or in this folder"),
        (
            "nosuch.py:Thing",
            "a module has no folder and no .py, as in nosuch:Thing; it is looked up on the path and in this folder",
        ),
        ("./folder/nosuch:Thing", "a module has no folder and no .py, as in nosuch:Thing; "),
        ("shortest_sync:Longest", "has no class 'Longest'"),
        ("first_fit:FirstFit", "method"),
        ("first_fit:FirstFit,most=1", "first_fit:FirstFit has no option 'most'; it has most_new_nodes"),
        ("os:path", "has no class 'path'"),
    ],
)
def test_what_is_no_policy_of_its_kind_is_one_line(kind: str, spec: str, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        KINDS[kind](spec)
    text = str(refused.value)
    assert text.startswith(f"{kind} policy '{spec}': ") and problem in text and "\n" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_an_option_without_a_default_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_policy.py").write_text("class Needy:\n    def __init__(self, size, *, most=1): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"needy_policy:Needy needs the option 'size', which has no default$"):
        KINDS[kind]("needy_policy:Needy,most=2")


@pytest.mark.parametrize("kind", KINDS)
def test_an_own_policy_is_made_with_its_options(kind: str) -> None:
    policy = KINDS[kind](EXAMPLES[kind])
    name, value = EXAMPLES[kind].partition(",")[2].split("=")
    assert getattr(policy, name) == float(value)


def test_a_rollout_policy_says_how_tails_move_and_is_hashable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_rollouts.py").write_text(
        "class Tails:\n    migration = 0.8\n    def begin_job(self, setting): ...\n    choose = begin_job\n"
        "class Mutable:\n    __hash__ = None\n    def begin_job(self, setting): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    for make in (make_dispatch, make_rollout):
        with pytest.raises(InputError, match="its `migration` must be None or a "):
            make("odd_rollouts:Tails")
    with pytest.raises(InputError, match="must be hashable"):
        make_rollout("odd_rollouts:Mutable")
    assert migrating("shortest_sync:ShortestSync", make_rollout("tail-migration")) == "shortest_sync:ShortestSync"


SETTING = Setting(((1, ReplicaTiming(0.01, 0.01, 1e-7, 1e-4, 0.0, 1e-5, 0.0, 2**20)),), 4, 1, 8, 2, 16, Lognormal(512, 100.0, 1.0))


@dataclass(frozen=True)
class Odd:
    """A rollout policy whose rounds or control a test replaces."""

    rounds: Any = None
    control: Any = None
    answer: Any = None

    def begin_job(self, setting: Setting) -> Any:
        own = JobPolicy(self.rounds or Rounds(setting.prompts, setting.responses, 1), self.control or StaticControl())
        return own if self.answer is None else self.answer


@dataclass(frozen=True)
class Same:
    """Rounds that are always the same one."""

    round: Any

    def next(self) -> Any:
        return self.round

    def done(self, complete: Any) -> None: ...


class Doing(StaticControl):
    """A control that begins as a test says."""

    def __init__(self, begin: Callable[[Fleet], Any], act: Callable[[Fleet], Any] = lambda fleet: Wake()) -> None:
        self._begin, self._act = begin, act

    def begin(self, fleet: Fleet, round: Round) -> Any:
        return self._begin(fleet)

    def act(self, fleet: Fleet) -> Any:
        return self._act(fleet)


def _all_at(replica: int) -> Callable[[Fleet], Wake]:
    def begin(fleet: Fleet) -> Wake:
        fleet.launch(np.arange(16), np.full(16, replica))
        return Wake(1)

    return begin


def _on_more_gpus(fleet: Fleet) -> Wake:
    deal(fleet, fleet.add([SETTING.replicas[0]] * 8))
    return Wake()


def _twice(fleet: Fleet) -> Wake:
    deal(fleet, np.arange(4))
    deal(fleet, np.arange(4))
    return Wake()


def _all(prompts: Any, responses: int = 2, wanted: int = 8, needed: int = 2) -> Same:
    return Same(Round(False, tuple(prompts), responses, wanted, needed))


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (Odd(answer="none"), "R1: the rollout policy's begin_job returned 'none', which is no JobPolicy"),
        (Odd(Same(None)), "R2: the rollout policy's next round is None, which is no Round"),
        (Odd(_all(range(8), wanted=7)), "R2: a round of 7 prompts with 2 responses each, where an iteration trains on 8 with 2"),
        (Odd(_all([0] * 8)), "R2: a round launches 1 different prompts of 8 with 2 responses each, and wants 8 with 2"),
        (Odd(_all(range(8), responses=1)), "R2: a round launches 8 different prompts of 8 with 1 responses each"),
        (Odd(_all(range(8))), "R3: a round launches prompt 0, which was complete before"),
        (Odd(_all(range(1000, 1008))), "R3: a round launches prompt 1000, though 0 prompts were complete: one of 0 to 63 is next"),
        (Odd(control=Doing(lambda fleet: 3)), "R4: the rollout policy's control returned 3, which is no Wake"),
        (Odd(control=Doing(_all_at(4))), "R5: there is no replica 4, only 0 to 3"),
        (Odd(control=Doing(_twice)), "R5: a response is launched once"),
        (
            Odd(control=Doing(_all_at(0), lambda fleet: fleet.migrate(np.array([99]), np.array([0])))),
            "R5: there is no response 99, only 0 to 15",
        ),
        (Odd(control=Doing(_on_more_gpus)), "R6: responses are on replicas of 8 GPUs in all, and the job has 4"),
        (Odd(control=Doing(lambda fleet: Wake())), "R7: the rollout policy left 8 of 8 prompts incomplete"),
        (Odd(control=Doing(lambda fleet: 1 // 0)), "the rollout policy raised ZeroDivisionError: "),
    ],
)
def test_what_a_rollout_policy_may_not_do_is_one_numbered_line(policy: Any, problem: str) -> None:
    job_policy = policy
    with pytest.raises(PlanError) as broken:
        job = JobRollouts(SETTING, job_policy, 0)
        for _ in range(3):
            job.next()
    assert str(broken.value).startswith(problem) and "\n" not in str(broken.value)


def test_an_own_rollout_policy_plays_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = RolloutVectorEnv(1, autoreset_mode="Disabled")
    observation, _ = env.reset(seed=0)
    agent, over, chosen = PolicyAgent("early_tail:EarlyTail", env), False, set()
    while not over:
        actions = agent.actions(observation)
        chosen.add(int(actions[0]))
        observation, _, ended, _, _ = env.step(actions)
        over = bool(ended[0])
    assert len(chosen) > 1, "it moved no tail"
    (tmp_path / "many_prompts.py").write_text(
        "from policies.api import JobPolicy, Rounds, StaticControl\n"
        "class Many:\n    def begin_job(self, setting):\n        return JobPolicy(Rounds(setting.prompts, 1, 2), StaticControl())\n"
    )
    monkeypatch.chdir(tmp_path)
    observation, _ = env.reset(seed=1)
    with pytest.raises(InputError, match=r"launches \d+ prompts with 2 responses each, and no action of RollMux/Rollout-v0 does"):
        PolicyAgent("many_prompts:Many", env).actions(observation)
    assert make_at("early_tail:EarlyTail", "run") == make_at("early_tail:EarlyTail", "suite")


def hour() -> Hour:
    steps = tuple(FabricStep(kind, 1.0, 1.0) for kind in (PIPELINE, GRADIENTS, WEIGHTS))
    return draw_hour(Forecast(steps, 1.0, np.array([[3.0, 1.0], [1.0, 3.0], [2.0, 2.0]]), 0.5), 1.0, 2, 0.1, 0)


class Choosing:
    """A network policy that answers what a test says."""

    def __init__(self, first: Any, then: Any) -> None:
        self._first, self._then = first, then

    def first(self, forecast: Forecast) -> Any:
        return self._first

    def topology_for(self, forecast: Forecast, step: int, present: int) -> Any:
        return forecast.nothing if self._then is None else self._then  # type: ignore[attr-defined]


class Knowing:
    def choose_all(self, hour: Hour) -> Any:
        return np.zeros((1, 1), np.int64)


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (Choosing(2, 0), "N1: the network policy chose topology 2, not one of 0 to 1"),
        (Choosing(0, -1), "N1: the network policy chose topology -1, not one of 0 to 1"),
        (Choosing(0, "all"), "N1: the network policy chose topology 'all', not one of 0 to 1"),
        (Knowing(), "N2: the network policy chose topologies of shape (1, 1), not (2, 3)"),
        (
            Choosing(0, None),
            "the network policy raised AttributeError: 'Forecast' object has no attribute 'nothing' in topology_for",
        ),
    ],
)
def test_what_a_network_policy_may_not_do_is_one_numbered_line(policy: Any, problem: str) -> None:
    with pytest.raises(PlanError) as broken:
        play(hour(), policy)
    assert str(broken.value).startswith(problem) and "\n" not in str(broken.value)


def test_the_example_of_a_network_policy_changes_circuits_where_there_is_time() -> None:
    patient = play(hour(), make_network("patient_circuits:PatientCircuits"))
    assert patient.switches > 0 and patient.late_s == 0.0
    assert play(hour(), make_network("patient_circuits:PatientCircuits,margin=1e6")).switches == 0
