"""The phase-time model beside every published phase time, sync time and figure of host memory.

python benchmarks/timing.py         # the table of docs/reference/timing.md
python benchmarks/timing.py --fit   # find the four factors again
"""

from __future__ import annotations

import sys

import numpy as np

from rollmux_env.report.tables import make_table, show
from rollmux_env.timing.calibration import ROLLMUX
from rollmux_env.timing.published import fit, rows


def main() -> None:
    published = rows()
    if "--fit" in sys.argv[1:]:
        print(fit(published))
        return
    table = make_table("", "published", "model", "error")
    errors: dict[tuple[str, bool], list[float]] = {}
    for row in published:
        predicted = row.predict(ROLLMUX)
        error = predicted / row.published - 1
        errors.setdefault((row.quantity, row.fitted), []).append(error)
        table.add_row(row.name, f"{row.published:g} {row.unit}", f"{predicted:.1f} {row.unit}", f"{100 * error:+.0f}%")
    show(table)
    summary = make_table("", "rows", "median of |error|", "largest")
    for (quantity, fitted), parts in errors.items():
        name = f"{quantity}, {'fitted to' if fitted else 'not fitted to'}"
        sizes = np.abs(parts)
        summary.add_row(name, f"{len(parts)}", f"{100 * np.median(sizes):.0f}%", f"{100 * sizes.max():.0f}%")
    show(summary)


if __name__ == "__main__":
    main()
