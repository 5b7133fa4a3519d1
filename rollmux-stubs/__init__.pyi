"""Types of `import rollmux` for type checkers: a single module cannot carry `py.typed`, and its names are imported when used."""

from policies.experiments import bench as bench
from policies.experiments import replay as replay
from policies.sweeps import sweep as sweep
from rollmux_env.errors import InputError as InputError
from rollmux_env.errors import PlanError as PlanError
from rollmux_env.keys.job import Job as Job
from rollmux_env.report.bench_results import BenchResult as BenchResult
from rollmux_env.report.bench_results import RunResult as RunResult
from rollmux_env.report.bench_results import SweepResult as SweepResult
from rollmux_env.scenario import Scenario as Scenario
from rollmux_env.scenario import load_scenario as load_scenario
from runtime.phases import phase as phase
from runtime.phases import runtime_hook as runtime_hook
from trainers.export import export_policy as export_policy

def main() -> None: ...
