from __future__ import annotations

from typing import Any

from rollmux_env.kernel.compiled import compiled


def test_code_that_cannot_be_kept_on_disk_runs_all_the_same() -> None:
    """Of a function without a file, as of one in a folder that nobody may write, numba can keep nothing."""
    made: dict[str, Any] = {}
    exec("def double(x):\n    return 2 * x", made)
    assert compiled(made["double"])(21) == 42
