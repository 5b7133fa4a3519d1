"""Budgets, and what an allocation of one costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.allocation.allocation import GpuBudget, parse_budget, update_s, usd_per_hour
from rollmux_env.errors import InputError
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.work import IterationWork, make_work


def test_a_budget_is_read_from_the_text_of_an_option() -> None:
    budget = parse_budget("H800=8,H20=24", 8)
    assert dict(budget.gpus) == {"H800": 8, "H20": 24}
    assert usd_per_hour(budget) == pytest.approx(86.64)
    assert usd_per_hour(GpuBudget({"H100": 8})) is None, "no paper gives its price"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("H800", "--budget: 'H800' is not of the form GPU=COUNT"),
        ("H800=8,H800=8", "is given twice"),
        ("H800=-1", "must be at least 1, not -1"),
        ("H800=0", "--budget H800: must be at least 1, not 0"),
        ("H801=8", "did you mean H800"),
    ],
)
def test_what_is_no_budget_is_said_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        parse_budget(text, 8)
    assert "\n" not in str(error.value) and str(error.value).startswith("--budget")


def test_a_machine_that_is_none_is_said_of_its_option() -> None:
    with pytest.raises(InputError, match=r"^--gpus-per-node: must be at least 1, not 0$"):
        parse_budget("H800=8", 0)


@pytest.mark.parametrize(
    ("staleness", "settings", "problem"),
    [
        (-1, [], "--staleness: must be at least 0, not -1"),
        (65, [], "--staleness: must be at most 64, not 65"),
        (0, ["responses=0"], "--set responses: must be at least 1, not 0"),
        (0, ["cap=100"], "--set response_tokens: must be at most the cap of 100"),
        (0, ["responses=3"], "--set updates: must be at most the 3 responses, not 4"),
        (0, ["batch=3"], "--set batch: must be one of responses"),
        (0, ["cap=1.5"], "--set cap: must be a whole number, not 1.5"),
    ],
)
def test_work_that_makes_no_sense_is_said_in_one_line(staleness: int, settings: list[str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make_work("7B", staleness, settings)


def test_an_update_is_a_flat_broadcast_to_one_machine_after_the_other() -> None:
    work = IterationWork(SHAPES["7B"])
    h800, h20 = (achieved(name, GPUS[name]) for name in ("H800-areal-hex", "H20-areal-hex"))
    weights_gb = SHAPES["7B"].parameters * 2 / 1e9
    across = update_s(work, (h800,), {h20: 3, h800: 2})
    assert across == pytest.approx(3 * weights_gb / (1.5 * 0.848) + 2 * weights_gb / (5 * 0.848), rel=1e-4)
    assert update_s(work, (h800, h20), {h20: 3}) == pytest.approx(3 * weights_gb / (5 * 0.848), rel=1e-4), "its own type trains too"
    assert GpuBudget({"H20-areal-hex": 8}).rewards_s(work) == pytest.approx(8192 * 5e-4)


@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from([1, 4, 8]))
def test_what_is_left_for_rollouts_is_never_split_over_two_machines(count: int, training: int, machine: int) -> None:
    training = min(training, count)
    (rollout,) = GpuBudget({"H20": count}, machine).beside((training,))
    assert rollout <= count - training
    if count % machine == 0:
        assert rollout == count - training, "machines that are whole can always be divided"
    if count < 40:
        (more,) = GpuBudget({"H20": count + 1}, machine).beside((training,))
        assert more >= rollout
