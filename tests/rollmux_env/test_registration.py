"""`import rollmux_env` is enough for `gymnasium.make`, in any order of imports, and costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"numpy", "gymnasium", "numba", "pydantic", "matplotlib", "scipy"}
KNOWN = "print([name in gymnasium.registry for name in ('RollMux/Placement-v0', 'RollMux/Dispatch-v0')])"
LIGHT = "import sys; print([name for name in ('numba', 'rollmux_env.envs') if name in sys.modules])"


def printed(code: str) -> list[str]:
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_the_import_is_light() -> None:
    assert printed(f"import sys, rollmux_env; print({HEAVY!r} & set(sys.modules))") == ["set()"]


@pytest.mark.parametrize(
    "imports",
    [
        "import gymnasium, rollmux_env",
        "import rollmux_env, gymnasium",
        "import rollmux_env, importlib.util; importlib.util.find_spec('gymnasium.envs.registration'); import gymnasium",
    ],
)
def test_the_import_registers_and_compiles_nothing(imports: str) -> None:
    assert printed(f"{imports}\n{KNOWN}\n{LIGHT}") == ["[True, True]", "[]"]


def test_a_module_before_the_name_is_as_good() -> None:
    names = ("rollmux_env.envs:RollMux/Placement-v0", "rollmux_env:RollMux/Dispatch-v0")
    code = "import gymnasium\n" + "\n".join(f"print(gymnasium.make({name!r}).spec.id)" for name in names)
    assert printed(code) == ["RollMux/Placement-v0", "RollMux/Dispatch-v0"]


def test_the_registry_keeps_its_own_loader() -> None:
    code = "import rollmux_env, gymnasium.envs.registration as r, inspect, sys\n"
    code += "print(r.__loader__ is r.__spec__.loader, type(r.__loader__).__name__, 'def register' in inspect.getsource(r))\n"
    code += "print([finder for finder in sys.meta_path if type(finder).__module__ == 'rollmux_env.registration'])"
    assert printed(code) == ["True SourceFileLoader True", "[]"]
