"""`fidelity`: the phase-time model against phase seconds that others have published."""

from __future__ import annotations

from rollmux_env.bench.fidelity import COLUMNS, SECONDS
from rollmux_env.bench.suite import Suite
from rollmux_env.bench.tables import nemo_rl, rollmux, verl

TABLES = (verl.TABLE, nemo_rl.TABLE, rollmux.ROLLPACKER, rollmux.ROLLMUX)

SUITE = Suite(
    name="fidelity",
    title="Phase-time model beside every published figure, as it is and times one constant a machine",
    source=", ".join(table.name for table in TABLES),
    cases=(),
    columns=COLUMNS,
    paper={
        (table.name, f"{row.name}: {phase}", SECONDS): seconds
        for table in TABLES
        for row in table.rows
        for phase, seconds in row.seconds.items()
    },
    differences=(
        *(f"{table.name} is from {table.source}." for table in TABLES),
        *(f"{table.name}, not covered: {part.number} {part.which} ({part.why})." for table in TABLES for part in table.not_covered),
        *(f"{table.name}: {line}" for table in TABLES for line in table.assumed),
        "Errors that others print of their own simulators, on their own clusters: 2 to 6% (Charon, Frontier), 5% (RLSim).",
    ),
    seeds=1,
)
