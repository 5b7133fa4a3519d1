"""Engines that sample responses. `interface` defines what an engine does, and `make_engine` creates one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from runtime.engines.interface import Engine, Kind


def make_engine(
    kind: Kind,
    model_dir: Path,
    *,
    max_length: int,
    seed: int,
    threads: int,
    tensor_parallel: int,
    options: Mapping[str, Any] | None = None,
    sequences: int | None = None,
) -> Engine:
    """Load a model into an engine of this process.

    Args:
        kind: `vllm`, `torch`, or `auto` for vLLM if it can be used and torch otherwise.
        model_dir: Hugging Face directory with config.json and safetensors.
        max_length: Largest number of tokens of a prompt and its response together.
        seed: Seed of the engine itself. Responses depend on `Sampling.seed`.
        threads: Number of threads of this process on a CPU, one for each of its cores.
        tensor_parallel: Number of devices that hold the model together; 1 with torch.
        options: Set options of the job file's `rollout.engine_options`, or None. Only vLLM has any.
        sequences: Largest number of sequences at once, for which vLLM has room if the options do not say otherwise; None is its
            usual number.

    Raises:
        InputError: The directory, the engine or the number of devices cannot be used.
    """
    import torch

    from runtime.engines.model_files import read_model_files

    files, cuda = read_model_files(model_dir), torch.cuda.is_available()
    longest = files.longest
    asked = max(max_length, (options or {}).get("max_model_len", 0))
    if asked > longest:
        raise InputError(f"{model_dir}: {asked} tokens are asked for, the model attends to {longest}")
    if tensor_parallel > max(1, torch.cuda.device_count()):
        raise InputError(f"tensor_parallel: {tensor_parallel} GPUs are asked for, {torch.cuda.device_count()} are here")
    problem = vllm_problem(cuda, files.head) if kind != "torch" else None
    if kind == "vllm" and problem is not None:
        raise InputError(f"engine vllm: {problem}")
    if kind != "torch" and problem is None:
        from runtime.engines.vllm_engine import VllmEngine

        room = {} if sequences is None else {"max_num_seqs": sequences}
        options = {**room, **(options or {})}
        return VllmEngine(
            model_dir, max_length=max_length, seed=seed, threads=threads, tensor_parallel=tensor_parallel, options=options
        )
    if options:
        raise InputError(
            f"engine torch: takes no engine_options, which are vLLM's: {min(options)} is set"
            + (f", and {problem}" if problem else "")
        )
    if tensor_parallel != 1:
        raise InputError(f"engine torch: holds a model on one device, not on {tensor_parallel}")
    from runtime.engines.torch_engine import TorchEngine

    return TorchEngine(model_dir, max_length=max_length, threads=threads)


def why_torch(kind: Kind, cuda: bool, head: int | None = None) -> str | None:
    """Return why `auto` uses the torch engine here, or None if it does not. `head` is that of `vllm_problem`."""
    problem = vllm_problem(cuda, head) if kind == "auto" else None
    return None if problem is None else f"engine auto samples with torch, not vLLM: {problem}"


def vllm_problem(cuda: bool, head: int | None = None) -> str | None:
    """Return why vLLM cannot be used here, or None if it can. Imports neither vLLM nor torch.

    Args:
        cuda: Whether this process sees a CUDA device.
        head: Size of the model's attention heads, or None without a model.
    """
    from runtime.engines.probe import CPU_HEADS, probe_vllm

    problem = probe_vllm(cuda).problem
    if problem is None and not cuda and head is not None and head not in CPU_HEADS:
        sizes = ", ".join(map(str, CPU_HEADS))
        return f"on CPUs vLLM has no kernel for attention heads of {head} numbers (head_dim); it has for {sizes}"
    return problem
