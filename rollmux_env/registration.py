"""Registers our environments with Gymnasium, without importing it.

`import rollmux_env` is to be enough for `gymnasium.make("RollMux/Placement-v0")`, and the `rollmux` command, which imports the
package too, is to start without NumPy. So the ids are registered at once where Gymnasium is imported, and else as soon as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ENVIRONMENTS = {
    "RollMux/Placement-v0": ("rollmux_env.envs.placement.env:PlacementEnv", "rollmux_env.envs.placement.env:PlacementVectorEnv"),
    "RollMux/Dispatch-v0": ("rollmux_env.envs.dispatch.env:DispatchEnv", "rollmux_env.envs.dispatch.env:DispatchVectorEnv"),
    "RollMux/Rollout-v0": ("rollmux_env.envs.rollout.env:RolloutEnv", "rollmux_env.envs.rollout.env:RolloutVectorEnv"),
}
"""By id: the environment of one stream, and the natively vectorised one."""

_REGISTRY = "gymnasium.envs.registration"


def register_environments() -> None:
    """Register with Gymnasium now, or when it is imported. Nothing of the environments is imported before one is made."""
    if _REGISTRY in sys.modules:
        _register(sys.modules[_REGISTRY])
    else:
        sys.meta_path.insert(0, _Awaited())


def _register(registration: ModuleType) -> None:
    for name, (single, vector) in ENVIRONMENTS.items():
        registration.register(id=name, entry_point=single, vector_entry_point=vector)


class _Awaited(MetaPathFinder):
    """Finds Gymnasium's registry where the other finders do, and has our ids registered when it has been executed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The registry's spec; None for any other module."""
        if fullname != _REGISTRY:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((located for finder in others if (located := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                _register(module)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
