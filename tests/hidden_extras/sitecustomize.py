"""First on the path, it makes a Python in which the modules of all extras are not installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

OF_RUN = {"ray", "torch", "transformers", "tensorboard", "starlette", "uvicorn", "httptools", "prometheus_client"}
HIDDEN = OF_RUN | {"vllm", "stable_baselines3", "sb3_contrib", "trl"}
_find = PathFinder.find_spec


def _find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
    return None if name.partition(".")[0] in HIDDEN else _find(name, path, target)


PathFinder.find_spec = _find_spec  # type: ignore[method-assign,assignment]
