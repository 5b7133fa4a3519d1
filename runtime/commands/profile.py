"""The command `rollmux profile`."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from policies.commands.options import TableOrJson
from policies.commands.printed import Printed
from rollmux_env.errors import InputError, require
from rollmux_env.files import write_whole
from runtime.commands.options import Format
from runtime.gpus import device_count
from runtime.profile import check_cores, profile_tables, subject, with_engine
from runtime.profile import profile as measured


class EngineName(StrEnum):
    """Engines that can be profiled."""

    vllm = "vllm"
    torch = "torch"


def profile(
    target: Annotated[str, typer.Argument(metavar="FILE|MODEL", help="A job file, `tiny`, or the folder of a model.")],
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Job of the file. (default: the first one with a task)")
    ] = None,
    engine: Annotated[EngineName | None, typer.Option("--engine", help="Engine to measure instead of the job's own.")] = None,
    size: Annotated[
        int | None,
        typer.Option("--size", min=1, help="GPUs of the engine, or cores without GPUs. (default: the job's tensor_parallel)"),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of measurements.")] = 5,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.json", help="Write the measured rates to a file, for `gpu` of a scenario's pool."),
    ] = None,
    format: Format = TableOrJson.table,
) -> None:
    """Measure an engine on this machine, fit the phase-time model to it, and compare its prediction with rollouts.

    Example: `rollmux profile tiny --engine torch --out here.json`
    """
    require("run", "profile")

    if out is not None and (out.suffix != ".json" or not out.absolute().parent.is_dir()):
        raise InputError(f"--out {out}: must be a .json file in a folder that is there")
    threads = 1
    if size is not None and not device_count():
        check_cores(size)
        threads = size
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # its cores, before torch counts them
        os.environ[name] = str(threads)
    engine_profile = measured(with_engine(subject(target, job), None if engine is None else engine.value), rounds, size)
    if out is not None:
        write_whole(out, engine_profile.hardware.to_json())
    Printed(engine_profile.as_report(), [profile_tables(engine_profile)]).show(format)
