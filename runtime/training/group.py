"""The ranks that train a job together: torch's process group, and a model sharded over it with FSDP2."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from runtime.training.rendezvous import listen_near

_TIMEOUT = timedelta(minutes=10)  # a rank that has died is noticed at once; this is for one that hangs
_members = 0  # trainers of this process that are in its group


def join_group(rank: int, world: int, rendezvous: str | None, device: torch.device) -> DeviceMesh:
    """Enter the group of a job's ranks: NCCL on GPUs, gloo on CPUs. Every rank calls it; it returns when all have.

    Args:
        rendezvous: `tcp://host:port` of rank 0, whose process has opened the store there (`rendezvous.open_store`);
            `file://path` on one machine; None where it is the only one.

    Raises:
        ValueError: rank, world and rendezvous do not fit. RuntimeError: this process is in a group of another size.
    """
    global _members
    if not 0 <= rank < world or (world > 1 and rendezvous is None):
        raise ValueError(f"rank {rank} of {world} with rendezvous {rendezvous}: more than one rank need a place to meet")
    if dist.is_initialized():
        if world > 1 or dist.get_world_size() > 1:
            raise RuntimeError("this process trains in a group already; close its trainer first")
    else:
        backend = "nccl" if device.type == "cuda" else "gloo"
        listen_near(rendezvous)
        if world == 1:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        else:
            dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world, timeout=_TIMEOUT)
    _members += 1
    return init_device_mesh(device.type, (world,))


def leave_group() -> None:
    """Leave it; the last trainer of the process takes it down."""
    global _members
    _members -= 1
    if _members == 0:
        dist.destroy_process_group()


def load_sharded(directory: Path, mesh: DeviceMesh) -> nn.Module:
    """A causal language model from a Hugging Face directory, in float32, each rank with its shard of every parameter.

    On GPUs it computes in bf16 and adds gradients up in float32, with activations recomputed in the backward pass. Dropout is off:
    the probabilities trained on have to be those sampled from.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    model: nn.Module = AutoModelForCausalLM.from_pretrained(directory, config=config, local_files_only=True, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # memory of its own, not the file's, so that it can be offloaded
            parameter.data = parameter.clone()
    on_gpu = mesh.device_type == "cuda"
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if on_gpu else MixedPrecisionPolicy()
    model.train()
    if on_gpu:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    return model


def reshard(model: nn.Module) -> None:
    """Free what a forward pass without a backward pass has left gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def full_copy(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy on the CPU of a tensor of which every rank has a shard; every rank calls it."""
    full = tensor.detach()
    full = full.full_tensor() if hasattr(full, "full_tensor") else full
    return full.to("cpu", dtype, copy=True).contiguous()


def own_part(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor."""
    own: Tensor = tensor.detach()
    return own.to_local() if hasattr(own, "to_local") else own


def copy_shard(target: Tensor, full: Tensor, mesh: DeviceMesh) -> None:
    """Fill this rank's shard from the whole tensor."""
    local: Tensor = target.to_local() if hasattr(target, "to_local") else target
    shards = full.chunk(mesh.size()) if hasattr(target, "to_local") else (full,)
    place = mesh.get_local_rank() if hasattr(target, "to_local") else 0
    with torch.no_grad():
        if place < len(shards):
            local.copy_(shards[place])


def add_up(values: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over the ranks of one tensor and the maximum of another."""
    dist.all_reduce(values)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return values, largest


def first_device() -> torch.device:
    """The GPU that this process sees first, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """No NaN and no infinity."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
