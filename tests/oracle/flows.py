"""Max-min fair rates and ends of flows, by their definition in exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def fair_rates(paths: Sequence[Sequence[int]], capacity: Sequence[int | Fraction]) -> list[Fraction]:
    """Rates of flows, each over at least one link: all grow together, and a flow stops when one of its links is full."""
    rates = [Fraction(0)] * len(paths)
    growing = set(range(len(paths)))
    while growing:
        spare = [room - sum(rates[f] for f, path in enumerate(paths) if link in path) for link, room in enumerate(capacity)]
        users = [sum(link in paths[f] for f in growing) for link in range(len(capacity))]
        more: Fraction = min(Fraction(left) / count for left, count in zip(spare, users, strict=True) if count)
        full = {link for link, (left, count) in enumerate(zip(spare, users, strict=True)) if count and left == more * count}
        for f in growing:
            rates[f] += more
        growing = {f for f in growing if not full & set(paths[f])}
    return rates


def completion_s(paths: Sequence[Sequence[int]], gb: Sequence[int], capacity: Sequence[int | Fraction]) -> list[Fraction]:
    """Seconds until each flow ends; all begin at 0, and whenever one ends the rest share anew."""
    left = [Fraction(size) for size in gb]
    ends = [Fraction(0)] * len(paths)
    now = Fraction(0)
    while there := [f for f in range(len(paths)) if left[f]]:
        rates = fair_rates([paths[f] for f in there], capacity)
        step = min(left[f] / rate for f, rate in zip(there, rates, strict=True))
        now += step
        for f, rate in zip(there, rates, strict=True):
            left[f] -= step * rate
            if not left[f]:
                ends[f] = now
    return ends
