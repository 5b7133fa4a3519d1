"""The ways in which RollMux says no, and which optional part of it brings what is not installed."""

from __future__ import annotations

from importlib.util import find_spec

DEBUG = "ROLLMUX_DEBUG"  # in the environment: tracebacks are printed too
EXTRAS = {
    "run": ("ray", "torch", "transformers", "tensorboard", "starlette", "uvicorn", "httptools", "prometheus_client"),
    "serve": ("starlette", "uvicorn", "httptools", "prometheus_client"),
    "train": ("torch", "stable_baselines3", "sb3_contrib", "tensorboard"),
    "vllm": ("vllm",),
    "math": ("math_verify",),
}
"""Modules that each extra of `pip install 'rollmux[EXTRA]'` brings."""


class InputError(ValueError):
    """What the user gave cannot be used. One line; the command prints it and exits with status 2.

    Attributes:
        status: by which a service answers it over HTTP.
    """

    status = 400


class NotAllowed(InputError):
    """The holder of this token may not. One line."""

    status = 403


class NotFound(InputError):
    """There is no such job, lease or node. One line."""

    status = 404


class Conflict(InputError):
    """It is not possible in the state that things are in now. One line."""

    status = 409


class Unprocessable(InputError):
    """A job that cannot be. One line."""

    status = 422


class TooMany(InputError):
    """Above a limit. One line."""

    status = 429


class Stopping(InputError):
    """The service stops; the next one takes it. One line."""

    status = 503


class PlanError(RuntimeError):
    """A policy raised an exception, or what it returned breaks a numbered invariant (see `rollmux_env.cluster.plan`). One line."""


class InvariantError(AssertionError):
    """A replay or a run broke a numbered invariant: a defect of RollMux, not of its input."""


def require(extra: str, what: str) -> None:
    """See that an extra is installed, without importing it.

    Args:
        extra: a key of `EXTRAS`. what: it is needed for, as `run`.

    Raises:
        InputError: it is not; one line that says how to install it.
    """
    lacking = [name for name in EXTRAS[extra] if not _is_there(name)]
    if lacking:
        raise InputError(f"{what}: needs {', '.join(lacking)}; not installed here: pip install 'rollmux[{extra}]'")


def lacks(module: str) -> str:
    """That a module is not installed, and which extras bring it, if any does."""
    extras = [extra for extra, modules in EXTRAS.items() if module.partition(".")[0] in modules]
    how = " or ".join(f"pip install 'rollmux[{extra}]'" for extra in extras)
    return f"needs the module '{module}', which is not installed" + (f": {how}" if how else "")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
