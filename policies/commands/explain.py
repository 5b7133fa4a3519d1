"""The command `rollmux explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from policies.commands.options import File, PolicyName, TableOrJson
from policies.commands.printed import Printed
from policies.registry import make_runnable
from rollmux_env.commands.options import Seed
from rollmux_env.replay.explain import explain as explain_decision
from rollmux_env.report.compiling import announce_compiling
from rollmux_env.report.decision_tables import alternatives_table
from rollmux_env.report.job_shapes import shapes_of_job
from rollmux_env.scenario import load_scenario
from rollmux_env.user_code import keep_stdout, seeded


def explain(
    file: File,
    job: Annotated[str, typer.Option("--job", "-j", metavar="ID", help="Job whose placement to explain.")],
    policy: PolicyName = "rollmux",
    format: Annotated[TableOrJson, typer.Option("--format", help="Output format.")] = TableOrJson.table,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Maximum rows of the table.")] = 40,
    seed: Seed = 0,
) -> None:
    """Explain a placement: list every alternative of one decision.

    Example: `rollmux explain examples/quickstart.yaml --policy rollmux --job code-7b`
    """
    keep_stdout()
    scenario = load_scenario(file)
    with seeded(seed):
        contender = make_runnable(policy, seed)
        announce_compiling()
        report = {"policy": policy, **explain_decision(scenario, contender, job)}
    shapes = shapes_of_job(next(one for one in scenario.jobs if one.id == job))
    Printed(report, [alternatives_table(report, rows), *shapes]).show(format)
