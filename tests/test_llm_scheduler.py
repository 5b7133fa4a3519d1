"""The task of examples/llm_scheduler.py pays what the environment pays."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "llm_scheduler.py"))


def test_examples_are_fixed_by_their_number_and_pay_for_the_best_choice() -> None:
    task = EXAMPLE["Scheduler"](seed=0)
    examples = task.prompts(12, 0)
    assert examples[7:9] == task.prompts(2, 7) and len({example.prompt for example in examples}) > 6
    for example in examples:
        savings = example.record["savings"]
        assert task.reward(example, f" {example.answer}") == max(savings.values())
        assert task.reward(example, "x") == task.reward(example, "") == savings["-1"]
        assert all(f"\n{choice}: " in example.prompt for choice in savings if choice != "-1")
    second = next(example for example in examples if example.prompt.startswith("Job 2"))
    assert second.record["savings"] == {"0": 0.25, "1": 0.0, "2": -0.125, "-1": 0.0} and second.answer == "0"


def test_the_cheapest_choice_misses_the_best_placement() -> None:
    play = EXAMPLE["Decisions"]()
    play.begin(0)
    assert play.finish(play.cheapest) == -0.75
    play.begin(0, [0])
    assert play.finish(play.cheapest) == -0.5
