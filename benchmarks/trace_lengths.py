"""Response lengths of the jobs in a scenario file that replay observed ones, and how similar the lengths for one prompt are.

python benchmarks/trace_lengths.py polytrace.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy.stats import norm, rankdata

from rollmux_env.kernel.tables import Floats
from rollmux_env.report.tables import make_table, show
from rollmux_env.scenario import load_scenario


def alike(lengths: Floats) -> float:
    """Return the correlation of the normal scores of the lengths of two responses to the same prompt.

    Args:
        lengths: Lengths of responses, of shape (prompts, responses).
    """
    scores = norm.ppf(rankdata(lengths).reshape(lengths.shape) / (lengths.size + 1))
    each = lengths.shape[1]
    pairs = (scores.sum(axis=1) ** 2 - (scores**2).sum(axis=1)).sum() / (each - 1)
    return float(pairs / (scores**2).sum())


def main() -> None:
    """Print a line for each job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path)
    table = make_table("job", "responses", "median", "90%", "longest", "at the longest", "alike")
    for job in load_scenario(parser.parse_args().scenario).jobs:
        if job.lengths is None or job.lengths.observed is None:
            continue
        lengths = np.array(job.lengths.observed, dtype=np.float64)
        tokens = [f"{value:,.0f}" for value in (*np.quantile(lengths, (0.5, 0.9)), lengths.max())]
        at_the_longest = (lengths == lengths.max()).mean()
        table.add_row(job.id, f"{lengths.size:,}", *tokens, f"{at_the_longest:.0%}", f"{alike(lengths):.2f}")
    show(table)


if __name__ == "__main__":
    main()
