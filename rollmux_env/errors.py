"""The errors that RollMux raises, and the optional extras that provide missing modules.

The message of an `InputError` or a `PlanError` is a single line.
"""

from __future__ import annotations

from importlib.util import find_spec

DEBUG = "ROLLMUX_DEBUG"  # environment variable with which commands also print tracebacks
EXTRAS = {
    "run": ("ray", "torch", "transformers", "tensorboard", "starlette", "uvicorn", "httptools", "prometheus_client"),
    "serve": ("starlette", "uvicorn", "httptools", "prometheus_client"),
    "train": ("torch", "stable_baselines3", "sb3_contrib", "tensorboard"),
    "vllm": ("vllm",),
    "math": ("math_verify",),
    "mcp": ("mcp",),
    "openenv": ("openenv",),
}
"""Modules that each extra of `pip install 'rollmux[EXTRA]'` installs."""


class InputError(ValueError):
    """Invalid input of the user. The command prints the message and exits.

    Attributes:
        status: HTTP status with which a service responds.
        exit_status: Exit status of the command.
    """

    status, exit_status = 400, 2


class NotAllowed(InputError):
    """The holder of a token lacks the permission."""

    status = 403


class NotFound(InputError):
    """A job, lease or node does not exist."""

    status = 404


class Conflict(InputError):
    """A request is not possible in the current state."""

    status = 409


class Unprocessable(InputError):
    """A job is well-formed but impossible."""

    status = 422


class TooMany(InputError):
    """A limit is exceeded."""

    status = 429


class Stopping(InputError):
    """The service is stopping; its successor will handle the request."""

    status = 503


class PlanError(RuntimeError):
    """Error in a user's code: a policy or another function raised an exception, or a policy's answer breaks an invariant.

    The message of a broken invariant starts with its number, such as P6 (see `rollmux_env.cluster.plan`).
    """


class InvariantError(AssertionError):
    """A replay or a run broke a numbered invariant: a defect of RollMux, not of its input."""


def require(extra: str, what: str) -> None:
    """Check that an extra is installed, without importing it.

    Args:
        extra: Key of `EXTRAS`.
        what: Name of what needs it, such as `run`, for the message.

    Raises:
        InputError: If it is not installed. The message says how to install it.
    """
    lacking = [name for name in EXTRAS[extra] if not _is_there(name)]
    if lacking:
        raise InputError(f"{what}: needs {', '.join(lacking)}; not installed here: pip install 'rollmux[{extra}]'")


def lacks(module: str) -> str:
    """Return the message that a module is not installed, with the extras that provide it."""
    extras = [extra for extra, modules in EXTRAS.items() if module.partition(".")[0] in modules]
    how = " or ".join(f"pip install 'rollmux[{extra}]'" for extra in extras)
    return f"needs the module '{module}', which is not installed" + (f": {how}" if how else "")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
