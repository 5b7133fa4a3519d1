"""The ranks that train a job together: torch's process group, and tensors of which every rank has a shard."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule

from runtime.training.rendezvous import listen_near

_TIMEOUT = timedelta(minutes=10)  # a rank that has died is noticed at once; this is for one that hangs
_members = 0  # trainers of this process that are in its group


def join_group(rank: int, world: int, rendezvous: str | None, device: torch.device, cpu_offload: bool = False) -> DeviceMesh:
    """Enter the group of a job's ranks: NCCL on GPUs, gloo on CPUs. Every rank calls it; it returns when all have.

    Args:
        rendezvous: `tcp://host:port` of rank 0, whose process has opened the store there (`rendezvous.open_store`);
            `file://path` on one machine; None where it is the only one.
        cpu_offload: tensors in host memory take part too: on GPUs gloo beside NCCL, for the norm of gradients.

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
        on_gpu = "cpu:gloo,cuda:nccl" if cpu_offload else "nccl"
        backend = on_gpu if device.type == "cuda" else "gloo"
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


def reshard(model: nn.Module) -> None:
    """Free what a forward pass without a backward pass has left gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which every rank has a shard, on the device; every rank calls it."""
    full: Any = tensor
    if hasattr(full, "full_tensor"):  # through the device, where the ranks have their network, also if it is offloaded
        full = full.to(full.device_mesh.device_type).full_tensor()
    return cast(Tensor, full)


def own_part(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor."""
    own: Tensor = tensor.detach()
    return own.to_local() if hasattr(own, "to_local") else own


def shard_of(full: Tensor, like: Tensor, mesh: DeviceMesh) -> Tensor:
    """This rank's part of a whole tensor that is sharded as another one is; a view."""
    if not hasattr(like, "to_local"):
        return full
    shards, place = full.chunk(mesh.size()), mesh.get_local_rank()
    return shards[place] if place < len(shards) else full[:0]


def first_device() -> torch.device:
    """The GPU that this process sees first, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
