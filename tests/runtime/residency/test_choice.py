"""The cheapest way of waiting that leaves room for the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.residency.choice import Level, cheapest

STAY, KEEP, DROP = Level("stay", 0.0, 60), Level("keep", 3.0, 2), Level("drop", 1.5, 2)


@pytest.mark.parametrize(
    ("levels", "needed", "best"),
    [
        ([STAY, KEEP, DROP], 20, STAY),
        ([STAY, KEEP, DROP], 21, DROP),
        ([STAY, KEEP], 21, KEEP),
        ([STAY, KEEP, DROP], 79, None),
        ([KEEP, replace(KEEP, name="less", device_bytes=1)], 78, replace(KEEP, name="less", device_bytes=1)),
        ([], 0, None),
    ],
)
def test_the_quickest_that_fits_is_taken(levels: list[Level], needed: int, best: Level | None) -> None:
    assert cheapest(levels, 80, needed) == best
