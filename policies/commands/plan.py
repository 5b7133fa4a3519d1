"""The command `rollmux plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from policies.commands.options import File, Format, PolicyName
from policies.commands.printed import Printed
from policies.registry import make_policy
from rollmux_env.bench.harness import OwnReplay
from rollmux_env.commands.options import Seed
from rollmux_env.errors import InputError
from rollmux_env.replay.admission import admit_all
from rollmux_env.report.compiling import announce_compiling
from rollmux_env.report.decision_tables import plan_tables
from rollmux_env.report.job_shapes import placed_shapes
from rollmux_env.report.results import plan_csv, plan_report
from rollmux_env.scenario import load_scenario
from rollmux_env.user_code import guarded, keep_stdout, seeded


def plan(
    file: File,
    policy: PolicyName = "rollmux",
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.table,
    seed: Seed = 0,
) -> None:
    """Place the jobs of a scenario in order of arrival, without departures, and say why the others are queued.

    Example: `rollmux plan examples/quickstart.yaml --policy rollmux`
    """
    keep_stdout()
    scenario = load_scenario(file)
    with seeded(seed):
        contender = make_policy(policy, seed)
        announce_compiling()
        if hasattr(contender, "admit_all"):
            admission = guarded(contender.admit_all)(scenario)
        elif isinstance(contender, OwnReplay):
            raise InputError(f"--policy {policy}: it makes no groups, so there is nothing to plan; `rollmux bench` runs it")
        else:
            admission = admit_all(scenario, contender)
    tables = [plan_tables(policy, admission), *placed_shapes(admission.decisions, scenario.jobs)]
    Printed(plan_report(policy, admission), tables, plan_csv(admission.decisions)).show(format)
