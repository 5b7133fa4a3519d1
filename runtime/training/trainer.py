"""One rank of a job's training: updates of GRPO, and the job's state between them.

Every rank creates a `Trainer` and makes the same calls in the same order with the same arguments. An update draws no random
numbers, so the state consists of weights, Adam's moments and two counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rollmux_offload import Offloader, map_large_blocks
from rollmux_segment import Footprint, PageLock
from torch import Tensor, nn

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.jobs.grpo_spec import Algorithm
from runtime.residency.layout import WeightLayout
from runtime.training import group
from runtime.training.batch import Minibatch, TrainingBatch, TrainingError, minibatches
from runtime.training.loss import SUMS, LogProbs, grpo_sums, score_tokens
from runtime.training.memory import LARGE

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Trainer:
    """A model, its optimizer, and a copy of the initial model if a KL term needs one.

    Args:
        model_dir: The Hugging Face directory of the model.
        settings: The `algorithm` of the job file, with a learning rate.
        rank: This rank. It uses the first GPU that it sees, or CPU threads.
        world: Number of ranks.
        rendezvous: Rendezvous of the ranks, as for `join_group`.
        threads: Number of threads of this process on a CPU, as many as its cores.
        steps: Number of optimizer steps of the whole job, for decreasing learning rates.
        cpu_offload: Whether, on a GPU, the state is in host memory and Adam runs there. No effect on a CPU.
    """

    def __init__(
        self,
        model_dir: Path,
        settings: Algorithm,
        *,
        rank: int = 0,
        world: int = 1,
        rendezvous: str | None = None,
        threads: int = 1,
        steps: int = 1,
        cpu_offload: bool = False,
    ) -> None:
        torch.set_num_threads(threads)
        self.settings = settings
        self.updates = 0
        """Number of updates in the weights since the job began."""
        self._rank, self._world = rank, world
        self._device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # otherwise the process group would guess the device
        self._mesh = group.join_group(rank, world, rendezvous, self._device, cpu_offload)
        self._closed = False
        in_host_memory = cpu_offload and self._device.type == "cuda"
        if in_host_memory:
            map_large_blocks()  # shards are page-locked one by one, so each needs separate pages
        try:
            self._model = group.load_sharded(model_dir, self._mesh, cpu_offload)
            frozen = group.load_sharded(model_dir, self._mesh, cpu_offload).requires_grad_(False) if settings.kl else None
            self._reference = frozen
        except BaseException:
            group.leave_group()
            raise
        self._names = {name: parameter for name, parameter in self._model.named_parameters()}
        if self._device.type == "cpu" and sum(parameter.numel() for parameter in self._names.values()) >= LARGE:
            map_large_blocks()  # not for a small model, which new pages at each use would slow down to half speed
        shards = [group.own_part(parameter) for model in self._models() for parameter in model.parameters()]
        self._locked = PageLock(shards if in_host_memory else ())
        self._steps = 0  # number of optimizer steps since the job began
        rate = settings.learning_rate
        assert rate is not None
        self._optimizer = torch.optim.AdamW(self._names.values(), lr=rate, weight_decay=settings.weight_decay, fused=True)
        self._rate = rates(rate, settings.lr_scheduler_type, settings.warmup_steps, steps)
        self._offloader = Offloader(self._tensors)

    def update(self, batch: TrainingBatch, learn: bool = True) -> dict[str, float]:
        """Train on an iteration's responses, with one optimizer step for each minibatch.

        Args:
            batch: The whole batch, on every rank. The ranks divide it themselves.
            learn: Whether weights change. If not, everything is computed as usual, with a learning rate of 0.

        Returns:
            Means over response tokens, unless stated otherwise, the same on every rank: `loss`; `clip_fraction`, the share of
            tokens whose ratio is clipped; `logprob_gap` and `logprob_gap_max`, |trainer's - sampler's log-prob| under the weights
            that sampled (rounding, if both compute alike); `capped_fraction`, the share whose importance weight is limited;
            `entropy`, minus the trainer's log-prob; `kl` to the initial model, if the job has a KL term; `grad_norm`, the mean over
            steps before clipping; `learning_rate` of the last step; and `tokens`, their number.

        Raises:
            TrainingError: The sampler's log-probs or the advantages are not finite, and nothing has changed; or a gradient is not
                finite, and the update ends before its step, after those of earlier minibatches. The weights stay finite.
            RuntimeError: The trainer is offloaded.
        """
        self._require_loaded()
        for name, values in (("log-probs of the sampler", batch.logprobs), ("advantages", batch.advantages)):
            if not values.isfinite().all():
                raise TrainingError(f"update {self.updates}: {name} are not all finite; no step was made")
        work = minibatches(batch, self.settings.minibatches, self._rank, self._world, self.settings.micro_batch_tokens)
        old, reference = self._score_before(work)
        sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self._device)
        largest = torch.zeros((), device=self._device)
        norms = 0.0
        for number, part in enumerate(work):
            scale = self._world / max(part.tokens, 1)  # FSDP divides the sum over the ranks by the number of ranks
            for k, piece in enumerate(part.pieces):
                new, at = self._score(self._model, piece)
                logprobs = LogProbs(
                    new,
                    new.detach() if number == 0 else old[number][k],
                    piece.logprobs[:, at].to(self._device),
                    reference[number][k] if reference else None,
                )
                total, more, widest = grpo_sums(
                    logprobs,
                    piece.advantages.to(self._device),
                    piece.mask[:, at].to(self._device),
                    clip=self.settings.clip,
                    cap=self.settings.importance_cap,
                    beta=self.settings.kl,
                )
                (total * scale).backward()  # type: ignore[no-untyped-call]
                sums += more
                largest = torch.maximum(largest, widest)
            norms += self._step(number, len(work), learn)
        self.updates += 1
        dist.all_reduce(sums)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        tokens = sum(part.tokens for part in work)
        mean = dict(zip(SUMS, (sums / max(tokens, 1)).tolist(), strict=True))
        metrics = {
            "loss": mean["loss"],
            "clip_fraction": mean["clipped"],
            "logprob_gap": mean["gap"],
            "logprob_gap_max": float(largest),
            "capped_fraction": mean["capped"],
            "entropy": mean["entropy"],
            "grad_norm": norms / len(work),
            "learning_rate": self._optimizer.param_groups[0]["lr"],
            "tokens": float(tokens),
        }
        return metrics | ({"kl": mean["kl"]} if self._reference is not None else {})

    def write_weights(self, data: Tensor) -> None:
        """Write all weights into host memory of rank 0, for the sampler. Every rank calls it.

        They are in float32 on CPUs, and in bf16 on GPUs, as the model computes, cast on the device. A tied output matrix is left
        out. Ranks gather the weights on their devices, so it has to be called before the phase's `offload`.

        Args:
            data: uint8 memory of the layout's size on rank 0, any tensor on other ranks.

        Raises:
            RuntimeError: The trainer is offloaded.
        """
        self._require_loaded()
        views = self.layout.views(data) if self._rank == 0 else {}
        for name, parameter in self._names.items():
            full = group.whole(parameter.detach().to(self._sampling_dtype))
            if self._rank == 0:
                views[name].copy_(full, non_blocking=True)
        self._finish_copies()

    @property
    def layout(self) -> WeightLayout:
        """Layout of the weights' bytes under their Hugging Face names, the same on every rank."""
        return WeightLayout.of(
            {name: torch.empty(p.shape, dtype=self._sampling_dtype, device="meta") for name, p in self._names.items()}
        )

    def write_shard(self, data: Tensor) -> None:
        """Write this rank's bytes of the weights into host memory, in the order of `runtime.sync.plan.shard`.

        They are cast on the device, and no rank gathers anything.

        Args:
            data: uint8 memory of this size. If it is page-locked, the bus's full speed is used.

        Raises:
            RuntimeError: The trainer is offloaded.
        """
        self._require_loaded()
        start = 0
        for name, *_ in self.layout.tensors:
            part = group.own_part(self._names[name]).flatten().to(self._sampling_dtype).view(torch.uint8)
            data[start : start + len(part)].copy_(part, non_blocking=True)
            start += len(part)
        self._finish_copies()

    def _finish_copies(self) -> None:
        """Wait until copies to the host are complete."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def _sampling_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._device.type == "cuda" else torch.float32

    @contextmanager
    def shards(self, weights: bool = True) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
        """Provide this rank's part of the training state in place, without a copy, on the device or in host memory.

        The tensors are `weights.NAME` and, after a first step, `exp_avg.NAME` and `exp_avg_sq.NAME`. The second part of the result
        is JSON. Both are valid inside the context. A whole tensor consists of the ranks' shards one after the other along the first
        dimension.

        Args:
            weights: Whether weights are included in addition to the moments.
        """
        state = {name: tensor for name, tensor in self._state().items() if weights or not name.startswith("weights.")}
        with self._offloader.shards(state) as shards:
            yield shards, {"updates": self.updates, "steps": self._steps, "ranks": self._world}

    def load_state(self, tensors: Mapping[str, group.Sliced], info: Mapping[str, Any]) -> None:
        """Continue from the state of a trainer with any number of ranks. On a CPU with the same number, it is exact to the bit.

        Args:
            tensors: The whole tensors of `shards`, on every rank, which reads its own rows one tensor at a time.
            info: The JSON of `shards`.

        Raises:
            InputError: A tensor is missing, unknown or of another shape, or a count is not valid. Nothing has changed.
            RuntimeError: The trainer is offloaded.
        """
        self._require_loaded()
        counts = [info.get(name) for name in ("updates", "steps")]
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise InputError(f"training state: updates and steps must be counts, not {one_line(str(counts))}")
        kinds = ("weights", *(_MOMENTS if info["steps"] else ()))
        shapes = {f"{kind}.{name}": parameter.shape for kind in kinds for name, parameter in self._names.items()}
        for name in sorted(shapes.keys() | tensors.keys()):
            if name not in tensors or name not in shapes:
                raise InputError(f"training state: {one_line(name)} is {'unknown' if name in tensors else 'missing'}")
            if tuple(tensors[name].shape) != tuple(shapes[name]):
                raise InputError(f"training state: {name} is of shape {[*tensors[name].shape]}, not {[*shapes[name]]}")
        self._load(lambda name: group.shard_of(tensors[name], self._names[name.partition(".")[2]], self._mesh), info)

    def load_shards(self, shards: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
        """Restore the state from copies that this rank has made of the result of `shards`. Every rank calls it.

        Weights that are not among the copies keep their values.

        Args:
            shards: Copies of this rank's tensors.
            info: The JSON that came with them.

        Raises:
            RuntimeError: The trainer is offloaded.
        """
        self._require_loaded()
        self._load(lambda name: None if name.startswith("weights.") and name not in shards else shards[name], info)

    def _load(self, part_of: Callable[[str], Tensor | None], info: Mapping[str, Any]) -> None:
        self.updates, self._steps = info["updates"], info["steps"]
        self._optimizer.state.clear()
        for parameter in self._names.values() if self._steps else ():
            moments = {moment: torch.zeros_like(parameter) for moment in _MOMENTS}
            step = torch.tensor(float(self._steps), device=parameter.device)
            self._optimizer.state[parameter] = {"step": step, **moments}
        for name, tensor in self._state().items():
            if (part := part_of(name)) is not None:
                group.own_part(tensor).copy_(part)

    def offload(self) -> Footprint:
        """Move weights and optimizer to host memory, release the device's memory, and return the resulting footprint.

        The state does not move if it is already there.
        """
        for model in self._models():
            group.reshard(model)
        return self._offloader.offload()

    def stay(self) -> Footprint:
        """Keep the state on the device, release memory that remains from the last update, and return the resulting footprint."""
        for model in self._models():
            group.reshard(model)
        return self._offloader.stay()

    def restore(self) -> Footprint:
        """Move the state back to the device in place, and return the resulting footprint.

        The state does not move if it is already there.
        """
        return self._offloader.restore()

    def close(self) -> None:
        """Release all memory and leave the group of ranks. The trainer cannot be used afterwards. Closing again has no effect."""
        if not self._closed:
            self._closed = True
            self._locked.close()
            self._offloader.close()
            group.leave_group()

    def _score_before(self, work: list[Minibatch]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """Return the log-probs of each piece before the first step, by the model and, if there is one, by the reference model.

        Those of the first minibatch are left out, because its training pass computes them before any step.
        """
        with torch.no_grad():
            old = [[self._score(self._model, piece)[0] for piece in part.pieces] if k else [] for k, part in enumerate(work)]
            if self._reference is None:
                return old, []
            return old, [[self._score(self._reference, piece)[0] for piece in part.pieces] for part in work]

    def _score(self, model: nn.Module, piece: TrainingBatch) -> tuple[Tensor, slice]:
        """Return the log-probs of the tokens, and the slice of their columns, from the first response token on."""
        places = piece.mask.any(0).nonzero()
        first = int(places[0]) if len(places) else piece.tokens.shape[1] - 1
        at = slice(first, piece.tokens.shape[1])
        return score_tokens(model, piece.tokens.to(self._device), first, self.settings.temperature), at

    def _step(self, number: int, of: int, learn: bool) -> float:
        """Make one optimizer step, and return the gradient's norm over all ranks."""
        norm = nn.utils.clip_grad_norm_(self._names.values(), self.settings.max_grad_norm)
        length = float(group.whole(norm.detach()))
        if not isfinite(length):
            self._optimizer.zero_grad()
            raise TrainingError(
                f"update {self.updates}, minibatch {number + 1} of {of}: the gradient's norm is {length}; its step was not made "
                f"(a lower learning_rate than {self._rate(self._steps):g} may help)"
            )
        self._optimizer.param_groups[0]["lr"] = self._rate(self._steps) if learn else 0.0
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._steps += 1
        return length

    def _state(self) -> dict[str, Tensor]:
        """Return this rank's weights and moments, by their names in `shards`."""
        tensors: dict[str, Tensor] = {f"weights.{name}": parameter for name, parameter in self._names.items()}
        for moment in _MOMENTS if self._steps else ():
            tensors |= {f"{moment}.{name}": self._optimizer.state[p][moment] for name, p in self._names.items()}
        return tensors

    def _models(self) -> list[nn.Module]:
        return [model for model in (self._model, self._reference) if model is not None]

    def _tensors(self) -> dict[str, Tensor]:
        """Return all tensors that are offloaded."""
        tensors: dict[str, Tensor] = {}
        for k, model in enumerate(self._models()):
            tensors |= {f"{k}.{name}": tensor for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        for k, entry in enumerate(self._optimizer.state.values()):
            tensors |= {f"state.{k}.{name}": tensor for name, tensor in entry.items()}
        return tensors

    def _require_loaded(self) -> None:
        if self._closed or self._offloader.offloaded:
            raise RuntimeError(f"the trainer is {'closed' if self._closed else 'offloaded'}")


def rates(peak: float, kind: str, warmup_steps: int, steps: int) -> Callable[[int], float]:
    """Return the learning rate as a function of the step's number, with the schedules of transformers. It has no state.

    Args:
        peak: Learning rate after the warm-up.
        kind: Name of the schedule in transformers' `get_scheduler`.
        warmup_steps: Number of steps in which the rate rises from 0.
        steps: Number of steps of the job, after which `linear` and `cosine` are at 0.
    """
    from transformers import get_scheduler

    nothing = torch.optim.SGD([torch.zeros(())], lr=1.0)
    name = "constant_with_warmup" if kind == "constant" else kind
    factor = get_scheduler(name, nothing, num_warmup_steps=warmup_steps, num_training_steps=steps).lr_lambdas[0]
    return lambda step: peak * float(factor(step))
