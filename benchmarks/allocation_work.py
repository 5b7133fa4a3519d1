"""Gains of `hex` at the budget of AReaL-Hex's Figure 2 for other work than that of the suite `areal-hex`.

The question is whether any work gives the six bars of the figure. `python benchmarks/allocation_work.py` prints the throughput of
24 H800 and 24 H20 over that of H800 alone and of H20 alone for the same dollars, by the number of responses of an iteration and
their mean length. It takes a minute.
"""

from __future__ import annotations

from itertools import product

from policies.allocation import make_allocator
from rollmux_env.bench.suites.areal_hex import H20_BUDGET, H800_BUDGET, MIXED_BUDGET, SIZES
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.work import IterationWork

RESPONSES = (1024, 8192)
TOKENS = (2048, 4096, 8192, 16384, 24000)


def main() -> None:
    """Print a line for each kind of work."""
    hex_, exhaustive = make_allocator("hex"), make_allocator("exhaustive")
    print("responses  tokens  cache   " + "   ".join(f"{size:>5} over H800, H20" for size in SIZES))
    for responses, tokens, cache in product(RESPONSES, TOKENS, (False, True)):
        cells = []
        for size in SIZES:
            work = IterationWork(SHAPES[size], responses, response_tokens=tokens, reads_cache=cache)
            least_s = hex_(work, MIXED_BUDGET).iteration_s
            over_h800, over_h20 = (exhaustive(work, budget).iteration_s / least_s for budget in (H800_BUDGET, H20_BUDGET))
            cells.append(f"{over_h800:>15.2f}x {over_h20:.2f}x")
        print(f"{responses:>9,}  {tokens:>6,}  {'read' if cache else '   -'}  " + "   ".join(cells))


if __name__ == "__main__":
    main()
