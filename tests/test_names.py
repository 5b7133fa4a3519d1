"""Names that needed a phrasebook are gone, and do not come back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("rollmux_env", "policies", "runtime", "trainers", "clients", "benchmarks", "examples")
PARTICIPLES = {"seen", "told", "found", "kept", "held", "given"}  # of what? a noun says it
REMOVED = {
    "complaint", "complain", "misfit", "presses", "heard", "undisturbed", "looks", "luck", "uncounted", "insides", "pass_on",
    "stir", "standing", "attending", "lockstep", "Desk", "Space", "Room", "Buffers", "Gate", "Gang", "Runner", "Inside", "Both",
    "Teller", "saw", "went", "sit", "stand", "foretell", "foresee", "speak_for", "excuse", "forgive", "hurry", "thanks", "sign_s",
    "meeting", "Bell", "Voice", "Follows", "Landed", "Rolled", "wear", "visit", "go", "go_on", "set_out", "look_for_moves",
    "dearness",
}  # fmt: skip
ALLOWED = {
    ("runtime/doctor.py", "found"),  # a key of the JSON that `rollmux doctor` prints
    ("runtime/service/service.py", "told"),  # `rollmux serve` of another version calls it by this name
}


def defined(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name that a module gives to something, and where; keys of data on disk and names that are imported are no such."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


@pytest.mark.parametrize("package", PACKAGES)
def test_removed_names_stay_away(package: str) -> None:
    unwelcome = [
        f"{path}:{line}: {name}"
        for path in (file.relative_to(ROOT) for file in sorted((ROOT / package).rglob("*.py")))
        for name, line in defined(ast.parse((ROOT / path).read_text()))
        if name.strip("_") in REMOVED | PARTICIPLES and (path.as_posix(), name) not in ALLOWED
    ]
    assert unwelcome == []


def test_no_module_is_named_so() -> None:
    assert [path.stem for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.stem in REMOVED] == []


def test_a_name_would_be_noticed() -> None:
    assert {name for name, _ in defined(ast.parse("def f(seen):\n    self.luck = told = 1\nclass Gate: ...\n"))} >= {
        "seen",
        "luck",
        "told",
        "Gate",
    }
