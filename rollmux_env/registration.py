"""Registers our environments with Gymnasium, without importing it.

`import rollmux_env` is to be enough for `gymnasium.make("RollMux/Placement-v0")`, and the `rollmux` command, which imports the
package too, is to start without NumPy. So the ids are registered at once where Gymnasium is imported, and else as soon as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
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
            spec.loader = _Registering(spec.loader, self)
        return spec


class _Registering(Loader):
    """The registry's own loader, and our ids once it is done."""

    def __init__(self, loader: Loader, finder: _Awaited) -> None:
        self.loader = loader
        self.finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See `Loader`."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """See `Loader`. The module keeps its own loader, for tracebacks and `inspect`."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        sys.meta_path.remove(self.finder)
        _register(module)
