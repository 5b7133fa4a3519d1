"""Allocators divide the GPUs of a budget between the training and the rollouts of one asynchronous job.

An allocator is a function of the work and the budget. It is handed to the suite `areal-hex` and to `rollmux allocate` by name.
"""

from __future__ import annotations

from collections.abc import Callable

from policies.allocation.hex import hex_search
from policies.allocation.yardsticks import exhaustive, uniform
from rollmux_env.allocation.allocation import Allocation, GpuBudget
from rollmux_env.errors import InputError
from rollmux_env.timing.work import IterationWork
from rollmux_env.validation_errors import not_one_of

Allocator = Callable[[IterationWork, GpuBudget], Allocation]
"""A function of the work of an iteration and a budget. It raises an InputError if the budget holds no plan."""

ALLOCATION: dict[str, Allocator] = {"uniform": uniform, "hex": hex_search, "exhaustive": exhaustive}


def make_allocator(name: str) -> Allocator:
    """Return the allocator of a name in `ALLOCATION`.

    Raises:
        InputError: The name is unknown.
    """
    if name not in ALLOCATION:
        raise InputError(f"--allocator: {not_one_of(name, ALLOCATION)}")
    return ALLOCATION[name]
