"""The ways in which RollMux says no."""

from __future__ import annotations

DEBUG = "ROLLMUX_DEBUG"  # in the environment: tracebacks are printed too


class InputError(ValueError):
    """What the user gave cannot be used. One line; the command prints it and exits with status 2."""


class PlanError(RuntimeError):
    """A policy raised an exception, or what it returned breaks a numbered invariant (see `rollmux_env.cluster.plan`). One line."""


class InvariantError(AssertionError):
    """A replay or a run broke a numbered invariant: a defect of RollMux, not of its input."""
