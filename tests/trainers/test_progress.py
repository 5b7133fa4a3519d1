"""What one sees of a training run: dollars over the reference, the best so far, speed, time left, and no improvement."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress

from trainers.problem import best_rule
from trainers.progress import PATIENCE, ProgressPrinter, duration, evaluation_line, training_bar

Curve = list[dict[str, float]]


def curve(returns: Sequence[float], **more: float) -> Curve:
    return [
        {
            "steps": 1000 * k,
            "return": gained,
            "over_best_rule": 1 - gained,
            "over_best_rule_interval": 0.01,
            "frames_per_s": 1234.5 * k,
        }
        | more
        for k, gained in enumerate(returns)
    ]


def test_a_line_compares_with_the_best_rule() -> None:
    first = evaluation_line(curve([0.0]), 9000, None, "first-fit")
    assert first == "        0 of 9,000, cost over first-fit 1.0000 ± 0.0100 (best so far)"
    line = evaluation_line(curve([0.0, 0.2, 0.1]), 9000, 4000.0, "first-fit")
    assert line == (
        "    2,000 of 9,000, cost over first-fit 0.9000 ± 0.0100 (best 0.8000 at 1,000), 2,469 decisions/s, 1 h 07 min left"
    )
    assert "return 0.2000 (best so far)" in evaluation_line(curve([0.2]), 9000, None, None)


def test_a_line_says_when_nothing_gets_better() -> None:
    flat = curve([0.0, 0.2, *[0.1] * PATIENCE])
    assert "no better" not in evaluation_line(flat[:-1], 9000, None, None)
    assert evaluation_line(flat, 9000, None, None).endswith(f"no better for {PATIENCE} evaluations")
    assert "no better" not in evaluation_line([*flat, {**flat[-1], "return": 0.3}], 9000, None, None)


def test_the_best_rule_is_the_cheapest_that_could_run_and_has_a_rule() -> None:
    usd = {"masked-random": 9.0, "untrained": 1.0, "solo": 8.0, "first-fit": 5.0, "rollmux,prune=false": 6.0, "optimal-work": 2.0}
    assert best_rule({name: np.array([value, value]) for name, value in usd.items()}) == "first-fit"
    assert best_rule({"untrained": np.array([1.0])}) is None


def test_every_evaluation_is_one_line_where_no_one_looks_at_a_terminal() -> None:
    out = io.StringIO()
    with Progress(console=Console(file=out, width=40, soft_wrap=True, highlight=False), disable=True) as progress:
        tell = ProgressPrinter(progress, progress.add_task(""), 7, 9000)
        whole = curve([0.0, 0.2, 0.1, 0.3])
        for steps, rows in ((0, 1), (500, 1), (1000, 2), (1500, 2), (3000, 4)):
            tell(steps, whole[:rows])
    lines = out.getvalue().splitlines()
    assert [line.split(" of ")[0].split() for line in lines] == [["seed", "7", at] for at in ("0", "1,000", "2,000", "3,000")]


def test_a_resumed_run_begins_with_where_it_was() -> None:
    out = io.StringIO()
    with Progress(console=Console(file=out, soft_wrap=True, highlight=False), disable=True) as progress:
        ProgressPrinter(progress, progress.add_task(""), 0, 9000)(2000, curve([0.0, 0.2, 0.1]))
    assert len(out.getvalue().splitlines()) == 1


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(seconds) for seconds in (3, 89, 90, 3599, 3600, 7500)] == [
        "3 s", "89 s", "2 min", "1 h 00 min", "1 h 00 min", "2 h 05 min",
    ]  # fmt: skip


@pytest.mark.parametrize("problem", ["placement", "dispatch", "rollout"])
def test_compiling_the_step_of_the_environment_is_announced(
    problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes minutes on a busy machine, also where `bench` has compiled its own functions."""
    monkeypatch.setattr("trainers.progress.compiling_notice", lambda function, takes: f"{function.__module__} {takes}")
    training_bar(problem)
    assert capsys.readouterr().err.startswith(f"rollmux_env.envs.{problem}.")
