"""One rank of a job's training: updates of GRPO, and the job's state between them.

Every rank makes a `Trainer` and makes the same calls in the same order with the same arguments. The update draws no random numbers,
so weights, Adam's moments and a count are all of the state.
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
from runtime.residency.layout import Layout
from runtime.training import group
from runtime.training.batch import Batch, Minibatch, TrainingError, minibatches
from runtime.training.loss import SUMS, LogProbs, grpo_sums, score_tokens
from runtime.training.memory import LARGE

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Trainer:
    """A model, its optimizer, and a copy of the model as it began if a KL term asks for one.

    Args:
        model_dir: a Hugging Face directory.
        settings: `algorithm` of the job file, with a learning rate.
        rank, world: this rank, and how many there are; each has one GPU, the first that it sees, or CPU threads.
        rendezvous: as `join_group` takes it.
        threads: of this process, on a CPU; as many as cores that it owns.
        cpu_offload: on a GPU, keep the state in host memory and let Adam step there; on a CPU nothing changes.
        steps: of the optimizer, of the whole job, for learning rates that go down.
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
        """Updates that are in the weights, since the job began."""
        self._rank, self._world = rank, world
        self._device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # else the group would guess
        self._mesh = group.join_group(rank, world, rendezvous, self._device, cpu_offload)
        self._closed = False
        in_host_memory = cpu_offload and self._device.type == "cuda"
        if in_host_memory:
            map_large_blocks()  # shards are page-locked one by one, so each needs pages of its own
        try:
            self._model = group.load_sharded(model_dir, self._mesh, cpu_offload)
            frozen = group.load_sharded(model_dir, self._mesh, cpu_offload).requires_grad_(False) if settings.kl else None
            self._reference = frozen
        except BaseException:
            group.leave_group()
            raise
        self._names = {name: parameter for name, parameter in self._model.named_parameters()}
        if self._device.type == "cpu" and sum(parameter.numel() for parameter in self._names.values()) >= LARGE:
            map_large_blocks()  # pages that are new each time take a small model half of its speed
        shards = [group.own_part(parameter) for model in self._models() for parameter in model.parameters()]
        self._locked = PageLock(shards if in_host_memory else ())
        self._steps = 0  # of the optimizer
        rate = settings.learning_rate
        assert rate is not None
        self._optimizer = torch.optim.AdamW(self._names.values(), lr=rate, weight_decay=settings.weight_decay, fused=True)
        self._rate = rates(rate, settings.lr_scheduler_type, settings.warmup_steps, steps)
        self._offloader = Offloader(self._tensors)

    def update(self, batch: Batch, learn: bool = True) -> dict[str, float]:
        """Train on an iteration's responses: one optimizer step a minibatch.

        Args:
            batch: the whole of it, on every rank; the ranks divide it themselves.
            learn: Whether weights change. If not, all is computed as usual, with a learning rate of 0.

        Returns:
            Means over response tokens, unless said otherwise, the same on every rank: `loss`; `clip_fraction`, the share of tokens
            whose ratio is clipped; `logprob_gap` and `logprob_gap_max`, |trainer's - sampler's log-prob| under the weights that
            sampled (rounding, where both compute alike); `capped_fraction`, the share whose importance weight is cut; `entropy`,
            minus the trainer's log-prob; `kl` to the model as it began, where the job has such a term; `grad_norm`, the mean over
            steps before it is cut; `learning_rate`, of the last step; and `tokens`, their number.

        Raises:
            TrainingError: the sampler's log-probs or the advantages are not finite, and everything is as it was; or a gradient is
                not, and the update ends before its step, after those of earlier minibatches. The weights stay finite.
            RuntimeError: the trainer is offloaded.
        """
        self._must_be_here()
        for name, values in (("log-probs of the sampler", batch.logprobs), ("advantages", batch.advantages)):
            if not values.isfinite().all():
                raise TrainingError(f"update {self.updates}: {name} are not all finite; no step was made")
        work = minibatches(batch, self.settings.minibatches, self._rank, self._world, self.settings.micro_batch_tokens)
        old, reference = self._score_before(work)
        sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self._device)
        largest = torch.zeros((), device=self._device)
        norms = 0.0
        for number, part in enumerate(work):
            scale = self._world / max(part.tokens, 1)  # FSDP divides the sum over the ranks by their number
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
        """Write the whole weights into host memory, for the sampler: on rank 0; every rank calls it.

        float32 on CPUs, bf16 on GPUs, as the model computes, cast on the device; a tied output matrix is left out. Ranks gather
        them on their devices, so call it before the phase's `offload`.

        Args:
            data: uint8, of as many bytes as the layout; of others than rank 0, none.

        Raises:
            RuntimeError: the trainer is offloaded.
        """
        self._must_be_here()
        views = self.layout.views(data) if self._rank == 0 else {}
        for name, parameter in self._names.items():
            full = group.whole(parameter.detach().to(self._sampled_as))
            if self._rank == 0:
                views[name].copy_(full, non_blocking=True)
        self._written()

    @property
    def layout(self) -> Layout:
        """Of the bytes of the weights under their Hugging Face names, the same on every rank."""
        return Layout.of({name: torch.empty(p.shape, dtype=self._sampled_as, device="meta") for name, p in self._names.items()})

    def write_shard(self, data: Tensor) -> None:
        """Write what this rank holds of the bytes of the weights into host memory: as `runtime.sync.plan.shard` says, in order.

        Cast on the device, and no rank gathers anything.

        Args:
            data: uint8, of so many bytes; page-locked it is written as fast as the bus is.

        Raises:
            RuntimeError: the trainer is offloaded.
        """
        self._must_be_here()
        start = 0
        for name, *_ in self.layout.tensors:
            part = group.own_part(self._names[name]).flatten().to(self._sampled_as).view(torch.uint8)
            data[start : start + len(part)].copy_(part, non_blocking=True)
            start += len(part)
        self._written()

    def _written(self) -> None:
        """Wait until copies to the host are there."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def _sampled_as(self) -> torch.dtype:
        return torch.bfloat16 if self._device.type == "cuda" else torch.float32

    @contextmanager
    def shards(self, weights: bool = True) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
        """What this rank has of all that a continuation needs, where it is, without a copy: on the device, or in host memory.

        Names of tensors: `weights.NAME`, and once a step was made `exp_avg.NAME` and `exp_avg_sq.NAME`. Beside them, its JSON.
        Valid inside the context; whole tensors are the ranks' shards one after the other, along the first dimension.

        Args:
            weights: Whether weights are included, beside the moments.
        """
        state = {name: tensor for name, tensor in self._state().items() if weights or not name.startswith("weights.")}
        with self._offloader.shards(state) as shards:
            yield shards, {"updates": self.updates, "steps": self._steps, "ranks": self._world}

    def load_state(self, tensors: Mapping[str, group.Sliced], info: Mapping[str, Any]) -> None:
        """Go on from a state, of a trainer with any number of ranks; on a CPU with as many, to the bit.

        Args:
            tensors: those of `shards`, whole, on every rank, of which it takes its own rows, a tensor at a time. info: its JSON.

        Raises:
            InputError: a tensor is missing, unknown or of another shape, or a count is none; nothing is changed.
            RuntimeError: the trainer is offloaded.
        """
        self._must_be_here()
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
        """Go back to copies that this rank has made of what `shards` gave it, and what came with them; every rank calls it.

        Weights that are not among the copies stay as they are.

        Raises:
            RuntimeError: the trainer is offloaded.
        """
        self._must_be_here()
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
        """Move weights and optimizer to host memory and give the device's back; again: no effect."""
        for model in self._models():
            group.reshard(model)
        return self._offloader.offload()

    def stay(self) -> Footprint:
        """Stay on the device; what is left of the last update is given back."""
        for model in self._models():
            group.reshard(model)
        return self._offloader.stay()

    def restore(self) -> Footprint:
        """Bring them back in place; again: no effect."""
        return self._offloader.restore()

    def close(self) -> None:
        """Give everything back and leave the group of ranks; the trainer is of no use afterwards. Again: no effect."""
        if not self._closed:
            self._closed = True
            self._locked.close()
            self._offloader.close()
            group.leave_group()

    def _score_before(self, work: list[Minibatch]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """Log-probs of each piece before the first step: the model's own, and the reference model's where there is one.

        Those of the first minibatch are left out: its own pass finds them, since no step has been made by then.
        """
        with torch.no_grad():
            old = [[self._score(self._model, piece)[0] for piece in part.pieces] if k else [] for k, part in enumerate(work)]
            if self._reference is None:
                return old, []
            return old, [[self._score(self._reference, piece)[0] for piece in part.pieces] for part in work]

    def _score(self, model: nn.Module, piece: Batch) -> tuple[Tensor, slice]:
        """Log-probs of the tokens at the columns in the slice, from the first response token on."""
        places = piece.mask.any(0).nonzero()
        first = int(places[0]) if len(places) else piece.tokens.shape[1] - 1
        at = slice(first, piece.tokens.shape[1])
        return score_tokens(model, piece.tokens.to(self._device), first, self.settings.temperature), at

    def _step(self, number: int, of: int, learn: bool) -> float:
        """One optimizer step; returns the gradient's norm over all ranks."""
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
        """Weights and moments as the ranks hold them, by their names in `shards`."""
        tensors: dict[str, Tensor] = {f"weights.{name}": parameter for name, parameter in self._names.items()}
        for moment in _MOMENTS if self._steps else ():
            tensors |= {f"{moment}.{name}": self._optimizer.state[p][moment] for name, p in self._names.items()}
        return tensors

    def _models(self) -> list[nn.Module]:
        return [model for model in (self._model, self._reference) if model is not None]

    def _tensors(self) -> dict[str, Tensor]:
        """All that is offloaded."""
        tensors: dict[str, Tensor] = {}
        for k, model in enumerate(self._models()):
            tensors |= {f"{k}.{name}": tensor for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        for k, entry in enumerate(self._optimizer.state.values()):
            tensors |= {f"state.{k}.{name}": tensor for name, tensor in entry.items()}
        return tensors

    def _must_be_here(self) -> None:
        if self._closed or self._offloader.offloaded:
            raise RuntimeError(f"the trainer is {'closed' if self._closed else 'offloaded'}")


def rates(peak: float, kind: str, warmup_steps: int, steps: int) -> Callable[[int], float]:
    """The learning rate of each step, as transformers has it: it depends on the step's number alone, so nothing is kept.

    Args:
        peak: after the warm-up. kind: of transformers' `get_scheduler`. warmup_steps: in which it goes up from 0.
        steps: of the job; `linear` and `cosine` are at 0 behind them.
    """
    from transformers import get_scheduler

    nothing = torch.optim.SGD([torch.zeros(())], lr=1.0)
    name = "constant_with_warmup" if kind == "constant" else kind
    factor = get_scheduler(name, nothing, num_warmup_steps=warmup_steps, num_training_steps=steps).lr_lambdas[0]
    return lambda step: peak * float(factor(step))
