"""What users' dispatch policies see: `GroupView`, as docs/reference/api/policies.md has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policies.dispatch import make_dispatch
from rollmux_env.errors import PlanError
from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.view import GroupView, MemberView, WaitingPhase

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def group_of(*jobs: str) -> Dispatcher:
    dispatcher = Dispatcher(make_dispatch("fifo"))
    for k, job in enumerate(jobs):
        dispatcher.joined(job, (0,), 10, 5, sync_s=9.0 - k)
        dispatcher.ready(job, "rollout")
    return dispatcher


def test_every_name_of_the_page_is_there_and_cannot_be_set() -> None:
    text, view = (REFERENCE / "api" / "policies.md").read_text(encoding="utf-8"), group_of("a", "b").view
    for seen in (view, view.waiting[0], view.members[0]):
        section = text.split(f"## `{type(seen).__name__}`\n")[1].split("\n## ")[0]
        names = re.findall(r"^- `(\w+)`: (?!State of the engine)", section, re.M)
        assert len(names) >= 5
        for name in names:
            before = getattr(seen, name)
            with pytest.raises(AttributeError):
                setattr(seen, name, before)


def test_the_policy_of_the_page_decides() -> None:
    text = (REFERENCE / "dispatch.md").read_text(encoding="utf-8")
    code = text.split("## Writing a policy")[1].split("```python\n")[1].split("```")[0]
    made: dict[str, type] = {}
    exec(code, made)
    dispatcher = group_of("a", "b")
    dispatcher.policy = made["ShortestSync"]()
    assert dispatcher.permits() == [("b", "rollout")]


def test_a_view_goes_with_the_group() -> None:
    dispatcher = group_of("a", "b")
    a, b = dispatcher.view.members
    assert dispatcher.permits() == [("a", "rollout")]
    assert (a.rolls, b.rolls, dispatcher.view.busy) == ("rollout", None, 2)
    assert [(phase.member.job_id, phase.phase, phase.nodes, phase.number) for phase in dispatcher.view.waiting] == [
        ("b", "rollout", 2, 1)
    ]
    dispatcher.finished("a", "rollout", 7.0)
    assert (a.rollout.expected_s, b.rollout.expected_s, a.finished_s, a.last_served(2), b.last_served(2)) == (7.0, 10.0, 7.0, 1, 0)


def test_a_choice_of_another_group_is_refused() -> None:
    """One policy serves many groups: it may mix them up."""
    other = group_of("a")

    class Confused:
        def __init__(self, choice: WaitingPhase | MemberView) -> None:
            self.choice = choice

        def choose(self, group: GroupView) -> WaitingPhase | MemberView:
            return self.choice

    for choice in (other.view.waiting[0], other.view.members[0]):
        dispatcher = group_of("a")
        dispatcher.policy = Confused(choice)
        with pytest.raises(PlanError, match=r"D1: the dispatch policy chose .* of (another|the) group"):
            dispatcher.permits()
