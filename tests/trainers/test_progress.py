"""What one sees of a training run: dollars over the reference, the best so far, speed, time left, and no improvement."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from trainers.progress import PATIENCE, ProgressPrinter, duration, evaluation_line

Curve = list[dict[str, float]]


def curve(returns: Sequence[float], **more: float) -> Curve:
    return [
        {
            "steps": 1000 * k,
            "return": gained,
            "dollars_over_solo": 0.5,
            "dollars_over_rollmux": 1 - gained,
            "frames_per_s": 1234.5 * k,
        }
        | more
        for k, gained in enumerate(returns)
    ]


def test_a_line_says_what_one_wants_to_know() -> None:
    assert evaluation_line(curve([0.0]), 9000, None) == "        0 of 9,000, dollars over rollmux 1.0000 (best so far)"
    line = evaluation_line(curve([0.0, 0.2, 0.1]), 9000, 4000.0)
    assert line == ("    2,000 of 9,000, dollars over rollmux 0.9000 (best 0.8000 at 1,000), 2,469 decisions/s, 1 h 07 min left")


def test_a_line_says_when_nothing_gets_better() -> None:
    flat = curve([0.0, 0.2, *[0.1] * PATIENCE])
    assert "no better" not in evaluation_line(flat[:-1], 9000, None)
    assert evaluation_line(flat, 9000, None).endswith(f"no better for {PATIENCE} evaluations")
    assert "no better" not in evaluation_line([*flat, {**flat[-1], "return": 0.3}], 9000, None)


def test_other_references_stand_in_for_rollmux() -> None:
    fifo = [{"steps": 0, "return": 0.0, "usd_per_work_hour": 3.0, "dollars_over_fifo": 1.5, "frames_per_s": 0.0}]
    assert "dollars over fifo 1.5000" in evaluation_line(fifo, 10, None)
    assert "return 0.2500" in evaluation_line([{"steps": 0, "return": 0.25, "frames_per_s": 0.0}], 10, None)


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
