"""Comparison of policies on a stream, for `rollmux bench`."""

from __future__ import annotations

from typing import Any

from policies.commands.bench_options import BenchOptions
from policies.commands.printed import Printed
from policies.experiments import bench
from policies.sweeps import parse_sweep, sweep
from rollmux_env.command_options import parse_pairs
from rollmux_env.report.bench_results import BenchResult, SweepResult
from rollmux_env.report.benches import RESULTS, tables_of, write_bench
from rollmux_env.report.folder import results_folder
from rollmux_env.report.look import Look, drawn_as, parse_labels
from rollmux_env.report.progress import tracked
from rollmux_env.report.results import rows_csv
from rollmux_env.user_code import keep_stdout

_PASSED_ON = ("baseline", "fleet", "workers", "limit_s", "dispatch", "rollout_policy", "failures", "check", "most_phases", "bound")


def compare_policies(options: BenchOptions) -> Printed:
    """Replay a stream under every policy, once or at every value of the swept keys.

    Raises:
        InputError: An option is not valid.
        PlanError: A policy broke an invariant, or a workload of the user raised an exception.
    """
    keep_stdout()
    target: Any = options.target
    seeds = None if options.seeds is None and options.seed == 0 else range(options.seed, options.seed + (options.seeds or 1))
    asked: dict[str, Any] = {
        "policies": options.policy or ("solo", "rollmux"),
        "seeds": seeds,
        "settings": dict(parse_pairs("--set", options.settings or [])),
        "run": tracked,
        "fidelity": options.fidelity and options.fidelity.value,
        **{name: getattr(options, name) for name in _PASSED_ON},
    }
    benched: BenchResult | SweepResult
    look = Look(options.width_in, parse_labels(options.label or ()))
    with drawn_as(look), results_folder(options.out, RESULTS, options.overwrite):
        benched = sweep(target, parse_sweep(options.sweep), **asked) if options.sweep else bench(target, **asked)
        if options.out:
            write_bench(options.out, benched, options.plots.value)
    return Printed(benched.as_dict(), tables_of(benched), rows_csv(benched.rows()))
