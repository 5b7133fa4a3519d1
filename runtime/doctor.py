"""The checks of `rollmux doctor`: what this machine has for running jobs, what a run would use, and what to install."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.report.tables import heading, make_table
from rollmux_env.validation_errors import one_line
from runtime.gpus import GpuInfo, find_gpus
from runtime.memory import memory

Verdict = Literal["ok", "note", "missing"]
_NODES = 2  # devices needed for one node of each pool
_NO_GPUS = "none"
_WITHOUT_GPUS = "CUDA_VISIBLE_DEVICES='' runs on CPU cores"
_NEEDED_GB = 4.0  # host memory of two tiny jobs on vLLM
_SHARED_GB = 1.0  # shared memory through which Ray sends weights and responses
_PACKAGES = {"ray": "jobs run on it", "transformers": "models are read by it", "tensorboard": "a run's curves are written for it"}
_INSTALL = "pip install 'rollmux[run]'"
_COMPILERS = ("gcc", "clang", "cc")  # Triton and torch.compile look for one of these
_DRIVERS = {"12": 525, "13": 580}  # oldest driver for each CUDA version on Linux (CUDA Toolkit release notes)


class MachineFinding(NamedTuple):
    """Result of one check.

    Attributes:
        what: Subject of the check.
        found: Present state.
        verdict: `ok`, `note`, or `missing` if `rollmux run` cannot work without it.
        advice: Advice to the user, or "".
    """

    what: str
    found: str
    verdict: Verdict = "ok"
    advice: str = ""


def examine() -> list[MachineFinding]:
    """Run all checks. This imports torch but neither vLLM nor Ray, and starts no process but nvidia-smi."""
    gpus = find_gpus()
    torch = _torch(gpus)
    ray, transformers, tensorboard = (_package(name, why) for name, why in _PACKAGES.items())
    vllm = _vllm(cuda=torch.verdict == "ok" and bool(gpus))
    python = MachineFinding("Python", sys.version.split()[0])
    tools = [_compiler(), _nvml()] if gpus else []
    return [python, _cores(), _memory(), _shared_memory(), _gpus(gpus), torch, ray, transformers, vllm, *tools, tensorboard]


def use_of(findings: Sequence[MachineFinding]) -> str:
    """Return a sentence about what a run on this machine would use."""
    by_name = {finding.what: finding for finding in findings}
    if any(finding.verdict == "missing" for finding in findings):
        return "rollmux run does not work here yet"
    engine = "vLLM" if by_name["vLLM"].verdict == "ok" else f"the torch engine ({by_name['vLLM'].advice})"
    gpus, how = by_name["GPUs"], "lets rollouts and trainings take turns on the GPU of this machine"
    if gpus.verdict == "ok" or gpus.found == _NO_GPUS:
        devices = "GPUs" if gpus.verdict == "ok" else "CPU cores"
        how = f"shares out the {devices} of this machine between rollout and training nodes"
    return f"rollmux run {how}, and samples with {engine}"


def as_report(findings: Sequence[MachineFinding]) -> dict[str, Any]:
    """Return the report of `rollmux doctor --format json`."""
    works = not any(finding.verdict == "missing" for finding in findings)
    return {"works": works, "use": use_of(findings), "findings": [finding._asdict() for finding in findings]}


def findings_table(findings: Sequence[MachineFinding]) -> RenderableType:
    """Return the tables of `rollmux doctor`."""
    table = make_table("", "found", "", "to do", left=4)
    styles: dict[Verdict, str] = {"ok": "green", "note": "yellow", "missing": "bold red"}
    for finding in findings:
        table.add_row(finding.what, finding.found, Text(finding.verdict, style=styles[finding.verdict]), finding.advice)
    for column in table.columns:
        column.no_wrap = False
    return Group(heading("This machine"), table, Text(use_of(findings)))


def _cores() -> MachineFinding:
    cores = len(os.sched_getaffinity(0))
    return _noted("CPU cores", str(cores), "on CPUs, a rollout and a training node take a core each" if cores < _NODES else "")


def _memory() -> MachineFinding:
    here = memory()
    limit = ", the limit of this container" if here.limited else ""
    advice = f"two tiny jobs on vLLM take about {_NEEDED_GB:.0f} GB; engine: torch takes less" if here.free_gb < _NEEDED_GB else ""
    return _noted("memory", f"{here.total_gb:.1f} GB, {here.free_gb:.1f} GB of it free{limit}", advice)


def _shared_memory() -> MachineFinding:
    why = "new weights go through it, else through files in /tmp, which is slower"
    try:
        free = shutil.disk_usage("/dev/shm").free / 1e9
    except OSError:
        return _noted("/dev/shm", "not there", f"mount it: {why}")
    return _noted("/dev/shm", f"{free:.1f} GB free", f"give containers more (--shm-size): {why}" if free < _SHARED_GB else "")


def _gpus(gpus: Sequence[GpuInfo]) -> MachineFinding:
    if not gpus:
        return _noted("GPUs", _NO_GPUS, "jobs run on CPU cores; fit for the model tiny")
    if len(gpus) < _NODES:
        summary = f"{gpus[0].name} with {gpus[0].memory_gb:.0f} GB, driver {gpus[0].driver}"
        return _noted("GPUs", summary, "one device: jobs take turns on it, and gain nothing over one after the other")
    kinds = Counter((gpu.name, gpu.memory_gb) for gpu in gpus)
    summary = ", ".join(f"{count} x {name} with {memory:.0f} GB" for (name, memory), count in kinds.items())
    return MachineFinding("GPUs", f"{summary}, driver {gpus[0].driver}")


def _torch(gpus: Sequence[GpuInfo]) -> MachineFinding:
    if (version := _version("torch")) is None:
        return MachineFinding("torch", "not installed", "missing", _INSTALL)
    import torch

    cuda = torch.version.cuda
    summary = f"{version}, built for {f'CUDA {cuda}' if cuda else 'CPUs'}"
    if gpus and not cuda:
        return MachineFinding("torch", summary, "missing", f"it cannot use the GPUs: install a build for CUDA; {_WITHOUT_GPUS}")
    if gpus and cuda and not torch.cuda.is_available():
        why = _old_driver(cuda, gpus[0].driver) or "does the driver fit its CUDA version?"
        return MachineFinding("torch", summary, "missing", f"it cannot use the GPUs: {why} {_WITHOUT_GPUS}")
    return MachineFinding("torch", summary)


def _old_driver(cuda: str, driver: str) -> str:
    """Return a sentence if a driver is too old for a CUDA version, else ""."""
    needed = _DRIVERS.get(cuda.partition(".")[0], 0)
    major = driver.partition(".")[0]
    if not major.isdigit() or int(major) >= needed:
        return ""
    return f"CUDA {cuda} needs driver {needed} or newer, {driver} is installed."


def _vllm(cuda: bool) -> MachineFinding:
    from runtime.engines.probe import probe_vllm

    probe = probe_vllm(cuda)
    summary = f"{probe.package} {probe.version}" if probe.package else "not installed"
    return _noted("vLLM", summary, one_line(probe.problem or ""))


def _compiler() -> MachineFinding:
    found = next(filter(None, map(shutil.which, _COMPILERS)), "none")
    missing = f"install {_COMPILERS[0]}, or set engine_options: {{enforce_eager: true}}: vLLM compiles kernels where it starts"
    return _noted("C compiler", found, missing if found == "none" else "")


def _nvml() -> MachineFinding:
    version = _version("pynvml", "nvidia-ml-py")
    missing = "pip install nvidia-ml-py: else what attached jobs keep on a GPU goes by their job files"
    return _noted("NVML", version or "not installed", "" if version else missing)


def _package(name: str, why: str) -> MachineFinding:
    version = _version(name)
    if version is None:
        return MachineFinding(name, "not installed", "missing", f"{why}: {_INSTALL}")
    return MachineFinding(name, version)


def _noted(what: str, found: str, advice: str) -> MachineFinding:
    """Return a finding about something optional; it is ok if there is no advice."""
    return MachineFinding(what, found, "note" if advice else "ok", advice)


def _version(name: str, package: str = "") -> str | None:
    try:
        return metadata.version(package or name) if find_spec(name) is not None else None
    except metadata.PackageNotFoundError:
        return None
