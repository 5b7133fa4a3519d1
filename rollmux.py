"""RollMux: co-execution groups of RL post-training jobs over a rollout pool and a training pool.

This module has the names that a user imports, and the `rollmux` command, which consists of the commands of the packages
`rollmux_env`, `policies`, `trainers` and `runtime`.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
import traceback
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

    from policies.experiments import bench, replay
    from policies.sweeps import sweep
    from rollmux_env.errors import InputError, PlanError
    from rollmux_env.keys.job import Job
    from rollmux_env.report.bench_results import BenchResult, RunResult, SweepResult
    from rollmux_env.scenario import Scenario, load_scenario
    from runtime.phases import phase, runtime_hook
    from trainers.export import export_policy

__all__ = [
    "BenchResult",
    "InputError",
    "Job",
    "PlanError",
    "RunResult",
    "Scenario",
    "SweepResult",
    "bench",
    "export_policy",
    "load_scenario",
    "main",
    "phase",
    "replay",
    "runtime_hook",
    "sweep",
]

_HOME = {
    "BenchResult": "rollmux_env.report.bench_results",
    "RunResult": "rollmux_env.report.bench_results",
    "SweepResult": "rollmux_env.report.bench_results",
    "bench": "policies.experiments",
    "export_policy": "trainers.export",
    "replay": "policies.experiments",
    "sweep": "policies.sweeps",
    "InputError": "rollmux_env.errors",
    "PlanError": "rollmux_env.errors",
    "Job": "rollmux_env.keys.job",
    "Scenario": "rollmux_env.scenario",
    "load_scenario": "rollmux_env.scenario",
    "phase": "runtime.phases",
    "runtime_hook": "runtime.phases",
}
_COMMANDS = {  # modules of the commands, by heading of the help
    "Scenario files": {name: "rollmux_env.commands." + name for name in ("validate", "schema", "workload", "examples")},
    "Schedule": {name: "policies.commands." + name for name in ("plan", "bench", "explain", "trace", "shapes", "allocate")}
    | {"whatif": "runtime.commands.whatif"},
    "Learn": {"train": "trainers.commands.train", "openenv": "rollmux_env.commands.openenv"},
    "Run": {name: "runtime.commands." + name for name in ("run", "compare", "serve", "submit", "status", "cancel", "logs")}
    | dict.fromkeys(("drain", "undrain", "clear"), "runtime.commands.nodes")
    | {name: "runtime.commands." + name for name in ("samples", "export", "bundle", "profile", "doctor")}
    | {name: "runtime.commands." + name for name in ("exec", "journal", "token", "quota", "usage", "webhook", "mcp")},
}
_LONGEST = 4900  # largest number of characters of an error message, which may quote a long path
_PACKAGES = ("rollmux_env", "policies", "trainers", "runtime")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command starts fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'rollmux' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Return the public names, whether or not they have been imported yet, for `help` and for completion."""
    return sorted({*globals(), *__all__})


def foreign_package() -> str | None:
    """Return a line about a package of RollMux that Python finds in another folder, or None if it finds all in their places.

    The packages have plain names, so a `policies/` in the user's folder hides RollMux's if that folder comes first on the path.
    """
    ours = Path(__file__).resolve().parent
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if found != ours / name:
            places = [*spec.submodule_search_locations] if spec and spec.submodule_search_locations else []
            where = found or (places[0] if places else "nowhere")
            return f"the package '{name}' is found in {where}, not in {ours}: run the `rollmux` command, or rename that folder"
    return None


def main() -> None:
    """Run the `rollmux` command, and exit with its status.

    The status is 2 for invalid input, 130 after an interrupt and 1 for an unexpected error, each with one line on standard error. A
    pipe whose reader has closed it gives status 1 without a line.
    """
    _fill_closed_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a table with ± is printed even if the terminal's encoding lacks it
    try:
        status = _status()
    except KeyboardInterrupt:  # before a command has begun
        status = _print_error("stopped", 130)
    except Exception as error:
        status = _print_error(f"{type(error).__name__}: {str(error)[:500]} (`rollmux --debug COMMAND ...` prints where)", 1)
    health = sys.modules.get("runtime.machines.ray_health")
    if health is not None and health.has_died:  # the rest of Ray in this process would crash at a normal exit
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status or 0))
    sys.exit(status)


def _fill_closed_streams() -> None:
    """Open the null device for each standard stream that is closed, so that no other file gets its descriptor.

    Standard output is opened for reading only. Printing to it then fails with an error message, as on a full disk.
    """
    for name, flags in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, flags)
            setattr(sys, name, open(file, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115 - as long as the process


def command() -> typer.Typer:
    """Return the `rollmux` command with the commands of all packages."""
    from rollmux_env.commands.lazy import lazy_app
    from rollmux_env.commands.main_options import before_commands

    app = lazy_app(
        _COMMANDS,
        name="rollmux",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(before_commands)
    return app


def _status() -> int:
    if problem := foreign_package():
        return _print_error(problem)
    import typer

    from rollmux_env.errors import EXTRAS, InputError, PlanError, lacks

    try:
        status = command()(standalone_mode=False, prog_name="rollmux") or 0
        sys.stdout.flush()
        return status
    except (InputError, PlanError) as error:
        return _print_error(str(error), getattr(error, "exit_status", 2))
    except ModuleNotFoundError as error:
        if not any((error.name or "").partition(".")[0] in modules for modules in EXTRAS.values()):
            raise
        return _print_error(lacks(error.name or ""))
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return 0
        context = getattr(error, "ctx", None)
        said = error.format_message().replace(": Value error, ", ": ")  # of pydantic, by which Typer converts values
        return _print_error(f"{said} Try `{context.command_path if context else 'rollmux'} --help`.")
    except (KeyboardInterrupt, typer.Abort):
        return _print_error("stopped", 130)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that unwritten output does not fail again at exit
        if isinstance(error, BrokenPipeError):  # the reader of a pipe has gone: silently, with typer's and rich's status
            return 1
        unnamed = "the working directory" if error.errno == errno.ENOENT else "standard output"
        return _print_error(f"{error.filename or unnamed}: {error.strerror or error}")


def _print_error(text: str, status: int = 2) -> int:
    """Print on one line why the command ends, and return the status. With ROLLMUX_DEBUG set, print the current traceback first."""
    if os.environ.get("ROLLMUX_DEBUG"):
        traceback.print_exc()
    print(f"rollmux: {' '.join(text.split())[:_LONGEST]}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
