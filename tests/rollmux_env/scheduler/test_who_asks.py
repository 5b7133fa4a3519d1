"""Only the scheduler asks policies, so that replays and real runs decide alike. A policy that is asked may pass the question on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("rollmux_env", "policies", "trainers", "runtime")
QUESTIONS = ("decide", "choose")
NO_POLICIES = ("player",)  # `trainers.recipes.lookahead.Player` chooses actions of an environment
OTHERS = {"trainers/recipes/teachers.py": ["decide"]}  # a pupil that is asked hears what its teacher would say


def questions(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the methods of policies that are called, or `guarded` to be called, outside of a method of the same name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            is_guarded = isinstance(node.func, ast.Name) and node.func.id == "guarded"
            called = node.args[0] if is_guarded else node.func
            if isinstance(called, ast.Attribute) and called.attr in QUESTIONS:
                receiver = ast.unparse(called.value)
                if called.attr not in inside and receiver not in NO_POLICIES:
                    yield called.attr
        name = (node.name,) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ()
        yield from questions(node, inside + name)


def test_only_the_scheduler_asks_policies() -> None:
    asks = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text()
            if any(name in text for name in QUESTIONS) and (found := [*questions(ast.parse(text))]):
                asks[path.relative_to(ROOT).as_posix()] = found
    scheduler = {path for path in asks if path.startswith("rollmux_env/scheduler/")}
    assert {name for path in scheduler for name in asks[path]} == {*QUESTIONS}
    assert {path: names for path, names in asks.items() if path not in scheduler} == OTHERS


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def bench(policy): policy.decide(state, event)", ["decide"]),
        ("class Run:\n  def go(self): return [self.policies[0].choose(group) for group in self.groups]", ["choose"]),
        ("def ask(policy): return guarded(policy.decide)(state, event)", ["decide"]),
        ("class Both:\n  def decide(self, state, event): return self.policy.decide(state, event)", []),
        ("class Both:\n  def choose(self, group): self.policy.decide(state, event)", ["decide"]),
    ],
)
def test_a_module_that_asks_is_found(source: str, names: list[str]) -> None:
    assert [*questions(ast.parse(source))] == names
