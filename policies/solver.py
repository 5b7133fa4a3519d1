"""A HiGHS solver that prints nothing and returns the same solution everywhere."""

from __future__ import annotations

import highspy


class _Silent(highspy.Highs):
    def enableCallbacks(self) -> None:
        """Enable callbacks. HiGHS 1.16 prints its version here, which is called before the options of a solver can be set."""
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def make_solver() -> highspy.Highs:
    """Create a solver that is silent and uses one thread."""
    highspy.Highs.resetGlobalScheduler(True)  # other code may have started the scheduler with more threads
    solver = _Silent()  # type: ignore[no-untyped-call]
    for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        solver.setOptionValue(name, value)
    return solver
