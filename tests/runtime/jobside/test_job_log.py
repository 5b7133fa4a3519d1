"""What a job's own process says in its log."""

from __future__ import annotations

from runtime.jobside.job_log import iteration_line, start_line, without_details
from runtime.jobside.messages import IterationOrder
from runtime.machine import Node, Pool
from runtime.machines.nodes import POOLS

NODES: dict[Pool, tuple[Node, ...]] = {pool: (Node(f"{pool}-0", pool, "m", (0,), (), 8.0, "1 core"),) for pool in POOLS}


def test_an_iteration_is_a_line_with_reward_and_loss_first() -> None:
    line = iteration_line(3, 9, 1.234, {"tokens": 4096.0, "loss": 0.0123456789, "reward": 0.5})
    assert line == "iteration 3 of 9: 1.23 s, reward 0.5, loss 0.01235, tokens 4096"
    assert iteration_line(1, 1, 2.0, {}) == "iteration 1 of 1: 2.00 s"


def test_of_an_iteration_seconds_reward_length_and_loss_are_shown() -> None:
    metrics = {"loss": 0.25, "lr": 1e-5, "reward": 0.5, "response_tokens": 40.0, "length": 4.0}
    begins, line = "controller | 2026-11-24 04:00:00  ", iteration_line(3, 9, 1.234, metrics)
    short = f"{begins}iteration 3 of 9: 1.23 s, reward 0.5, loss 0.25, response_tokens 40, length 4"
    assert without_details(begins + line) == short == without_details(short)
    assert without_details(begins + iteration_line(1, 1, 2.0, {})) == f"{begins}iteration 1 of 1: 2.00 s"
    for other in (f"command | {line}", "controller | my own, with commas, lr 2", f"{begins}restarted: a, b"):
        assert without_details(other) == other


def test_a_start_says_from_where_and_on_which_nodes() -> None:
    on = "on rollout-0 training-0"
    assert start_line(IterationOrder(0, False, NODES, "x")) == f"starts {on}"
    assert start_line(IterationOrder(-1, True, NODES, "x")) == f"starts, to be profiled, {on}"
    assert start_line(IterationOrder(4, False, NODES, "x", "x/4")) == f"continues from its checkpoint after iteration 4 {on}"
    assert start_line(IterationOrder(4, False, NODES, "x")) == f"starts without a checkpoint at iteration 5 {on}"


def test_a_name_of_a_metric_writes_no_line_of_its_own() -> None:
    line = iteration_line(1, 2, 1.0, {"a\n2026-01-01 00:00:00  forged\x1b]52;c;AAAA\x07": 1e308})
    assert line == r"iteration 1 of 2: 1.00 s, a\n2026-01-01 00:00:00  forged\x1b]52;c;AAAA\x07 1e+308"
