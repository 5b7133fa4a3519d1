"""The cheapest way of waiting that leaves room for the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.residency.choice import NodeMemory, OffloadLevel, OffloadLevels, PhaseOnNodes, cheapest, choose, fits

STAY, KEEP, DROP = OffloadLevel("stay", 0.0, 60), OffloadLevel("keep", 3.0, 2), OffloadLevel("drop", 1.5, 2)


@pytest.mark.parametrize(
    ("levels", "needed", "best"),
    [
        ([STAY, KEEP, DROP], 20, STAY),
        ([STAY, KEEP, DROP], 21, DROP),
        ([STAY, KEEP], 21, KEEP),
        ([STAY, KEEP, DROP], 79, None),
        ([KEEP, replace(KEEP, name="less", device_gb=1)], 78, replace(KEEP, name="less", device_gb=1)),
        ([], 0, None),
    ],
)
def test_the_quickest_that_fits_is_taken(levels: list[OffloadLevel], needed: int, best: OffloadLevel | None) -> None:
    assert cheapest(levels, 80, needed) == best


def place(nodes: str, stay_gb: float, keep_gb: float, saves_s: float, peak_gb: float = 0.0) -> PhaseOnNodes:
    """A phase of a job on GPUs of 80 GB if it has a peak, else on CPU nodes; what it takes is device memory there."""
    gpu = peak_gb > 0
    stay, keep = ((gb, 0.0) if gpu else (0.0, gb) for gb in (stay_gb, keep_gb))
    levels = (OffloadLevel("stay", 0.0, *stay), OffloadLevel("keep", saves_s, *keep))
    return PhaseOnNodes(OffloadLevels(levels, peak_gb, 80.0 if gpu else 0.0), tuple(nodes), gpu)


def rooms(strangers_gb: float = 0.0, **host_gb: float | None) -> dict[str, NodeMemory]:
    return {name: NodeMemory(host_gb.get(name), strangers_gb) for name in "ab"}


def names(places: list[PhaseOnNodes], strangers_gb: float = 0.0, **host_gb: float | None) -> str:
    levels = choose(places, rooms(strangers_gb, **host_gb))
    assert fits(places, levels, rooms(strangers_gb, **host_gb))
    return " ".join(level.name for level in levels)


def test_those_stay_whom_it_saves_most_as_long_as_every_node_has_room() -> None:
    two = [place("a", 4, 1, 2.0), place("a", 4, 1, 3.0)]
    assert names(two, a=8) == names(two, a=None) == "stay stay"
    assert names(two, a=7.9) == "keep stay"
    assert names(two, a=4.9) == "keep keep"
    assert names([place("a", 4, 1, 2.0), place("ab", 4, 1, 2.0), place("b", 4, 1, 2.0)], a=8, b=5) == "stay stay keep"
    assert names([place("a", 1, 1, 0.0)]) == "keep"  # which takes as long


def test_on_a_gpu_each_of_them_has_to_run_while_the_others_wait() -> None:
    assert names([place("a", 30, 1, 2.0, 40), place("a", 30, 1, 3.0, 40)]) == "stay stay"
    assert names([place("a", 30, 1, 2.0, 50), place("a", 30, 1, 3.0, 40)]) == "stay keep"  # the first has no room beside 30
    assert names([place("a", 60, 1, 2.0, 60), place("a", 60, 1, 3.0, 60)]) == "keep keep"
    two = [place("a", 30, 1, 2.0, 40), place("a", 30, 1, 3.0, 40)]
    assert names(two, strangers_gb=9) == "stay stay" and names(two, strangers_gb=10) == "keep keep"  # 30 + 40 of 80 GB
    unknown = PhaseOnNodes(OffloadLevels((OffloadLevel("keep", 0.0, 0.0),)), ("a",), True)
    assert not fits([place("a", 30, 1, 2.0, 40), unknown], [unknown.offload.least] * 2, rooms())  # so nobody stays beside it
    assert [level.name for level in choose([place("a", 30, 1, 2.0, 40), unknown], rooms())] == ["keep", "keep"]
    own = PhaseOnNodes(OffloadLevels((STAY, KEEP)), ("a",), True)  # a job's class may tell neither its peak nor the GPU's memory
    assert [level.name for level in choose([own, own], rooms())] == ["keep", "keep"]
    assert choose([own], rooms()) == [STAY]
