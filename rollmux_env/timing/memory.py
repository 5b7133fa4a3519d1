"""Host memory that keeps a job resident on a node between its phases, GB.

The rollout keeps each replica's weights twice: asleep, and staged for the next version. The trainer keeps 24 bytes per
parameter, divided by its nodes: weights, gradients and two moments in float32, weights and gradients in bf16, and a
reference model in float32. What a process holds besides, per GPU, is set by hand to the figures of RollMux, arXiv
2512.11306, Table 2. docs/reference/timing.md prints the remaining differences.
"""

from __future__ import annotations

from rollmux_env.timing.models import ModelShape

COPIES = 2
TRAINING_BYTES = 24
ROLLOUT_PROCESS_GB, TRAINING_PROCESS_GB = 2.5, 9.0


def rollout_memory_gb(shape: ModelShape, devices: int, tensor_parallel: int = 1, number_bytes: float = 2.0) -> float:
    """GB on a rollout node. A replica over several nodes has a part of its weights on each."""
    replicas = devices / tensor_parallel
    return COPIES * replicas * shape.parameters * number_bytes / 1e9 + devices * ROLLOUT_PROCESS_GB


def training_memory_gb(shape: ModelShape, devices: int, nodes: int = 1) -> float:
    """GB on each training node."""
    return TRAINING_BYTES * shape.parameters / nodes / 1e9 + devices * TRAINING_PROCESS_GB
