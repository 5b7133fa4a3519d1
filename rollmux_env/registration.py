"""Registration of the environments with Gymnasium, without importing it.

After `import rollmux_env`, `gymnasium.make("RollMux/Placement-v0")` works, but the `rollmux` command, which imports the package
too, has to start without NumPy. The ids are therefore registered at once if Gymnasium is imported, and otherwise when it is.
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
    "RollMux/Queue-v0": ("rollmux_env.envs.queue.env:QueueEnv", "rollmux_env.envs.queue.env:QueueVectorEnv"),
}
"""Entry points by id: the environment of one stream, and the natively vectorised one."""

_REGISTRY = "gymnasium.envs.registration"


def register_environments() -> None:
    """Register with Gymnasium now, or when it is imported. No environment is imported before one is made."""
    if _REGISTRY in sys.modules:
        _register(sys.modules[_REGISTRY])
    else:
        sys.meta_path.insert(0, _Awaited())


def _register(registration: ModuleType) -> None:
    for name, (single, vector) in ENVIRONMENTS.items():
        registration.register(id=name, entry_point=single, vector_entry_point=vector)


class _Awaited(MetaPathFinder):
    """Import hook that registers our ids when Gymnasium's registry is imported."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the registry, or None for any other module."""
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
