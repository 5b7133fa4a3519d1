"""The ways in which RollMux says no."""

from __future__ import annotations


class InputError(ValueError):
    """What the user gave cannot be used. One line; the command prints it and exits with status 2."""


class PlanError(RuntimeError):
    """A policy returned a plan that breaks a numbered invariant (see `rollmux_env.cluster.plan`)."""


class InvariantError(AssertionError):
    """A replay or a run broke a numbered invariant: a defect of RollMux, not of its input."""
