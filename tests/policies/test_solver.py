"""The solver of policies prints nothing."""

from __future__ import annotations

import highspy
import pytest

from policies.solver import make_solver


def test_a_solver_is_silent_before_callbacks_are_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS 1.16 prints its version when `Highs.__init__` enables callbacks."""
    silent = []
    monkeypatch.setattr(highspy.Highs, "enableCallbacks", lambda solver: silent.append(not solver.getOptionValue("output_flag")[1]))
    make_solver()
    assert silent == [True]
